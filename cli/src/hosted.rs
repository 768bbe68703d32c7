//! A policy that this process has started, in the kernel or in itself, and that another one takes over from in the other place while all tasks run.

use std::{
    cell::RefCell,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use ekiden_agent::{Agent, Config, Counts, Next};
use ekiden_host::Figure;
use ekiden_loader::{
    Access, Beside, Changes, LoadError, Moved, NumberedInstance, Status, arena_bytes_for, room_for_all, sysfs,
};
use ekiden_recording::{Header, Instance};
use serde::{Deserialize, Serialize};
use serde_json::{Value, to_value};

use crate::{
    agent::control::{MovedTo, Request, Running, Upgraded},
    child::LookAgain,
    failure::{Exit, Failure},
    flights, policies,
    recording::RECORDING_KIB,
    session::{self, Flight, Held, LastFault, Plan},
    watch::Watch,
};

/// Where a policy runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Place {
    /// The kernel, by a module
    Kernel,
    /// The process that started it, without one
    Agent,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Kernel => "the kernel",
            Self::Agent => "an agent",
        })
    }
}

/// What is kept of a policy's calls, in either place.
#[derive(Args, Clone)]
pub(crate) struct Recorder {
    /// Memory for the newest calls, which are saved if the policy is taken out: in the kernel for each CPU; 0 for none
    #[arg(long, value_name = "KIB", default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(0..=262_144))]
    pub(crate) flight_kib: u64,
    /// Where its last calls are saved if it is taken out
    #[arg(long, value_name = "DIR", default_value_os_t = flights::usual())]
    pub(crate) flights: PathBuf,
    /// Record every call to this file, from the first one on; there are 16 MiB of memory for that, in the kernel for each CPU
    #[arg(long, value_name = "FILE", conflicts_with = "flight_kib")]
    pub(crate) record: Option<PathBuf>,
}

impl Recorder {
    /// The memory for the newest calls, in KiB.
    fn kib(&self) -> u64 {
        if self.record.is_some() { RECORDING_KIB } else { self.flight_kib }
    }
}

/// What was asked for when it was started, and holds in both places.
pub(crate) struct Options {
    /// Room for tasks; each place has a default of its own.
    pub(crate) max_tasks: Option<u32>,
    /// Memory for the policy itself, in the kernel.
    pub(crate) arena_mib: Option<u64>,
    /// Room for messages to an agent.
    pub(crate) messages: u32,
    /// Whether a policy in an agent decides for each task that wakes up.
    pub(crate) every_wakeup: bool,
    /// Who may choose it, in the kernel.
    pub(crate) access: Access,
    pub(crate) recorder: Recorder,
    /// Told when the kernel has done something with the policy, which may be that it does not use it any more.
    pub(crate) look: LookAgain,
}

impl Options {
    pub(crate) fn config(&self, instance: &Instance) -> Config {
        let usual = Config::new(&instance.policy);
        Config {
            params: instance.params.clone(),
            max_tasks: self.max_tasks.unwrap_or(usual.max_tasks),
            messages: self.messages,
            every_wakeup: self.every_wakeup,
            call_log_records: session::records_in(self.recorder.kib()),
            ..usual
        }
    }

    pub(crate) fn plan(&self, instance: &Instance, modules: &Path) -> Plan {
        let max_tasks = self.max_tasks.unwrap_or_else(room_for_all);
        Plan {
            params: instance.params.clone(),
            max_tasks,
            arena_mib: self.arena_mib.unwrap_or_else(|| arena_bytes_for(max_tasks) >> 20),
            flights: self.recorder.flights.clone(),
            flight_kib: self.recorder.kib(),
            access: self.access,
            ..Plan::new(&instance.policy, modules)
        }
    }
}

/// A policy in this process, and its newest calls.
pub(crate) struct InProcess {
    pub(crate) agent: Agent,
    flight: Option<Flight>,
    _watch: Watch,
}

impl InProcess {
    pub(crate) fn new(agent: Agent, options: &Options) -> Result<Self> {
        let flight = match agent.call_log()? {
            Some(call_log) => {
                let told = told(&agent)?;
                Some(Flight { call_log: RefCell::new(call_log), told, directory: options.recorder.flights.clone() })
            }
            None => None,
        };
        let watch = watch(agent.end()?, options)?;
        Ok(Self { agent, flight, _watch: watch })
    }

