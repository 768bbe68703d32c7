//! Runs a [`Workload`] with real processes: every task is a process that interprets its program.
//!
//! While tasks run, nothing is done for the sake of measuring: a task notes its own counters when it begins and
//! ends, in memory that it shares with the runner, and the rest is read afterwards from processes that are dead but not
//! yet waited for. So even a task that had to be killed is reported.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::real::actor::{Actor, RunContext};
use crate::real::proc::{self, KernelCounts};
use crate::real::process_group::{ProcessGroup, now_ns};
use crate::real::slot::{Doing, Slots, Word};
use crate::real::spin::Spin;
use crate::real::sys::{self, AheadOfOthers};
use crate::real::talk;
use crate::real::wait::Waits;
use crate::report::{Report, TaskReport};
use crate::spec::{HintWord, SpecError, Step, Workload};

pub use crate::real::process_group::Stuck;

/// Argument with which `Step::Exec` starts this program anew; it must then do nothing and exit with status 0.
pub const NOTHING: &str = "nothing";

/// The scheduling class that tasks ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// The class of the caller.
    #[default]
    Inherited,
    /// SCHED_EXT: served by a sched_ext scheduler even if that leaves other tasks alone.
    Ext,
}

/// How to run a load.
#[derive(Clone, Debug)]
pub struct Options {
    /// The class of every task.
    pub class: Class,
    /// Wall time after which a load without a duration is killed and reported as unfinished.
    pub watchdog: Duration,
    /// Speed of the work loop; measured at the start if absent.
    pub spin: Option<Spin>,
}

impl Default for Options {
    fn default() -> Self {
        Options { class: Class::Inherited, watchdog: Duration::from_secs(60), spin: None }
    }
}

/// Why a run has no report.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The load itself is at fault.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The machine is too small.
    #[error("the load needs {needed} CPUs and this process may use {have}: take a smaller load or a larger machine")]
    TooFewCpus {
        /// CPUs that the load names.
        needed: u32,
        /// CPUs that the caller may use.
        have: u32,
    },
    /// The load has steps or properties that only the simulator has.
    #[error("real processes cannot {what} yet, which the load asks for: run it with `ekiden sim`, or leave that out")]
    OnlySimulated {
        /// What they cannot do.
        what: &'static str,
    },
    /// The default policy has no queues, or none runs.
    #[error("the load talks to its policy: {0}; `ekiden run` a policy that takes hints, or leave that out")]
    NoQueues(#[from] ekiden_user::Error),
    /// The hints of the load are not those of the policy.
    #[error(
        "the load writes hints of {bytes} bytes, and the policy that runs takes such of {wanted}: run the one that it is for"
    )]
    OtherHints {
        /// Bytes of a hint of the load's.
        bytes: usize,
        /// Bytes of a hint of the policy's.
        wanted: u32,
    },
    /// The load waits for what never comes.
    #[error("the load reads notices, and the policy that runs has none to give: run the one that it is for")]
    NoNotices,
    /// Children are forked, which other threads of the caller would not survive.
    #[error("loads must be started from a process with one thread, this one has {threads}: run `ekiden-load` instead")]
    ManyThreads {
        /// Threads of the caller.
        threads: usize,
    },
    /// The kernel has no class SCHED_EXT.
    #[error(
        "this kernel has no scheduling class SCHED_EXT (policy 7): boot one with CONFIG_SCHED_CLASS_EXT=y (Linux 6.12 \
         and later have it) or leave out --ext"
    )]
    NoExtClass,
    /// A task could not do one of its steps.
    #[error("the task `{task}` could not {doing}: {source}{}", advice(source))]
    Task {
        /// Its name.
        task: String,
        /// The step that failed.
        doing: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
    /// A task ended in a way that no step asks for.
    #[error("the task `{task}` {how} before the end of its program: look for its message above and in `dmesg`")]
    Died {
        /// Its name.
        task: String,
        /// Exit status or signal.
        how: String,
    },
    /// The watchdog fired: tasks are starved, lost, or wait for what never comes.
    #[error(
        "not finished after {after_ms} ms: {}; a task that is runnable was starved by the scheduler, one asleep waits \
         for what never comes (see --watchdog for more time)",
        list(.stuck)
    )]
    Unfinished {
        /// How long the watchdog waited.
        after_ms: u64,
        /// Tasks that had not ended.
        stuck: Vec<Stuck>,
    },
    /// Killed tasks are still there: the scheduler no longer runs them at all.
    #[error("killed but not gone, so lost by the scheduler: {}; see `dmesg` for what it says", list(.stuck))]
    Lost {
        /// Tasks that did not end.
        stuck: Vec<Stuck>,
    },
    /// Another scheduler was measured than was meant to be.
    #[error(
        "the scheduler changed from {} to {} during the run, which is worth nothing now: see `dmesg` for why it was \
         taken out",
        scheduler_name(.before),
        scheduler_name(.after)
    )]
    SchedulerChanged {
        /// Name at time 0; absent: the kernel's own.
        before: Option<String>,
        /// Name at the end.
        after: Option<String>,
    },
    /// The runner itself failed.
    #[error("could not {doing}: {source}{}", advice(source))]
    System {
        /// The step that failed.
        doing: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
}

