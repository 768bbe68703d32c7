//! A simulation: what it is made of, and how it goes.

mod running;

use std::cmp::Reverse;
use std::io::Write;
use std::sync::{Arc, atomic::Ordering::Relaxed};

use ekiden::{CpuId, Env, ParamError, Scheduler, Topology};
use ekiden_contain::contained;
use ekiden_engine::{ContractViolation, Engine, Fault, IdleCpus, Totals};
use ekiden_host::abi::Outcome;
use ekiden_host::{Adapter, Figure, Host, Policy};
use ekiden_recording::{self as recording, Instance, Mark};
use ekiden_workload::{Report, TaskReport, Workload};

use crate::alarm::Alarm;
use crate::error::SimError;
use crate::group::Groups;
use crate::hardware::Source;
use crate::kernel::{Kernel, Stats};
use crate::machine::Machine;
use crate::masks::{Masks, SimHost};
use crate::notes::Listening;
use crate::program::Programs;
use crate::recorded::{self, Recording};
use crate::shared::Shared;
use crate::trace::{Header, Sink, Trace};
use crate::upgrade::Successor;

use self::running::Running;

/// Simulated time after which a load without a duration is given up: as long as a real run is given.
pub const TIME_LIMIT_NS: u64 = 60_000_000_000;

/// Room in the engine's table, besides four for each task of the load.
const SPARE_TASKS: u32 = 4_096;

/// Makes a policy for a machine, once.
pub struct PolicyMaker {
    name: String,
    params: String,
    make: Maker,
}

type Maker = Box<dyn FnOnce(Topology, u32, Arc<dyn Host + Send>) -> Result<Box<dyn Policy>, ParamError>>;

impl PolicyMaker {
    /// The policy `S` with these parameters (`name=number`, separated by blanks or commas).
    pub fn of<S: Scheduler>(params: &str) -> Self {
        let owned = params.to_owned();
        let maker = Self::new(S::NAME, move |topology, max_tasks, host| {
            let env = Env::new(topology, max_tasks, S::PARAMS, &owned)?;
            Ok(Box::new(Adapter::<S>::new(&env, host)))
        });
        Self { params: params.to_owned(), ..maker }
    }

    /// A policy made in some other way, such as one that is wrapped in a checker. `make` is given the machine, the most
    /// tasks that there can be, and whom to ask.
    pub fn new(
        name: impl Into<String>,
        make: impl FnOnce(Topology, u32, Arc<dyn Host + Send>) -> Result<Box<dyn Policy>, ParamError> + 'static,
    ) -> Self {
        Self { name: name.into(), params: String::new(), make: Box::new(make) }
    }

    /// The policy's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Something that happens without a task of the load doing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Injection {
    /// User space tells the policy something; `task` does it, if it is one of the load's.
    Hint {
        /// Name of the task.
        task: Option<String>,
        /// What it tells.
        bytes: Vec<u8>,
    },
    /// Parameters of a task are set for its policy, which may refuse them; the trace says so as of a hint.
    Params {
        /// Name of the task.
        task: String,
        /// `name=number`, separated by blanks or commas.
        settings: String,
    },
    /// User space opens a queue for hints.
    QueueOpen {
        /// Its number.
        queue: u32,
    },
    /// User space has put hints into a queue.
    QueueReady {
        /// Its number.
        queue: u32,
        /// The hints, one after the other.
        hints: Vec<u8>,
    },
    /// User space closes a queue for hints.
    QueueClose {
        /// Its number.
        queue: u32,
    },
    /// A CPU leaves the machine; the tasks there go elsewhere.
    CpuOffline {
        /// The CPU that leaves.
        cpu: CpuId,
    },
    /// A CPU joins the machine (again).
    CpuOnline {
        /// The CPU that joins.
        cpu: CpuId,
    },
    /// A task leaves the policy for the kernel's own scheduler, whose tasks are served first. Nothing happens if the
    /// task is gone, or is not the policy's.
    Depart {
        /// Name of the task.
        task: String,
    },
    /// A task comes (back) to the policy.
    Return {
        /// Name of the task.
        task: String,
    },
    /// The nice value of a task changes, as by `renice`. Nothing happens if the task is gone.
    Nice {
        /// Name of the task.
        task: String,
        /// −20 to 19.
        nice: i32,
    },
    /// The CPUs that a task may use change, as by `taskset`. Nothing happens if the task is gone.
    Affinity {
        /// Name of the task.
        task: String,
        /// The CPUs; absent means any.
        cpus: Option<Vec<CpuId>>,
    },
}