    /// An error with the reason, which is also kept for `ekiden status`, if the kernel does not use the policy any more.
    fn check(&self) -> Result<()> {
        let Err(error) = self.agent.check() else { return Ok(()) };
        if let LoadError::TakenOut(reason) = &error {
            // Another one may have taken over from the policy that was started.
            let newest = told(&self.agent).ok();
            let mut fault = LastFault::now(&self.agent.instance().policy, reason);
            fault.recording = self.flight.as_ref().and_then(|flight| flight.save(&fault, newest.as_ref()));
            // The message is the same without it.
            let _ = fault.keep();
        }
        Err(error.into())
    }

    fn running(&self) -> Result<Running> {
        let (agent, pid) = (&self.agent, std::process::id());
        let call_log = agent.call_log_file().map(AsRawFd::as_raw_fd);
        Ok(Running { pid, counts: agent.counts(), status: agent.status()?, call_log })
    }

    fn upgrade(&self, next: Next) -> Result<Upgraded> {
        let make = policies::make_next(&next.policy)?;
        let calls = policies::find(&next.policy).map_or(0, |linked| linked.calls.0);
        policies::check_params(&next.policy, &next.params)?;
        let from = self.agent.instance().policy;
        let done = self.agent.upgrade(&next, make).map_err(|error| or_stays(&from, error))?;
        Ok(Upgraded { from, done, calls })
    }
}

/// What the flight recorder's file says.
fn told(agent: &Agent) -> Result<(Header, Vec<NumberedInstance>)> {
    Ok((agent.header("flight recorder")?, agent.instances()))
}

fn stays(policy: &str, error: &anyhow::Error) -> anyhow::Error {
    Failure::new(Exit::OldGoesOn, format!("{policy} keeps running: {error:#}")).into()
}

/// The same, unless it does not run any more.
fn or_stays(policy: &str, error: LoadError) -> anyhow::Error {
    if matches!(error, LoadError::TakenOut(_)) { error.into() } else { stays(policy, &error.into()) }
}

/// The move came to nothing when the old one had let go already.
fn began_anew(policy: &str, error: &anyhow::Error) -> anyhow::Error {
    Failure::new(Exit::OldGoesOn, format!("{policy} began anew where it was: {error:#}")).into()
}

fn watch(changes: Changes, options: &Options) -> Result<Watch> {
    Watch::begin(changes, options.look.clone()).context("cannot wait for what the kernel does with the policy")
}

enum Now {
    Kernel {
        /// It has the device open, without which `ekiden.ko` can be unloaded: it ends first.
        watch: Watch,
        held: Box<Held>,
        modules: PathBuf,
    },
    Agent(Box<InProcess>),
    /// The kernel's own scheduler has the tasks, since this policy could neither move nor stay.
    Nowhere {
        policy: String,
        why: String,
    },
}

/// A policy that this process has started.
pub(crate) struct Hosted {
    now: RefCell<Now>,
    options: Options,
    /// Counts of agents that have ended.
    counts: RefCell<Counts>,
}

/// What is said of it at the end.
#[derive(Serialize)]
pub(crate) struct End {
    pub(crate) policy: String,
    pub(crate) place: Place,
    /// Whether it was the scheduler until then.
    pub(crate) was_scheduler: bool,
    /// What an agent has done.
    #[serde(flatten)]
    pub(crate) counts: Counts,
    /// What the policy has counted itself, in an agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) figures: Vec<Figure>,
}

impl Now {
    fn in_kernel(held: Held, modules: PathBuf, options: &Options) -> Result<Self> {
        let watch = watch(Changes::of_module()?, options)?;
        // What has happened before is not told.
        options.look.say();
        Ok(Self::Kernel { watch, held: held.into(), modules })
    }
}

impl Hosted {
    pub(crate) fn in_kernel(held: Held, modules: PathBuf, options: Options) -> Result<Self> {
        Ok(Self { now: Now::in_kernel(held, modules, &options)?.into(), options, counts: RefCell::default() })
    }