fn list(stuck: &[Stuck]) -> String {
    const SHOWN: usize = 10;
    let mut text = stuck.iter().take(SHOWN).map(Stuck::to_string).collect::<Vec<_>>().join("; ");
    if stuck.len() > SHOWN {
        text += &format!("; and {} more", stuck.len() - SHOWN);
    }
    text
}

fn scheduler_name(name: &Option<String>) -> &str {
    name.as_deref().unwrap_or("the kernel's own")
}

fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "; run as root",
        Some(libc::EMFILE | libc::ENFILE) => "; raise `ulimit -n` or take a smaller load",
        Some(libc::EAGAIN | libc::ENOMEM) => "; raise `ulimit -u` or take a smaller load",
        _ => "",
    }
}

pub(crate) fn system(doing: &'static str) -> impl Fn(io::Error) -> ExecError {
    move |source| ExecError::System { doing, source }
}

/// Runs `load` and reports what its tasks did.
///
/// Blocks for as long as the load lasts. The caller must have one thread.
///
/// # Errors
/// When the load cannot be run here, when a task fails or does not finish before the watchdog fires (named, with what
/// it was doing), and when the sched_ext scheduler is not the same before and after.
pub fn execute(load: &Workload, options: &Options) -> Result<Report, ExecError> {
    load.check()?;
    let cpus = Cpus::usable()?;
    if cpus.count() < load.cpus {
        return Err(ExecError::TooFewCpus { needed: load.cpus, have: cpus.count() });
    }
    if let Some(what) = only_simulated(load) {
        return Err(ExecError::OnlySimulated { what });
    }
    let types = talk::types(load)?;
    check_one_thread()?;
    raise_open_files();
    let pipes = (0..load.pipes()).map(|_| pipe_with(PipeFlags::CLOEXEC)).collect::<Result<Vec<_>, _>>();
    let context = RunContext {
        class: options.class,
        spin: options.spin.unwrap_or_else(Spin::calibrate),
        cpus,
        pipes: pipes.map_err(|error| system("make the load's pipes")(error.into()))?,
        slots: Slots::new(load).map_err(system("share memory with the tasks"))?,
        waits: Waits::new(load).map_err(system("share memory with the tasks"))?,
        devices: load.devices.clone(),
        types,
    };

    let mut process_group = ProcessGroup::new().map_err(system("make pipes"))?;
    for (index, (name, spec)) in load.instances().enumerate() {
        let actor = Actor::new(&context, index);
        process_group.spawn(name, |gate| actor.live(spec, gate)).map_err(system("start a task"))?;
    }
    let ready = process_group.ready().map_err(system("set up the tasks"))?;
    context.failure(&process_group)?;
    if !ready {
        return Err(context.died(&process_group));
    }
    let counts_before: Vec<_> = process_group.members.iter().map(|member| KernelCounts::of(member.pid)).collect();
    let scheduler = proc::sched_ext_scheduler();

    let ahead = AheadOfOthers::enter();
    let zero_ns = now_ns();
    context.slots.zero_ns().store(zero_ns, Relaxed);
    process_group.open_gate();
    let until_ns = zero_ns + load.duration_ns.unwrap_or(options.watchdog.as_nanos() as u64);
    let over = process_group.wait(until_ns).map_err(system("watch the tasks"))?;
    let end_ns = now_ns();
    let stuck = if over { Vec::new() } else { context.stuck(&process_group) };
    // Before the kill: while tasks die, those that are left may move to the CPUs that get free.
    let last_cpus: Vec<Option<u32>> = process_group
        .members
        .iter()
        .map(|member| (!over).then(|| proc::state_and_cpu(member.pid))?)
        .map(|state_and_cpu| context.cpus.number_of(state_and_cpu?.1))
        .collect();
    process_group.kill();
    let gone = process_group.ended();
    drop(ahead);

    context.failure(&process_group)?;
    if !over && load.duration_ns.is_none() {
        return Err(ExecError::Unfinished { after_ms: options.watchdog.as_millis() as u64, stuck });
    }
    if !gone {
        return Err(ExecError::Lost { stuck: process_group.stuck() });
    }
    if process_group.members.iter().any(|member| process_group.bad_end(member).is_some()) {
        return Err(context.died(&process_group));
    }
    let after = proc::sched_ext_scheduler();
    if scheduler != after {
        return Err(ExecError::SchedulerChanged { before: scheduler, after });
    }
    let mut tasks = Vec::with_capacity(process_group.members.len());
    for (index, (name, spec)) in load.instances().enumerate() {
        let seen = TaskReport { name, nice: spec.nice, ..context.slots.of(index).report(zero_ns) };
        let pid = process_group.members[index].pid;
        tasks.push(complete(seen, pid, counts_before[index], last_cpus[index]));
    }
    Ok(Report { workload: load.name.clone(), scheduler, wall_ns: end_ns - zero_ns, zero_ns: Some(zero_ns), tasks })
}

