//! A policy that schedules this machine from a thread of this process.

mod ask;

use std::{
    ffi::c_char,
    fs::File,
    io,
    mem::MaybeUninit,
    os::fd::AsFd,
    ptr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::Ordering::{Acquire, Relaxed, Release},
        mpsc::{RecvTimeoutError, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ekiden::Topology;
use ekiden_contain::contained;
use ekiden_engine::{Engine, Fault, IdleCpus};
use ekiden_host::{Figure, Figures, Policy, Surrounded};
use ekiden_loader::{CallLog, Changes, LoadError, Result, header_of, operations_of_the_kernel, sysfs};
use ekiden_recording::{self as recording, Header, Instance, Mark};
use libbpf_rs::{
    Link, OpenObject,
    skel::{OpenSkel, SkelBuilder},
};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    time::{ClockId, clock_getres},
    unistd::{Pid, gettid},
};

use ask::Instances;

use crate::{
    call_log::{self, Ring},
    config::{Config, Counts, Make},
    heartbeat::{Beats, EachCall},
    host::AgentHost,
    mind::{Mind, Talk},
    ready,
    skel::{AgentSkel, AgentSkelBuilder},
    wire::{Control, GROUPS_MOST, Maps, Programs, Shared, WORDS, fd},
};

/// CPUs that a slot of a task has room for.
const CPUS_MAX: u32 = 64 * WORDS as u32;

/// For so long a call of the policy may run; hosts/kernel/bpf/agent_watch.h has the same.
const LOOPS: Duration = Duration::from_millis(25);

/// How long the agent's thread may take to begin, and to end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// How long the kernel may take to say why it let go.
const EXIT_TAKES: Duration = Duration::from_secs(1);

/// A policy that schedules this machine from this process. Dropping it gives every task back to the kernel's own
/// scheduler.
pub struct Agent {
    link: Option<Link>,
    name: String,
    instances: Arc<Instances>,
    topology: Topology,
    questions: Arc<AgentHost>,
    beats: Arc<Beats>,
    max_tasks: u32,
    flight: Option<Flight>,
    figures: Mutex<Figures>,
    shared: Arc<Shared>,
    talk: Arc<Talk>,
    thread: Option<JoinHandle<Option<Fault>>>,
    exit: [*const c_char; 2],
    skel: AgentSkel<'static>,
}

/// Where the policy's newest calls are.
struct Flight {
    file: Arc<File>,
    records: u64,
}

/// The name under which the kernel knows the scheduler.
fn scheduler_name(policy: &str) -> String {
    format!("ekiden_agent_{}", policy.replace('-', "_"))
}

impl Agent {
    /// Puts a policy in charge of all ordinary tasks of this machine. If that fails, the machine is as it was.
    ///
    /// # Errors
    /// A capability is missing, the kernel has no sched_ext, another scheduler runs, memory cannot be locked, the
    /// policy refuses its parameters, or the kernel the program.
    pub fn start(config: &Config, make: Make) -> Result<Self> {
        ready::nothing_else_schedules()?;
        Self::prepare(config, make)?.start()
    }

    /// Makes a policy ready while another one of Ekiden's has the tasks: what can be refused is refused before that one lets go of them.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn prepare(config: &Config, make: Make) -> Result<Prepared> {
        ready::look()?;
        let topology = ekiden_machine::read_sysfs("/sys".as_ref())
            .map_err(|error| LoadError::Other(format!("cannot read the topology: {error}")))?;
        let nr_cpus = topology.nr_cpus();
        if nr_cpus > CPUS_MAX {
            let message =
                format!("the agent has room for {CPUS_MAX} CPUs, this machine has {nr_cpus}; use `ekiden run`");
            return Err(LoadError::Other(message));
        }
        let idle = Arc::new(IdleCpus::new(nr_cpus));
        let questions = Arc::new(AgentHost::new(idle.clone(), &topology.online(), nr_cpus, config.max_tasks));
        let made = contained(|| {
            let made = make(topology.clone(), config.max_tasks, &config.params, questions.clone());
            let mut policy = made.map_err(|error| error.to_string())?;
            if !config.saved.is_empty() {
                policy.restore(&config.saved)?;
            }
            Ok::<_, String>(policy)
        });
        let policy = made.and_then(|made| made).map_err(LoadError::Refused)?;
        let (calls, figures) = (policy.calls(), policy.figures());
        let (policy, call_log, flight) = match config.call_log_records {
            0 => (policy, None, None),
            records => {
                let (ring, file) = Ring::new(records)?;
                (call_log::recorded(policy), Some(ring), Some(Flight { file, records }))
            }
        };
        let name = scheduler_name(&config.policy);
        let mut skel = load(config, &name, nr_cpus)?;
        let bss = skel.maps.bss_data.take().ok_or_else(|| LoadError::Other("the program has no memory".into()))?;
        let exit = [&raw const bss.exit_reason, (&raw const bss.exit_message).cast()].map(<*const _>::cast);
        let programs = Programs {
            shoot: fd(&skel.progs.agent_shoot),
            alarm: fd(&skel.progs.agent_set_alarm),
            give_up: fd(&skel.progs.agent_give_up),
        };
        let maps = Maps {
            ring: (&skel.maps.ring, config.messages),
            tasks: (&skel.maps.tasks, config.max_tasks + 1),
            groups: (&skel.maps.groups, GROUPS_MOST),
            cpus: (&skel.maps.cpus, nr_cpus),
            shots: (&skel.maps.shots, batch_for(nr_cpus)),
        };
        let control = (&raw const bss.control).cast::<Control>();
        let may_place = !config.every_wakeup;
        // SAFETY: these are the program's, which is never unmapped, as the skeleton is kept for as long as anything
        // uses it and its memory is not taken back.
        let shared = unsafe { Shared::new(control, (&raw mut bss.fault_text).cast(), &maps, programs, may_place) }?;
        let shared = Arc::new(shared);
        shared.control().eager.store(1, Release);
        shared.set_calls(calls);
        shared.control().tgid.store(std::process::id(), Release);

        let beats = Arc::new(Beats::new(shared.clone(), config.max_tasks));
        questions.set_beats(beats.clone());
        let policy: Box<dyn Policy> = Box::new(Surrounded::new(policy, EachCall(beats.clone())));
        let engine = Engine::new(policy, questions.clone(), idle, nr_cpus, config.max_tasks);
        questions.set_engine(engine.answers());
        let talk = Arc::new(Talk::default());
        let mind = Mind::new(engine, questions.clone(), shared.clone(), talk.clone(), config.max_tasks);
        ready::lock_memory()?;
        let first = Instance { policy: config.policy.clone(), params: config.params.clone() };
        let mut agent = Self {
            link: None,
            name,
            instances: Arc::new(Instances::of(first)),
            topology,
            questions,
            beats,
            max_tasks: config.max_tasks,
            flight,
            figures: Mutex::new(figures),
            shared,
            talk,
            thread: None,
            exit,
            skel,
        };
        // What was saved is not on the call log: it cannot be replayed from there.
        let mark = if config.saved.is_empty() { Mark::Begin } else { Mark::GoOn };
        agent.thread = Some(begin(mind, call_log.map(|ring| (ring, mark)), agent.shared.clone())?);
        Ok(Prepared(agent))
    }

    /// Gives every task back to the kernel's own scheduler, and returns when the kernel has done so. The rest goes when this is dropped.
    pub fn let_go(&mut self) {
        self.link.take();
    }

    /// The name under which the kernel knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the kernel still uses it.
    pub fn is_running(&self) -> bool {
        self.shared.control().ended.load(Acquire) == 0 && sysfs::scheduler().as_ref() == Some(&self.name)
    }

    /// Tells when the kernel does not use the policy any more.
    ///
    /// # Errors
    /// If this process may not have another file.
    pub fn end(&self) -> Result<Changes> {
        let file = self.skel.maps.end.as_fd().try_clone_to_owned();
        let failed = |source| LoadError::Io { what: "cannot wait for the kernel".into(), source };
        Ok(Changes::of_end(file.map_err(failed)?))
    }

    /// An error with the reason if the kernel does not use the policy any more.
    ///
    /// # Errors
    /// [`LoadError::TakenOut`].
    pub fn check(&self) -> Result<()> {
        if self.is_running() {
            return Ok(());
        }
        Err(self.taken_out())
    }

    /// Why the kernel has let go, in its own words. It says so last of all.
    fn exit_reason(&self) -> Option<String> {
        let start = Instant::now();
        while self.shared.control().ended.load(Acquire) == 0 {
            if start.elapsed() > EXIT_TAKES {
                return None;
            }
            thread::sleep(EXIT_TAKES / 100);
        }
        // SAFETY: two texts of the program's, each with a zero at its end, which were written before `ended` was.
        let [reason, message] = self.exit.map(|text| unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy());
        Some(format!("{reason} {message}").trim().to_owned())
    }

    /// The policy's newest calls, from the oldest that is there; they stay readable when the policy is gone. None without
    /// room for them.
    ///
    /// # Errors
    /// When they cannot be mapped.
    pub fn call_log(&self) -> Result<Option<CallLog>> {
        self.flight.as_ref().map(|flight| CallLog::of_process(&flight.file, flight.records)).transpose()
    }

    /// The memory that they are in, for another process.
    pub fn call_log_file(&self) -> Option<&File> {
        self.flight.as_ref().map(|flight| &*flight.file)
    }

    /// The header of a recording of them; `workload` is what runs.
    ///
    /// # Errors
    /// If the topology cannot be read.
    pub fn header(&self, workload: &str) -> Result<Header> {
        header_of(recording::Host::Agent, self.instance(), self.max_tasks, workload)
    }

    /// What the policy has counted itself so far.
    pub fn figures(&self) -> Vec<Figure> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner).totals()
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        let Talk { messages, decisions, stale, batches, kicks, stocks, .. } = &*self.talk;
        let [messages, decisions, kicks, stale, batches, stocks] =
            [messages, decisions, kicks, stale, batches, stocks].map(|counter| counter.load(Relaxed));
        let lost = self.shared.control().lost.load(Relaxed);
        Counts { messages, decisions, kicks, stale, batches, lost, stocks }
    }
}