    pub(crate) fn in_agent(agent: InProcess, options: Options) -> Self {
        Self { now: Now::Agent(agent.into()).into(), options, counts: RefCell::default() }
    }

    /// An error with the reason if the kernel does not use it any more.
    pub(crate) fn check(&self) -> Result<()> {
        match &*self.now.borrow() {
            Now::Kernel { held, .. } => held.check(),
            Now::Agent(agent) => agent.check(),
            Now::Nowhere { why, .. } => Err(LoadError::TakenOut(why.clone()).into()),
        }
    }

    /// What this process says when it is asked, as JSON.
    pub(crate) fn answer(&self, request: Request) -> Result<Value> {
        match request {
            Request::Status => match &*self.now.borrow() {
                Now::Agent(agent) => Ok(to_value(agent.running()?)?),
                // `ekiden.ko` is asked.
                Now::Kernel { .. } | Now::Nowhere { .. } => Ok(Value::Null),
            },
            Request::Upgrade { policy, params, start_over } => match &*self.now.borrow() {
                Now::Agent(agent) => Ok(to_value(agent.upgrade(Next { policy, params, start_over })?)?),
                Now::Kernel { .. } | Now::Nowhere { .. } => Err(anyhow!("no agent has the tasks any more")),
            },
            Request::ToKernel { policy, params, start_over, modules } => {
                Ok(to_value(self.to_kernel(&Next { policy, params, start_over }, modules)?)?)
            }
            Request::ToAgent { policy, params, start_over } => {
                Ok(to_value(self.to_agent(&Next { policy, params, start_over })?)?)
            }
        }
    }

    fn may_move(&self) -> Result<()> {
        if self.options.recorder.record.is_some() {
            return Err(anyhow!(
                "its calls go to a file until it ends (--record); record with `ekiden record` instead"
            ));
        }
        Ok(())
    }

    /// A policy in the kernel takes over from the one in this process. What can be refused is refused before that one lets go of the tasks.
    fn to_kernel(&self, next: &Next, modules: PathBuf) -> Result<MovedTo> {
        let mut now = self.now.borrow_mut();
        let Now::Agent(in_process) = &mut *now else {
            return Err(Failure::new(Exit::OldGoesOn, "no agent has the tasks").into());
        };
        let agent = &mut in_process.agent;
        let old = agent.instance();
        self.may_move().map_err(|error| stays(&old.policy, &error))?;
        let saved = if takes_saved(&old, next) { agent.save() } else { Ok(None) };
        let saved = saved.map_err(|error| or_stays(&old.policy, error))?.unwrap_or_default();
        let moved = how(&saved);
        let plan = Plan { saved, ..self.options.plan(&with_params_of(&old, next), &modules) };
        let ready = plan.prepare().map_err(|error| stays(&old.policy, &error))?;
        let began = Instant::now();
        agent.let_go();
        let started = ready.start();
        let between = began.elapsed();
        match started.and_then(|held| Now::in_kernel(held, modules, &self.options)) {
            Ok(in_kernel) => {
                *self.counts.borrow_mut() += agent.counts();
                *now = in_kernel;
                let tasks = Status::read().ok().flatten().map(|status| status.counts.tasks);
                Ok(has_moved(old, moved, between, tasks))
            }
            Err(error) => {
                // The old one first: there is one at a time.
                *now = Now::Nowhere { policy: old.policy.clone(), why: format!("{error:#}") };
                *now = Now::Agent(self.start_agent(&old)?.into());
                Err(began_anew(&old.policy, &error))
            }
        }
    }