/// A load on a simulated machine, under a policy.
///
/// A simulation gives identical traces and reports every time it runs, byte for byte, on every machine.
#[must_use = "a simulation does nothing until it is run"]
pub struct Simulation {
    machine: Machine,
    policy: Option<PolicyMaker>,
    second: Option<(PolicyMaker, Vec<String>)>,
    seed: u64,
    time_limit_ns: u64,
    max_tasks: Option<u32>,
    sink: Sink,
    recording: Option<Box<dyn Write>>,
    notes_considered: bool,
    debug: Option<Box<dyn Write>>,
    injections: Vec<(u64, Injection)>,
    successors: Vec<(u64, Successor)>,
}

impl Simulation {
    /// `machine` under the policy `S` with these parameters.
    pub fn of<S: Scheduler>(machine: Machine, params: &str) -> Self {
        Self::with_policy(machine, PolicyMaker::of::<S>(params))
    }

    /// `machine` under a policy.
    pub fn with_policy(machine: Machine, policy: PolicyMaker) -> Self {
        Self { policy: Some(policy), ..Self::without_policy(machine) }
    }

    /// `machine` with nothing but the simulated kernel's own scheduler, which takes over when a policy fails: the tasks
    /// of each CPU take turns.
    pub fn without_policy(machine: Machine) -> Self {
        Self {
            machine,
            policy: None,
            second: None,
            seed: 0,
            time_limit_ns: TIME_LIMIT_NS,
            max_tasks: None,
            sink: Sink::Nowhere,
            recording: None,
            notes_considered: false,
            debug: None,
            injections: Vec::new(),
            successors: Vec::new(),
        }
    }

    /// Another policy beside the first, which is asked after it and has the load's tasks whose names begin with one of these, and
    /// what they fork. It cannot be recorded.
    pub fn beside(mut self, policy: PolicyMaker, has: &[&str]) -> Self {
        self.second = Some((policy, has.iter().map(|name| (*name).to_owned()).collect()));
        self
    }

    /// What decides everything that is left to chance ([`Jitter`](crate::Jitter)).
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Simulated time after which a load without a duration is given up.
    pub fn time_limit_ns(mut self, time_limit_ns: u64) -> Self {
        self.time_limit_ns = time_limit_ns;
        self
    }

    /// Most tasks that the policy can have at once; others run without it. By default there is room for some thousand
    /// more than the load starts with.
    pub fn max_tasks(mut self, max_tasks: u32) -> Self {
        self.max_tasks = Some(max_tasks);
        self
    }

    /// Keeps the trace in memory, for [`SimReport::trace`].
    pub fn traced(mut self) -> Self {
        self.sink = Sink::Memory(Trace::default());
        self
    }

    /// Writes the trace there instead. It is written in small pieces: put a [`BufWriter`](std::io::BufWriter) around a
    /// file.
    pub fn trace_into(mut self, writer: impl Write + 'static) -> Self {
        self.sink = Sink::Writer(Box::new(writer), Ok(()));
        self
    }

    /// Writes down every call into the policy there, with everything that it learns and answers, for
    /// [replay](../ekiden_replay/index.html).
    pub fn recorded_into(mut self, writer: impl Write + 'static) -> Self {
        self.recording = Some(Box::new(writer));
        self
    }

    /// Also notes at which CPUs the policy looked, in a decision where a task goes or what a CPU runs: those whose entry in
    /// a [`PerCpu`](ekiden::PerCpu) it read. Nothing is noted of a decision that looked at its own CPU only.
    pub fn with_considered(mut self) -> Self {
        self.notes_considered = true;
        self
    }

    /// Writes what the policy says in words ([`debug!`](ekiden::debug!)), and what it notes, there: a line each.
    pub fn debug_into(mut self, writer: impl Write + 'static) -> Self {
        self.debug = Some(Box::new(writer));
        self
    }

    /// Lets another policy, or the same with other parameters, take over at `at_ns`, if a policy is in charge then.
    pub fn upgrade(mut self, at_ns: u64, successor: Successor) -> Self {
        self.successors.push((at_ns, successor));
        self
    }

    /// Makes something happen at `at_ns`. At equal times, what is injected first happens first.
    pub fn inject(mut self, at_ns: u64, injection: Injection) -> Self {
        self.injections.push((at_ns, injection));
        self
    }

    /// Runs a load to its end.
    ///
    /// A policy that fails does not end the simulation: its tasks go on without it, and [`SimReport::fault`] says why.
    ///
    /// # Errors
    /// When the simulation cannot begin (load, parameters, machine), and when the load does not come to its end: nothing
    /// can happen any more while tasks are left, or time is up. The error then names these tasks.
    ///
    /// # Panics
    /// When the simulator or the engine is at fault.
    pub fn run(self, workload: &Workload) -> Result<SimReport, SimError> {
        let name = self.policy.as_ref().map(|policy| policy.name.clone());
        let mut kernel = self.prepare(workload)?;
        let over_at_ns = workload.duration_ns;
        let end = kernel.go(over_at_ns.map_or(kernel.time_limit_ns, |_| u64::MAX));
        kernel.conclude(end, workload, name)
    }