/// A policy and a thread that wait for the kernel to call them.
pub struct Prepared(Agent);

impl Prepared {
    /// Puts it in charge.
    ///
    /// # Errors
    /// Another scheduler has the tasks, or the policy is taken out at once.
    pub fn start(self) -> Result<Agent> {
        let Self(mut agent) = self;
        let link = agent.skel.maps.agent_ops.attach_struct_ops().map_err(|error| match sysfs::scheduler() {
            Some(name) if name.starts_with("ekiden_agent") => LoadError::AgentRuns(name),
            _ => bpf_error("attach", &error),
        })?;
        agent.link = Some(link);
        agent.check()?;
        Ok(agent)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // First the kernel lets go, and has done so when this returns; the agent answers until then.
        self.link.take();
        self.talk.stop.store(true, Release);
        let Some(thread) = self.thread.take() else { return };
        let start = Instant::now();
        while !thread.is_finished() {
            if start.elapsed() > PATIENCE {
                // In an endless loop of the policy's, for which it was taken out. It ends with this process.
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let _ = thread.join();
        ready::unlock_memory();
    }
}

/// Room for a decision for each CPU, and for telling each to look for work.
fn batch_for(nr_cpus: u32) -> u32 {
    2 * nr_cpus.max(8)
}

/// The time from one tick of this kernel to the next.
fn tick() -> Duration {
    // It is the resolution of the coarse clock.
    clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).map_or(Duration::from_millis(4), Duration::from)
}

/// How many whole ticks there are in that time, whenever it begins, and two at least.
fn whole_ticks_in(time: Duration) -> u32 {
    (time.as_nanos() / tick().as_nanos().max(1)).saturating_sub(1).max(2) as u32
}

fn load(config: &Config, name: &str, nr_cpus: u32) -> Result<AgentSkel<'static>> {
    if !config.messages.is_power_of_two() || config.messages < 1024 {
        let message = format!("{} messages: it has to be a power of two, and 1024 at least", config.messages);
        return Err(LoadError::Other(message));
    }
    // The object lives as long as the program runs, which is as long as the process: it is not worth a self-reference.
    let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = AgentSkelBuilder::default().open(object).map_err(|error| bpf_error("open", &error))?;
    if let Some(constants) = &mut open.maps.rodata_data {
        constants.ring_mask = u64::from(config.messages) - 1;
        constants.slots_most = config.max_tasks;
        constants.nr_cpus = nr_cpus;
        constants.tick_ns = tick().as_nanos() as u64;
        constants.loop_ticks = whole_ticks_in(LOOPS);
    }
    let mut sized = || {
        open.maps.ring.set_max_entries(config.messages)?;
        open.maps.tasks.set_max_entries(config.max_tasks + 1)?;
        open.maps.cpus.set_max_entries(nr_cpus)?;
        open.maps.shots.set_max_entries(batch_for(nr_cpus))?;
        open.maps.freed.set_max_entries(config.max_tasks)
    };
    sized().map_err(|error| bpf_error("size the maps of", &error))?;
    let known = operations_of_the_kernel()?;
    let ops = open.struct_ops.agent_ops_mut();
    for (name, operation) in [
        ("cgroup_init", &mut ops.cgroup_init),
        ("cgroup_exit", &mut ops.cgroup_exit),
        ("cgroup_move", &mut ops.cgroup_move),
        ("cgroup_set_weight", &mut ops.cgroup_set_weight),
        ("cgroup_set_bandwidth", &mut ops.cgroup_set_bandwidth),
        ("cgroup_set_idle", &mut ops.cgroup_set_idle),
    ] {
        if !known.iter().any(|known| known == name) {
            *operation = ptr::null_mut();
        }
    }
    for (place, byte) in ops.name.iter_mut().zip(name.bytes().chain([0])) {
        *place = byte as c_char;
    }
    open.load().map_err(|error| bpf_error("load", &error))
}