/// What of the load only the simulator can do, if there is anything.
fn only_simulated(load: &Workload) -> Option<&'static str> {
    let mut what = None;
    if load.tasks.iter().any(|task| task.group.is_some()) {
        what = Some("be put into groups");
    }
    load.each_step(|step| match step {
        Step::CpuOffline { .. } | Step::CpuOnline { .. } => what = Some("take CPUs out of the machine"),
        Step::PipePoll { .. } | Step::IfHeld { .. } => what = Some("look into a pipe without reading"),
        Step::WriteHint { hint, .. } if hint.iter().any(|word| matches!(word, HintWord::Held { .. })) => {
            what = Some("say in a hint what a pipe holds");
        }
        _ => {}
    });
    what
}

/// Adds to what a task noted itself what the kernel says about it.
fn complete(mut task: TaskReport, pid: Pid, before: KernelCounts, last_cpu: Option<u32>) -> TaskReport {
    let counts = KernelCounts::of(pid);
    task.pid = u32::try_from(pid.as_raw_nonzero().get()).ok();
    let since = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before.unwrap_or(0)));
    task.wait_ns = since(counts.wait_ns, before.wait_ns);
    task.migrations = since(counts.migrations, before.migrations);
    if task.finish_ns.is_none() && task.start_ns.is_some() {
        // `task` holds what there was at its start. Its dying is included: the same few µs for each.
        let (begin, end) = (task.clone(), proc::usage(pid));
        task.cpu_ns = end.cpu_ns.saturating_sub(begin.cpu_ns);
        task.voluntary_switches = end.voluntary_switches.saturating_sub(begin.voluntary_switches);
        task.involuntary_switches = end.involuntary_switches.saturating_sub(begin.involuntary_switches);
        task.last_cpu = last_cpu;
    }
    task
}

/// How many CPUs the caller may use, which is how many a load may name.
///
/// # Errors
/// When the kernel does not tell.
pub fn usable_cpus() -> Result<u32, ExecError> {
    Ok(Cpus::usable()?.count())
}

/// Puts the caller, and what it will start, into class SCHED_EXT.
///
/// # Errors
/// When the kernel has no such class, or does not let this user.
pub fn enter_ext_class() -> Result<(), ExecError> {
    sys::enter_ext_class().map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => ExecError::NoExtClass,
        _ => system("enter class SCHED_EXT")(error),
    })
}

