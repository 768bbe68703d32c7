//! Algorithm 2 of papers/002, section 4.1, on the kernel of this machine, under whichever scheduler.
//!
//! A look at the run queues costs a few instructions per CPU. Only if a CPU is idle while a task waits that could use it, and
//! is so still a moment later, is everything recorded that happens in M, and judged by the code that judges traces; and only
//! if the run queues are still like that afterwards is it a finding. Otherwise nothing hangs on the kernel.

use std::{fmt, time::Duration};

use ekiden::CpuMask;
use ekiden_check::{Check, Checker, CpuSeen, Limits, TaskName, Waste, invariants::WorkConservation};
use ekiden_trace::{Header, Record, Trace, What};
use serde::Serialize;

use crate::{Recorder, Result, sysfs};

/// Memory for what happens while a suspicion is watched.
const RING_BYTES: u32 = 32 << 20;

/// Evidence beyond the time that makes it one, as in papers/002.
const EVIDENCE: Duration = Duration::from_millis(20);

/// Within a recording, the check looks for when it began this often.
const STEP_NS: u64 = 5_000_000;

/// Most tasks that a line names.
const NAMED: usize = 8;

/// Looks for wasted CPUs.
pub struct LiveChecker {
    recorder: Recorder,
    persists: Duration,
    /// What was done so far.
    pub counts: LookCounts,
}

/// What a [`LiveChecker`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LookCounts {
    /// Looks at the run queues.
    pub looks: u64,
    /// Those that found an idle CPU and a waiting task.
    pub suspicions: u64,
    /// Those of them that were worth watching.
    pub watched: u64,
}

/// CPUs that were idle while tasks waited that could have used them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Who scheduled.
    pub scheduler: String,
    /// The idle CPUs.
    pub idle_cpus: Vec<u32>,
    /// The CPUs on which tasks waited.
    pub busy_cpus: Vec<u32>,
    /// Those that waited at the end.
    pub waiting: Vec<TaskName>,
    /// Real-time tasks behind which all of them waited: then it is not the scheduler's fault.
    pub behind_real_time: Vec<TaskName>,
    /// Whether it is.
    pub is_schedulers_fault: bool,
    /// How long they were watched.
    pub watched_ms: u64,
    /// What was lost of the evidence.
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

/// A finding, and what happened meanwhile.
#[derive(Debug)]
pub struct Evidence {
    /// What was found.
    pub finding: Finding,
    /// Of the trace.
    pub header: Header,
    /// What happened, from right after the suspicion on.
    pub trace: Trace,
    /// With these, the checks find it in the trace.
    pub limits: Limits,
}

/// Waits; whether to go on. A signal ends the wait.
pub type Pause<'a> = &'a mut dyn FnMut(Duration) -> bool;

impl LiveChecker {
    /// Loads the programs. A CPU is wasted if it is idle for `persists`, M of papers/002, while tasks wait.
    ///
    /// # Errors
    /// Without privilege, without BTF, and where the kernel does not take the programs.
    pub fn load(persists: Duration) -> Result<Self> {
        Ok(Self { recorder: Recorder::load(RING_BYTES)?, persists, counts: LookCounts::default() })
    }

    /// Looks once, and watches if there is something to watch; then it takes a bit longer than M.
    ///
    /// # Errors
    /// When the kernel does not run the programs.
    pub fn look(&mut self, pause: Pause<'_>) -> Result<Option<Evidence>> {
        self.counts.looks += 1;
        if !self.recorder.look().is_suspicious()? {
            return Ok(None);
        }
        self.counts.suspicions += 1;
        if !self.is_worth_watching(pause)? {
            return Ok(None);
        }
        self.counts.watched += 1;
        self.watch(pause)
    }

    /// Whether a CPU stays idle for a tenth of M, and another crowded: most suspicions are over by then.
    fn is_worth_watching(&mut self, pause: Pause<'_>) -> Result<bool> {
        let before = self.recorder.look().snapshot(false)?;
        let Some(waste) = before.waste() else { return Ok(false) };
        if !pause(self.persists / 10) {
            return Ok(false);
        }
        let now = self.recorder.look().cpus()?;
        let switches = |cpus: &[CpuSeen], cpu: u32| cpus.get(cpu as usize).map_or(0, |cpu| cpu.nr_switches);
        // Twice when it was this thread that went to sleep there and got up.
        let is_still_idle = |cpu: u32| switches(&now, cpu) - switches(&before.cpus, cpu) <= 2;
        let is_still_crowded = |cpu: u32| now.get(cpu as usize).is_some_and(|cpu| cpu.nr_running > 1);
        Ok(waste.idle.iter().any(is_still_idle) && waste.busy.iter().any(is_still_crowded))
    }