fn bpf_error(step: &str, error: &libbpf_rs::Error) -> LoadError {
    LoadError::Bpf { message: format!("cannot {step} the agent's program: {error:#}"), log: String::new() }
}

/// Starts the thread that decides, and returns when it is ready for the kernel.
fn begin(mut mind: Mind, call_log: Option<(Ring, Mark)>, shared: Arc<Shared>) -> Result<JoinHandle<Option<Fault>>> {
    let failed = |source: io::Error| LoadError::Io { what: "cannot start the agent's thread".into(), source };
    let (sender, ready) = channel();
    let thread = thread::Builder::new()
        .name("ekiden-agent".into())
        .spawn(move || {
            let prepared = prepare();
            if prepared.is_ok() {
                if let Some((ring, mark)) = call_log {
                    ring.begin(mark);
                }
                shared.control().tid.store(gettid().as_raw() as u32, Release);
            }
            let goes_on = prepared.is_ok();
            // The other end is there: it waits for this.
            let _ = sender.send(prepared);
            if goes_on { mind.work() } else { None }
        })
        .map_err(failed)?;
    match ready.recv_timeout(PATIENCE) {
        Ok(prepared) => prepared.map(|()| thread).map_err(failed),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            Err(failed(io::Error::other("it does not begin")))
        }
    }
}

/// The thread may run on any CPU, hears no signals, and has memory.
fn prepare() -> io::Result<()> {
    let mut all = CpuSet::new();
    (0..CpuSet::count().min(CPUS_MAX as usize)).try_for_each(|cpu| all.set(cpu))?;
    sched_setaffinity(Pid::from_raw(0), &all)?;
    let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: plain calls of the C library, with a set on the stack that the first of them fills in.
    unsafe {
        libc::sigfillset(signals.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, signals.as_ptr(), std::ptr::null_mut());
    }
    ready::grow_heap();
    ready::rehearse_panic();
    Ok(())
}
