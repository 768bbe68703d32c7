//! What a live checker has found, in figures and in words.

use std::fmt;

use ekiden::CpuMask;
use ekiden_check::{TaskName, Violation};
use serde::Serialize;

use crate::sysfs;

/// Most tasks that a line names.
const NAMED: usize = 8;

/// CPUs that were idle while tasks waited that could have used them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The scheduler that ran.
    pub scheduler: String,
    /// The idle CPUs.
    pub idle_cpus: Vec<u32>,
    /// The CPUs on which tasks waited.
    pub busy_cpus: Vec<u32>,
    /// The tasks that waited when it was suspected, and at the end.
    pub waiting: Vec<TaskName>,
    /// Real-time tasks behind which all of them waited: then it is not the scheduler's fault.
    pub behind_real_time: Vec<TaskName>,
    /// Whether it is.
    pub is_schedulers_fault: bool,
    /// How long they were watched.
    pub watched_ms: u64,
    /// CPU time wasted meanwhile, if it was added up: then the CPUs were idle, and tasks waited, in turn.
    pub wasted_cpu_ms: Option<u64>,
    /// Records of the evidence that were lost.
    pub records_lost: u64,
    /// How often tasks moved meanwhile, none of which helped.
    pub migrations: u64,
    /// How often tasks were woken up.
    pub wakeups: u64,
    /// How many tasks came.
    pub forks: u64,
    /// How many tasks ended.
    pub exits: u64,
}

impl Finding {
    /// This finding in the words of a trace's checks. Those would not find it if a task ran on the idle CPU for a moment.
    pub(crate) fn violation(&self) -> Violation {
        Violation {
            check: if self.wasted_cpu_ms.is_some() { "wasted-time" } else { "work-conservation" },
            since_ns: 0,
            at_ns: self.watched_ms * 1_000_000,
            cpus: self.idle_cpus.clone(),
            tasks: self.waiting.clone(),
            message: self.to_string(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus = |cpus: &[u32]| cpus.iter().copied().collect::<CpuMask>().to_string();
        let tasks = |tasks: &[TaskName]| {
            let names: Vec<String> = tasks.iter().take(NAMED).map(ToString::to_string).collect();
            let more = tasks.len().saturating_sub(NAMED);
            names.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
        };
        if let Some(wasted_ms) = self.wasted_cpu_ms {
            return write!(
                f,
                "under {} {wasted_ms} ms of CPU time were wasted in {} ms: CPUs {} were idle in turn while on CPUs {} tasks waited that \
                 may run there, most of all {}",
                self.scheduler,
                self.watched_ms,
                cpus(&self.idle_cpus),
                cpus(&self.busy_cpus),
                tasks(&self.waiting),
            );
        }
        write!(
            f,
            "under {} CPUs {} were idle for {} ms while on CPUs {} tasks waited that may run there: {}",
            self.scheduler,
            cpus(&self.idle_cpus),
            self.watched_ms,
            cpus(&self.busy_cpus),
            tasks(&self.waiting),
        )?;
        if !self.is_schedulers_fault {
            write!(
                f,
                "; not the scheduler's fault: they wait behind real-time tasks: {}",
                tasks(&self.behind_real_time)
            )?;
        }
        Ok(())
    }
}

/// The scheduler that runs, in words.
pub fn scheduler() -> String {
    sysfs::scheduler().unwrap_or_else(|| "the kernel's own scheduler".into())
}