    fn watch(&mut self, pause: Pause<'_>) -> Result<Option<Evidence>> {
        let Self { recorder, persists, .. } = self;
        // The checks ask for a name; without one, they would think that nobody is in charge.
        let header = Header { policy: Some(scheduler()), ..recorder.header("a live machine")? };
        let mut trace = Trace::new(&header);
        let mut keep = |record| trace.push(record);
        recorder.begin(&mut keep)?;
        let before = recorder.look().snapshot(false)?;
        // In one piece: whoever gets up meanwhile is in the way of what it looks for.
        let is_whole = pause(*persists + EVIDENCE);
        let after = recorder.look().snapshot(false)?;
        let lost = recorder.end(&mut keep)?;
        let limits = Limits { every_ns: STEP_NS, persists_ns: persists.as_nanos() as u64, ..Limits::default() };
        let waste = before.waste().zip(after.waste()).filter(|_| is_whole);
        let finding = waste
            .and_then(|(before, after)| judge(&header, &trace, &limits, &before, &after))
            .map(|finding| Finding { records_lost: lost, ..finding });
        Ok(finding.map(|finding| Evidence { finding, header, trace, limits }))
    }
}

/// A finding, if the trace and the run queues at its two ends agree. The trace alone knows no cpusets, limits and
/// isolated CPUs; the run queues alone do not know what was between.
fn judge(header: &Header, trace: &Trace, limits: &Limits, before: &Waste, at_end: &Waste) -> Option<Finding> {
    let check: Box<dyn Check> = Box::new(WorkConservation::new(limits.every_ns, limits.persists_ns));
    let mut checker = Checker::with(header, vec![check]);
    let mut counts = [0; 4];
    let mut last_ns = 0;
    // A CPU on which nobody runs but this thread is idle as soon as it sleeps.
    let this = nix::unistd::gettid().as_raw() as u32;
    for record in trace.records() {
        if record.pid != this {
            checker.record(&record);
        }
        last_ns = record.time_ns;
        let kind = [What::Migrate, What::Wake, What::New, What::Exit].iter().position(|what| *what == record.what);
        // Those that were there are new in the trace at its beginning.
        if let Some(kind) = kind.filter(|_| record.time_ns > 0) {
            counts[kind] += 1;
        }
    }
    // So that the check looks once more where nothing happens any more.
    let end_ns = last_ns.max(limits.persists_ns + STEP_NS);
    checker.record(&Record { time_ns: end_ns, cpu: 0, what: What::Timer, pid: 0, value: 0 });
    let violations = checker.finish();
    let seen = |cpu: &u32| violations.iter().any(|violation| violation.cpus.contains(cpu));
    let idle_cpus: Vec<u32> = at_end.idle.iter().filter(seen).collect();
    let busy_cpus: Vec<u32> = at_end.busy.iter().filter(seen).collect();
    if idle_cpus.is_empty() || busy_cpus.is_empty() {
        return None;
    }
    let is_excused = !before.behind.is_empty() && !at_end.behind.is_empty();
    let [migrations, wakeups, forks, exits] = counts;
    Some(Finding {
        scheduler: header.policy.clone().unwrap_or_default(),
        idle_cpus,
        busy_cpus,
        waiting: at_end.waiting.clone(),
        behind_real_time: if is_excused { at_end.behind.clone() } else { Vec::new() },
        is_schedulers_fault: !is_excused,
        watched_ms: end_ns / 1_000_000,
        records_lost: 0,
        migrations,
        wakeups,
        forks,
        exits,
    })
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus = |cpus: &[u32]| cpus.iter().copied().collect::<CpuMask>().to_string();
        let tasks = |tasks: &[TaskName]| {
            let names: Vec<String> = tasks.iter().take(NAMED).map(ToString::to_string).collect();
            let more = tasks.len().saturating_sub(NAMED);
            names.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
        };
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

/// Who schedules, in words.
pub fn scheduler() -> String {
    sysfs::scheduler().unwrap_or_else(|| "the kernel's own scheduler".into())
}