/// The sched_ext scheduler that is in charge; `None` for the kernel's own.
pub fn scheduler() -> Option<String> {
    proc::sched_ext_scheduler()
}

/// Keeps the caller, and what it will start, on the first CPU that it may use.
///
/// # Errors
/// When the kernel refuses.
pub fn stay_on_one_cpu() -> Result<(), ExecError> {
    Cpus::usable()?.confine(Some(&[0])).map_err(|errno| system("stay on a CPU")(errno.into()))
}

/// The runner must be alone in its process: see `sys::spawn`.
pub(crate) fn check_one_thread() -> Result<(), ExecError> {
    match proc::own_threads() {
        0 | 1 => Ok(()),
        threads => Err(ExecError::ManyThreads { threads }),
    }
}

/// What Linux allows root at most by default (`fs.nr_open`).
const OPEN_FILES_MAX: u64 = 1 << 20;

/// Allows as many open files as the system lets this user have: big loads need more than the usual 1,024.
pub(crate) fn raise_open_files() {
    let most = Rlimit { current: Some(OPEN_FILES_MAX), maximum: Some(OPEN_FILES_MAX) };
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // A load that does not fit all the same says so when it makes its pipes.
    let _ = setrlimit(Resource::Nofile, most).or_else(|_| setrlimit(Resource::Nofile, limit));
}

/// The CPUs that loads may use, numbered from 0 for them.
#[derive(Clone, Debug)]
pub(crate) struct Cpus {
    usable: Vec<u32>,
}

impl Cpus {
    pub(crate) fn usable() -> Result<Self, ExecError> {
        let set = sched_getaffinity(None).map_err(|error| system("see which CPUs are usable")(error.into()))?;
        Ok(Cpus { usable: (0..CpuSet::MAX_CPU as u32).filter(|cpu| set.is_set(*cpu as usize)).collect() })
    }

    pub(crate) fn count(&self) -> u32 {
        self.usable.len() as u32
    }

    /// Allows the caller these CPUs of the load's numbering only, or all.
    pub(crate) fn confine(&self, cpus: Option<&[u32]>) -> Result<(), Errno> {
        let mut set = CpuSet::new();
        match cpus {
            None => self.usable.iter().for_each(|cpu| set.set(*cpu as usize)),
            Some(cpus) => cpus.iter().for_each(|cpu| set.set(self.usable[*cpu as usize] as usize)),
        }
        sched_setaffinity(None, &set)
    }

    fn number_of(&self, machine_cpu: u32) -> Option<u32> {
        self.usable.iter().position(|cpu| *cpu == machine_cpu).map(|number| number as u32)
    }
}

impl RunContext {
    /// The first step that a task could not do, if there is one.
    fn failure(&self, process_group: &ProcessGroup) -> Result<(), ExecError> {
        for (index, member) in process_group.members.iter().enumerate() {
            if let Some(failure) = self.slots.of(index).failure() {
                if matches!(failure.doing, Doing::EnterExtClass) && failure.errno == Errno::INVAL {
                    return Err(ExecError::NoExtClass);
                }
                let (task, source) = (member.name.clone(), io::Error::from(failure.errno));
                return Err(ExecError::Task { task, doing: failure.doing.words(), source });
            }
        }
        Ok(())
    }

    /// Which tasks have not ended; of one that has, its children that have not.
    fn stuck(&self, process_group: &ProcessGroup) -> Vec<Stuck> {
        let mut stuck = process_group.stuck();
        for (index, member) in process_group.members.iter().enumerate() {
            let slot = self.slots.of(index);
            let children = slot.get(Word::Forked).saturating_sub(slot.get(Word::ForkedFinished));
            if slot.get(Word::Finish) > 0 && children > 0 {
                let name = format!("{} (child)", member.name);
                let state = format!("{children} of its children running or waiting");
                stuck.push(Stuck { name, state, cpu_ns: slot.get(Word::ForkedCpu) });
            }
        }
        stuck
    }

    fn died(&self, process_group: &ProcessGroup) -> ExecError {
        let found =
            process_group.members.iter().find_map(|member| Some((member.name.clone(), process_group.bad_end(member)?)));
        let (task, how) = found.unwrap_or_else(|| ("?".into(), "was killed".into()));
        ExecError::Died { task, how }
    }
}