    /// The machine with everything that the load needs, before anything happens.
    fn prepare(mut self, workload: &Workload) -> Result<Running, SimError> {
        workload.check()?;
        self.machine.check().map_err(SimError::Machine)?;
        let topology = self.machine.topology.clone();
        let nr_cpus = topology.nr_cpus();
        if nr_cpus < workload.cpus {
            return Err(SimError::TooFewCpus { needed: workload.cpus, have: nr_cpus });
        }
        self.check_injections(workload, nr_cpus)?;
        self.injections.sort_by_key(|(at_ns, _)| *at_ns);
        self.injections.reverse();

        let header = Header {
            policy: self.policy.as_ref().map(|policy| policy.name.clone()),
            params: self.policy.as_ref().map_or_else(String::new, |policy| policy.params.clone()),
            workload: workload.name.clone(),
            seed: self.seed,
            ..Header::of(&topology)
        };
        let mut masks = Masks::new(nr_cpus, topology.online());
        let (programs, first) = Programs::new(workload, &mut masks, &self.machine.model.costs);
        for (_, injection) in &self.injections {
            if let Injection::Affinity { cpus, .. } = injection {
                masks.intern(cpus.as_deref());
            }
        }
        let of_tasks: Vec<_> = workload.tasks.iter().map(|task| masks.intern(task.affinity.as_deref())).collect();
        let instances = workload.tasks.iter().map(|task| task.count).sum::<u32>();
        let max_tasks = self.max_tasks.unwrap_or(4 * instances + SPARE_TASKS);
        self.successors.sort_by_key(|(at_ns, _)| Reverse(*at_ns));
        for (_, successor) in &self.successors {
            let refused = |source| SimError::Params { policy: successor.name().into(), source };
            successor.check(&topology, max_tasks).map_err(refused)?;
        }
        let idle = Arc::new(IdleCpus::new(nr_cpus));
        let call_costs_ns = self.machine.model.call_costs_ns();
        let questions = Arc::new(SimHost::new(
            masks.clone(),
            Groups::for_policies(workload),
            idle.clone(),
            max_tasks,
            call_costs_ns,
        ));

        let mut kernel = Kernel::new(self.machine, masks, questions.clone(), programs);
        let mut recording = None;
        let to_trace = !matches!(self.sink, Sink::Nowhere);
        let listening = Listening::begin(to_trace, self.debug.take(), &questions);
        let host: Arc<dyn Host + Send> = questions.clone();
        let made = |name: &str, make: Maker| match contained(|| make((*topology).clone(), max_tasks, host.clone())) {
            Ok(Ok(policy)) => Ok(policy),
            Ok(Err(source)) => Err(SimError::Params { policy: name.into(), source }),
            Err(message) => Err(SimError::PolicyPanicked { policy: name.into(), message }),
        };
        if let Some(PolicyMaker { name, params, make }) = self.policy {
            let policy = made(&name, make)?;
            let instance = Instance { policy: name, params };
            if let Some(writer) = self.recording {
                let header = recording::Header {
                    host: recording::Host::Simulator,
                    instance: instance.clone(),
                    max_tasks,
                    topology: topology.to_words(),
                    workload: workload.name.clone(),
                    writer: concat!("ekiden ", env!("CARGO_PKG_VERSION")).into(),
                    ..recording::Header::default()
                };
                recording = Some(Recording::begin(writer, &header));
            }
            let policy = recorded::next_instance(policy, Mark::Begin, 0, &questions, &instance);
            let mut engine = Engine::new(policy, questions.clone(), idle, nr_cpus, max_tasks);
            if let Some((PolicyMaker { name, make, .. }, has)) = self.second {
                // An engine with one policy has room for another; every CPU looks for work soon.
                let _ = engine.add(made(&name, make)?, false, &mut Outcome::default());
                kernel.second_has = has;
            }
            kernel.calls = engine.calls();
            questions.set_engine(engine.answers());
            kernel.engine = Some(engine);
            kernel.in_charge = true;
        }
        kernel.seed = self.seed;
        kernel.sink = self.sink;
        kernel.sink.begin(&header);
        kernel.notes_considered = self.notes_considered && !matches!(kernel.sink, Sink::Nowhere);
        kernel.has_notes = to_trace;
        kernel.shared = Shared::new(workload);
        kernel.questions.queues.store(workload.queues(), Relaxed);
        kernel.groups = Groups::new(workload);
        kernel.push_limits(workload);
        kernel.tell_groups(workload);
        kernel.sources = Source::all(&kernel.machine.model.interrupts, self.seed);
        kernel.injections = self.injections;
        kernel.successors = self.successors;
        kernel.max_tasks = max_tasks;

        // First of all, so that it comes before what happens at the same moment.
        if let Some(duration_ns) = workload.duration_ns {
            kernel.alarms.set(Alarm::Stop, duration_ns);
        }
        if let Some((at_ns, _)) = kernel.injections.last() {
            kernel.alarms.set(Alarm::Inject, *at_ns);
        }
        if let Some((at_ns, _)) = kernel.successors.last() {
            kernel.alarms.set(Alarm::Upgrade, *at_ns);
        }
        kernel.boot();
        (0..kernel.machine.model.interrupts.len() as u32).for_each(|source| kernel.expect_interrupt(source));
        let specs = workload.tasks.iter().zip(first).zip(of_tasks);
        let plans: Vec<_> = specs
            .flat_map(|((spec, program), mask)| std::iter::repeat_n((spec, program, mask), spec.count as usize))
            .collect();
        for ((name, spec), (_, program, mask)) in workload.instances().zip(&plans) {
            let root = kernel.roots.len() as u32;
            kernel.roots.push((TaskReport { name, nice: spec.nice, ..TaskReport::default() }, 0));
            let cpu = kernel.masks.get(*mask).cpus.first().unwrap_or(0);
            kernel.roots[root as usize].1 = kernel.create(root, None, *program, spec.nice, *mask, cpu);
        }
        for (root, (spec, ..)) in plans.iter().enumerate() {
            let task = kernel.roots[root].1;
            match spec.start_ns {
                0 => kernel.begin(task),
                start_ns => kernel.alarms.set(Alarm::Sleep(task), start_ns),
            }
        }
        Ok(Running { kernel, time_limit_ns: self.time_limit_ns, recording, listening })
    }