    /// A policy in this process takes over from the one in the kernel. What can be refused is refused before that one lets go of the tasks.
    fn to_agent(&self, next: &Next) -> Result<MovedTo> {
        let mut now = self.now.borrow_mut();
        let Now::Kernel { held, modules, .. } = &mut *now else {
            return Err(Failure::new(Exit::OldGoesOn, "no policy of this process is in the kernel").into());
        };
        let status = Status::read()?.unwrap_or_default();
        let Some(old) = status.policies.iter().find(|policy| policy.alive && policy.slot == held.slot()) else {
            return Err(LoadError::NothingRuns.into());
        };
        let old = Instance { policy: old.policy.clone(), params: old.params.clone() };
        let refused = |error: anyhow::Error| stays(&old.policy, &error);
        self.may_move().and_then(|()| is_alone(held)).map_err(refused)?;
        let make = policies::make(&next.policy).map_err(refused)?;
        let saved = if takes_saved(&old, next) { held.save(status.capacity as u32) } else { Ok(None) };
        let saved = saved.map_err(|error| or_stays(&old.policy, error))?.unwrap_or_default();
        let moved = how(&saved);
        let config = Config { saved, ..self.options.config(&with_params_of(&old, next)) };
        let ready = Agent::prepare(&config, make).map_err(|error| refused(error.into()))?;
        // Another one may have come meanwhile.
        is_alone(held).map_err(refused)?;
        let began = Instant::now();
        held.let_go();
        let started = ready.start().map_err(anyhow::Error::from);
        let between = began.elapsed();
        match started.and_then(|agent| InProcess::new(agent, &self.options)) {
            Ok(agent) => {
                let tasks = agent.agent.status().ok().map(|status| status.counts.tasks);
                *now = Now::Agent(agent.into());
                Ok(has_moved(old, moved, between, tasks))
            }
            Err(error) => {
                let modules = modules.clone();
                *now = Now::Nowhere { policy: old.policy.clone(), why: format!("{error:#}") };
                // One that has come in the last moment has the tasks now.
                let others = sysfs::scheduler().is_some_and(|name| name.starts_with("ekiden"));
                let beside = if others { Beside::OthersAsDefault } else { Beside::Nobody };
                let plan = Plan { beside, ..self.options.plan(&old, &modules) };
                *now = Now::in_kernel(plan.start()?, modules, &self.options)?;
                Err(began_anew(&old.policy, &error))
            }
        }
    }

    fn start_agent(&self, instance: &Instance) -> Result<InProcess> {
        let agent = Agent::start(&self.options.config(instance), policies::make(&instance.policy)?)?;
        InProcess::new(agent, &self.options)
    }

    /// Gives every task back to the kernel's own scheduler.
    pub(crate) fn end(self) -> End {
        let (now, mut counts) = (self.now.into_inner(), self.counts.into_inner());
        match now {
            Now::Agent(in_process) => {
                let agent = in_process.agent;
                counts += agent.counts();
                End {
                    policy: agent.instance().policy,
                    place: Place::Agent,
                    was_scheduler: agent.is_running(),
                    counts,
                    figures: agent.figures(),
                }
            }
            Now::Kernel { watch, held, .. } => {
                drop(watch);
                End {
                    policy: held.policy(),
                    place: Place::Kernel,
                    was_scheduler: held.is_running(),
                    counts,
                    figures: Vec::new(),
                }
            }
            Now::Nowhere { policy, .. } => {
                End { policy, place: Place::Agent, was_scheduler: false, counts, figures: Vec::new() }
            }
        }
    }
}

fn has_moved(from: Instance, moved: Moved, between: Duration, tasks: Option<u64>) -> MovedTo {
    let (tasks, between_ns) = (tasks.unwrap_or_default(), between.as_nanos() as u64);
    MovedTo { from: from.policy, moved, tasks, between_ns }
}

/// An agent has one policy, and takes over from one.
fn is_alone(held: &Held) -> Result<()> {
    let policies = Status::read()?.unwrap_or_default().policies;
    match policies.iter().find(|policy| policy.alive && policy.slot != held.slot()) {
        None => Ok(()),
        Some(other) => Err(anyhow!("an agent has one policy, and {} runs as well; end that one first", other.policy)),
    }
}

/// Without parameters of its own, the same policy keeps those that it has.
fn with_params_of(old: &Instance, next: &Next) -> Instance {
    let keeps = next.params.is_empty() && next.policy == old.policy && !next.start_over;
    if keeps { old.clone() } else { Instance { policy: next.policy.clone(), params: next.params.clone() } }
}

/// Whether the next one is to continue from what the old one saves.
fn takes_saved(old: &Instance, next: &Next) -> bool {
    next.policy == old.policy && !next.start_over
}

fn how(saved: &[u8]) -> Moved {
    if saved.is_empty() { Moved::StartedOver } else { Moved::Converted }
}