    fn check_injections(&self, workload: &Workload, nr_cpus: u32) -> Result<(), SimError> {
        for (at_ns, injection) in &self.injections {
            let fail = |why: String| Err(SimError::Injection { at_ns: *at_ns, why });
            let (task, cpus) = match injection {
                Injection::Hint { task, .. } => (task.as_ref(), &[] as &[CpuId]),
                Injection::Depart { task } | Injection::Return { task } | Injection::Params { task, .. } => {
                    (Some(task), &[] as &[CpuId])
                }
                Injection::CpuOffline { cpu } | Injection::CpuOnline { cpu } => (None, std::slice::from_ref(cpu)),
                Injection::Nice { task, nice } => {
                    if !(-20..=19).contains(nice) {
                        return fail(format!("nice value {nice}: choose one from -20 to 19"));
                    }
                    (Some(task), &[] as &[CpuId])
                }
                Injection::Affinity { task, cpus } => {
                    if cpus.as_ref().is_some_and(Vec::is_empty) {
                        return fail("a set of no CPUs: leave it out to allow any".into());
                    }
                    (Some(task), cpus.as_deref().unwrap_or(&[]))
                }
                Injection::QueueOpen { .. } | Injection::QueueReady { .. } | Injection::QueueClose { .. } => continue,
            };
            if let Some(cpu) = cpus.iter().find(|cpu| **cpu >= nr_cpus) {
                return fail(format!("there is no CPU {cpu}: the machine has {nr_cpus}, numbered from 0"));
            }
            if let Some(task) = task.filter(|task| !workload.instances().any(|(name, _)| name == **task)) {
                return fail(format!("the load has no task `{task}`: name one of its own, as `name.0` for a copy"));
            }
        }
        Ok(())
    }
}

/// What a simulation showed.
#[derive(Clone, Debug)]
pub struct SimReport {
    /// What the tasks did, as from a real run.
    pub report: Report,
    /// What happened, if it was to be kept in memory.
    pub trace: Trace,
    /// How often things happened on the machine.
    pub stats: Stats,
    /// What the engine counted.
    pub totals: Totals,
    /// What the policy counted itself.
    pub figures: Vec<Figure>,
    /// How many contract violations of the policy the engine put right.
    pub contract_violations: u32,
    /// The last one.
    pub last_contract_violation: Option<ContractViolation>,
    /// Why the policy was taken out, if it was.
    pub fault: Option<Fault>,
}

impl SimReport {
    /// The trace as it would be written to a file; empty if it was not to be kept in memory.
    pub fn trace_bytes(&self) -> &[u8] {
        self.trace.as_bytes()
    }
}
