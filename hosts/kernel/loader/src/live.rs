//! Algorithm 2 of papers/002, section 4.1, on the kernel of this machine, under whichever scheduler.
//!
//! A look at the run queues costs a few instructions per CPU. Only if a CPU is idle while a task waits that could use it, and
//! is so still a moment later, is everything recorded that tracepoints tell in M, and looked through; and only if that did not
//! help, and the run queues are still like that afterwards, is it a finding. Then some evidence is recorded, with what balancing
//! looks at, which costs far more. Otherwise nothing hangs on the kernel.

use std::{collections::HashMap, mem, ops::Range, time::Duration};

use ekiden::CpuMask;
use ekiden_check::{CpuSeen, Snapshot, TaskName, View, Violation, Waste, WasteWindows};
use ekiden_trace::{At, Header, Record, Trace, What};
use serde::Serialize;

use crate::{
    Budgets, Recorder, Result,
    finding::{Finding, scheduler},
    sysfs,
};

/// Memory of each CPU for what happens while a suspicion is watched: a million records a second.
const RING_BYTES: u32 = 4 << 20;

/// Evidence once it is a finding, as in papers/002.
const EVIDENCE: Duration = Duration::from_millis(20);

/// Most looks of that length until an idle CPU has balanced: the kernel leaves up to 100 ms for each CPU between two times.
const EVIDENCES: u32 = 12;

/// How often to look at a suspicion before it is watched.
const LOOKS: u32 = 10;

/// In how many of these looks a CPU may be otherwise: each look wakes up other tasks, just where a CPU is idle.
const SLIPS: u32 = 3;

/// How often a CPU may have switched from one such look to the next and still have been idle: beside many threads that sleep and wake up
/// all the time, one is seen idle in most looks and has run thousands of them in between.
const SWITCHES: u64 = 40;

/// How much of the time a CPU has to be idle, and another crowded.
const MOSTLY: f64 = 0.9;

/// How often to look while it is added up what is wasted.
pub const SAMPLE: Duration = Duration::from_millis(20);

/// In how many such looks something has to be wasted, at least: a few see by chance what is over at once.
const WASTED_LOOKS: u64 = 5;

/// How often to look for a moment at which it is worth while to look at all tasks.
const TRIES: u32 = 5;

/// Looks for wasted CPUs.
pub struct LiveChecker {
    recorder: Recorder,
    budgets: Budgets,
    persists: Duration,
    sum: Option<Sum>,
    /// Counts of the looks so far.
    pub counts: LookCounts,
}

/// How much CPU time may be wasted in pieces that are too short to be found one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Over how long it is added up.
    pub window: Duration,
    /// How much of the CPU time of that, in thousandths.
    pub permille: u32,
    /// How long a task has waited before it counts.
    pub patience: Duration,
}

/// What a [`LiveChecker`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LookCounts {
    /// Looks at the run queues.
    pub looks: u64,
    /// Looks that found an idle CPU and a waiting task.
    pub suspicions: u64,
    /// Suspicions that were worth watching.
    pub watched: u64,
    /// Suspicions after which it was added up what is wasted.
    pub added_up: u64,
}

/// A finding, and what happened meanwhile.
#[derive(Debug)]
pub struct Evidence {
    /// The finding.
    pub finding: Finding,
    /// What the trace is of.
    pub header: Header,
    /// What happened while it was watched, and in the time of the evidence right behind that. What was between the two is
    /// at one moment, and what the thread that looked did itself is left out.
    pub trace: Trace,
    /// The finding as a violation, in times of the trace.
    pub violation: Violation,
}

/// Waits; whether to go on. A signal ends the wait.
pub type Pause<'a> = &'a mut dyn FnMut(Duration) -> bool;

impl LiveChecker {
    /// Loads the programs. A CPU is wasted if it is idle for `persists`, M of papers/002, while tasks wait.
    ///
    /// # Errors
    /// Without privilege, without BTF, and where the kernel does not take the programs.
    pub fn load(persists: Duration) -> Result<Self> {
        let (recorder, budgets) = (Recorder::load(RING_BYTES)?, Budgets::default());
        Ok(Self { recorder, budgets, persists, sum: None, counts: LookCounts::default() })
    }

    /// Has what is wasted added up, too, when a look is suspicious and no CPU stays idle: that takes a look at the run queues every
    /// [`SAMPLE`] for the length of a window, and one at the tasks that run or wait where a CPU is idle.
    #[must_use]
    pub fn adding_up(self, sum: Sum) -> Self {
        Self { sum: Some(sum), ..self }
    }

    /// Looks once, and watches if there is something to watch; then it takes longer than M.
    ///
    /// # Errors
    /// When the kernel does not run the programs.
    pub fn look(&mut self, pause: Pause<'_>) -> Result<Option<Evidence>> {
        self.counts.looks += 1;
        if !self.recorder.look().is_suspicious()? {
            return Ok(None);
        }
        self.counts.suspicions += 1;
        if let Some(before) = self.worth_watching(pause)? {
            self.counts.watched += 1;
            if let Some(evidence) = self.watch(before, pause)? {
                return Ok(Some(evidence));
            }
        }
        match self.sum {
            Some(sum) => self.add_up(sum, pause),
            None => Ok(None),
        }
    }

    /// Looks again and again for the length of a window, and adds up what is wasted.
    fn add_up(&mut self, sum: Sum, pause: Pause<'_>) -> Result<Option<Evidence>> {
        self.counts.added_up += 1;
        let begin_ns = self.recorder.elapsed_ns();
        let mut seen = Wasted::new(sum);
        self.budgets.used_up(&self.recorder.look().snapshot(false)?);
        while !seen.is_full() {
            if !pause(SAMPLE) {
                return Ok(None);
            }
            let at_ns = self.recorder.elapsed_ns().saturating_sub(begin_ns);
            let now = if self.recorder.look().is_suspicious()? {
                self.recorder.look().snapshot(false)?
            } else {
                Snapshot { cpus: self.recorder.look().cpus()?, tasks: Vec::new() }
            };
            let used_up = self.budgets.used_up(&now);
            seen.see(at_ns, &now.without(&used_up));
        }
        let Some(finding) = seen.finding() else { return Ok(None) };
        // What it looks like from here on: it does not end, or it would not have been so much.
        let header = Header { policy: Some(scheduler()), clock_ns: 0, ..self.recorder.header("a live machine")? };
        let mut trace = Trace::new(&header);
        self.recorder.begin_small(&mut by_others(&mut trace))?;
        pause(self.persists);
        let records_lost = self.recorder.end(&mut by_others(&mut trace));
        let trace = self.recorder.with_sleepers(&header, &trace, |time_ns| time_ns)?;
        let finding = Finding { records_lost, ..finding };
        Ok(Some(Evidence { violation: finding.violation(), finding, header, trace }))
    }

    /// A snapshot with waste that lasts for M in most looks at CPUs, which cost next to nothing: which
    /// tasks run and wait where takes a look at every task, and to watch costs far more.
    fn worth_watching(&mut self, pause: Pause<'_>) -> Result<Option<Snapshot>> {
        let mut lasting = Lasting::default();
        for look in 0..LOOKS {
            if look > 0 && !pause(self.persists / LOOKS) {
                return Ok(None);
            }
            lasting.see(&self.recorder.look().cpus()?);
            if lasting.idle().next().is_none() || lasting.crowded().next().is_none() {
                return Ok(None);
            }
        }
        let is_it = |now: &Snapshot| {
            let Some(waste) = now.waste() else { return false };
            lasting.idle().any(|cpu| waste.idle.contains(cpu)) && lasting.crowded().any(|cpu| waste.busy.contains(cpu))
        };
        self.wasteful(pause).map(|now| now.filter(is_it))
    }

    /// A snapshot with waste now, or in a moment: an idle CPU may run a task for a moment.
    fn wasteful(&mut self, pause: Pause<'_>) -> Result<Option<Snapshot>> {
        for _ in 0..TRIES {
            if self.recorder.look().is_suspicious()? {
                let now = self.recorder.look().snapshot(false)?;
                return Ok(now.waste().is_some().then_some(now));
            }
            if !pause(self.persists / 50) {
                break;
            }
        }
        Ok(None)
    }

    fn watch(&mut self, before: Snapshot, pause: Pause<'_>) -> Result<Option<Evidence>> {
        // The checks ask for a name; without one, they would take it that no scheduler is in charge.
        let header = Header { policy: Some(scheduler()), clock_ns: 0, ..self.recorder.header("a live machine")? };
        let mut trace = Trace::new(&header);
        self.recorder.begin_small(&mut by_others(&mut trace))?;
        let found = self.find(&header, &mut trace, before, pause);
        let gathered = if let Ok(Some((_, finding))) = &found {
            self.gather(&mut trace, &finding.idle_cpus, pause)
        } else {
            Ok(0)
        };
        let records_lost = self.recorder.end(&mut by_others(&mut trace));
        let resumed_ns = gathered?;
        let Some((during, finding)) = found? else { return Ok(None) };
        let finding = Finding { records_lost, ..finding };
        // The clock stands still while this thread is awake, and others are on this CPU only because of it.
        let clock =
            |time_ns: u64| time_ns.clamp(during.start, during.end) - during.start + time_ns.saturating_sub(resumed_ns);
        let trace = self.recorder.with_sleepers(&header, &trace, clock)?;
        Ok(Some(Evidence { violation: finding.violation(), finding, header, trace }))
    }

    /// A finding, and of which time, if it was so for M and still is.
    fn find(
        &mut self,
        header: &Header,
        trace: &mut Trace,
        before: Snapshot,
        pause: Pause<'_>,
    ) -> Result<Option<(Range<u64>, Finding)>> {
        // To attach programs keeps kernel threads busy for a moment, just where a CPU was idle.
        if !pause(self.persists / 10) {
            return Ok(None);
        }
        // From here on it is counted what groups use.
        self.budgets.used_up(&before);
        let from_ns = self.recorder.elapsed_ns();
        // In one sleep: a wake-up of this thread meanwhile would disturb what it looks for.
        if !pause(self.persists) {
            return Ok(None);
        }
        let during = from_ns..self.recorder.elapsed_ns();
        // Whether the CPU was idle all in all, the trace knows.
        let Some(after) = self.wasteful(pause)? else { return Ok(None) };
        self.recorder.take_all(&mut by_others(trace));
        let used_up = self.budgets.used_up(&after);
        let [Some(before), Some(after)] = [before, after].map(|then| then.without(&used_up).waste()) else {
            return Ok(None);
        };
        Ok(judge(header, trace, during.clone(), &before, &after).map(|finding| (during, finding)))
    }

    /// Evidence, with what programs on functions tell: to attach them costs several times as much as the rest of a watch. Returns
    /// when it begins. If the kernel balances, it lasts until one of the idle CPUs has looked for work.
    fn gather(&mut self, trace: &mut Trace, idle: &[u32], pause: Pause<'_>) -> Result<u64> {
        self.recorder.attach_functions()?;
        // Makes room for the rest.
        self.recorder.take(&mut by_others(trace));
        // The pause before M. The evidence by then is enough if a signal ends this.
        pause(self.persists / 10);
        let from_ns = self.recorder.elapsed_ns();
        let mut has_looked = !sysfs::kernel_balances();
        for _ in 0..EVIDENCES {
            let goes_on = pause(EVIDENCE);
            let mut take = by_others(trace);
            self.recorder.take(&mut |record| {
                has_looked |= record.what == What::Kick && record.time_ns >= from_ns && idle.contains(&record.cpu);
                take(record);
            });
            if has_looked || !goes_on {
                break;
            }
        }
        Ok(from_ns)
    }
}

/// Records what threads other than this one do: a CPU on which only this one runs is idle as soon
/// as it sleeps, and what it looks at and attaches is no evidence.
fn by_others(trace: &mut Trace) -> impl FnMut(Record) {
    let this = nix::unistd::gettid().as_raw() as u32;
    move |record| {
        if record.pid != this {
            trace.push(record);
        }
    }
}

/// Waste in the looks of a window.
#[derive(Debug)]
struct Wasted {
    sum: Sum,
    windows: WasteWindows,
    before_ns: u64,
    /// Looks in which something was.
    looks: u64,
    full_ns: Option<u64>,
    online: u64,
    idle: HashMap<u32, u64>,
    busy: CpuMask,
    waiting: HashMap<TaskName, u64>,
}

impl Wasted {
    fn new(sum: Sum) -> Self {
        let window_ns = (sum.window.as_nanos() as u64).max(1);
        Self {
            sum,
            windows: WasteWindows::new(window_ns),
            before_ns: 0,
            looks: 0,
            full_ns: None,
            online: 0,
            idle: HashMap::new(),
            busy: CpuMask::new(),
            waiting: HashMap::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.before_ns >= self.sum.window.as_nanos() as u64
    }

    /// A look stands for the time since the one before.
    fn see(&mut self, at_ns: u64, now: &Snapshot) {
        let wasted = now.wasted_cpus(self.sum.patience.as_nanos() as u64);
        let full_ns = &mut self.full_ns;
        self.windows.add(self.before_ns, at_ns, wasted, |_, sum_ns| *full_ns = full_ns.or(Some(sum_ns)));
        self.before_ns = self.before_ns.max(at_ns);
        self.online = now.cpus.iter().filter(|cpu| cpu.is_usable()).count() as u64;
        if let Some(waste) = now.waste().filter(|_| wasted > 0) {
            self.looks += 1;
            waste.idle.iter().for_each(|cpu| *self.idle.entry(cpu).or_default() += 1);
            waste.busy.iter().for_each(|cpu| self.busy.set(cpu));
            waste.waiting.into_iter().for_each(|task| *self.waiting.entry(task).or_default() += 1);
        }
    }

    /// A finding, if it was more than it may be.
    fn finding(&self) -> Option<Finding> {
        let sum_ns = self.full_ns.unwrap_or_default();
        let all_ns = self.sum.window.as_nanos() * u128::from(self.online);
        let is_much = u128::from(sum_ns) * 1_000 > all_ns * u128::from(self.sum.permille);
        if !is_much || self.looks < WASTED_LOOKS {
            return None;
        }
        let mut idle_cpus: Vec<u32> = self.idle.keys().copied().collect();
        idle_cpus.sort_unstable();
        let mut waiting: Vec<(&TaskName, &u64)> = self.waiting.iter().collect();
        waiting.sort_by(|(one, one_looks), (other, other_looks)| other_looks.cmp(one_looks).then(one.cmp(other)));
        Some(Finding {
            scheduler: scheduler(),
            idle_cpus,
            busy_cpus: self.busy.iter().collect(),
            waiting: waiting.into_iter().map(|(task, _)| task.clone()).collect(),
            behind_real_time: Vec::new(),
            is_schedulers_fault: true,
            watched_ms: self.sum.window.as_millis() as u64,
            wasted_cpu_ms: Some(sum_ns / 1_000_000),
            records_lost: 0,
            migrations: 0,
            wakeups: 0,
            forks: 0,
            exits: 0,
        })
    }
}

/// How often each CPU was idle, and how often crowded, in the looks so far.
#[derive(Debug, Default)]
struct Lasting {
    looks: u32,
    idle: Vec<u32>,
    crowded: Vec<u32>,
    nr_switches: Vec<u64>,
}

impl Lasting {
    fn see(&mut self, cpus: &[CpuSeen]) {
        self.looks += 1;
        self.idle.resize(cpus.len(), 0);
        self.crowded.resize(cpus.len(), 0);
        let before = mem::replace(&mut self.nr_switches, cpus.iter().map(|cpu| cpu.nr_switches).collect());
        for (index, cpu) in cpus.iter().enumerate().filter(|(_, cpu)| cpu.is_usable()) {
            let switched = before.get(index).map_or(0, |before| cpu.nr_switches.wrapping_sub(*before));
            self.idle[index] += u32::from(cpu.is_idle && switched <= SWITCHES);
            self.crowded[index] += u32::from(!cpu.is_idle && cpu.nr_running > 1);
        }
    }

    /// The CPUs that were idle all in all.
    fn idle(&self) -> impl Iterator<Item = u32> {
        self.most(&self.idle)
    }

    /// The CPUs that were crowded.
    fn crowded(&self) -> impl Iterator<Item = u32> {
        self.most(&self.crowded)
    }

    fn most<'a>(&self, counts: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        let looks = self.looks;
        (0..).zip(counts).filter(move |(_, count)| **count + SLIPS >= looks).map(|(cpu, _)| cpu)
    }
}

/// A finding, if the trace and the run queues at its two ends agree. The trace alone knows no cpusets, limits and
/// isolated CPUs; the run queues alone do not know what was between. A kernel thread that runs for a moment on an idle CPU
/// changes nothing about its being wasted; a waiting task that moves there does.
fn judge(header: &Header, trace: &Trace, during: Range<u64>, before: &Waste, at_end: &Waste) -> Option<Finding> {
    let mut view = View::new(header);
    let (mut counts, mut last_ns) = ([0; 4], during.start);
    let mut idle_ns = vec![0; header.cpus.len()];
    let mut crowded_ns = idle_ns.clone();
    let mut pass = |view: &View, time_ns: u64| {
        let passed_ns = time_ns.saturating_sub(last_ns);
        for (cpu, idle_ns) in view.cpus.iter().zip(&mut idle_ns) {
            *idle_ns += if cpu.running.is_none() { passed_ns } else { 0 };
        }
        for (queue, crowded_ns) in view.queues.iter().zip(&mut crowded_ns) {
            *crowded_ns += if queue.waiting.is_empty() { 0 } else { passed_ns };
        }
        last_ns = last_ns.max(time_ns);
    };
    let mut helped = CpuMask::new();
    for record in trace.records().filter(|record| record.time_ns <= during.end) {
        pass(&view, record.time_ns);
        // Not one that is woken up there: it did not wait.
        let waited = |pid| matches!(view.at(pid), At::Waiting(_));
        if record.what == What::Migrate && waited(record.pid) && before.busy.contains(record.value as u32) {
            helped.set(record.cpu);
        }
        view.apply(&record);
        let kind = [What::Migrate, What::Wake, What::New, What::Exit].iter().position(|what| *what == record.what);
        if let Some(kind) = kind.filter(|_| during.contains(&record.time_ns)) {
            counts[kind] += 1;
        }
    }
    pass(&view, during.end);
    let all_ns = during.end.saturating_sub(during.start);
    let mostly = |times_ns: &[u64], cpu: u32| {
        let time_ns = times_ns.get(cpu as usize).copied().unwrap_or_default();
        all_ns > 0 && time_ns as f64 >= MOSTLY * all_ns as f64
    };
    let is_wasted = |cpu: &u32| before.idle.contains(*cpu) && !helped.contains(*cpu) && mostly(&idle_ns, *cpu);
    let idle_cpus: Vec<u32> = at_end.idle.iter().filter(is_wasted).collect();
    let is_crowded = |cpu: &u32| before.busy.contains(*cpu) && mostly(&crowded_ns, *cpu);
    let busy_cpus: Vec<u32> = at_end.busy.iter().filter(is_crowded).collect();
    if idle_cpus.is_empty() || busy_cpus.is_empty() {
        return None;
    }
    let is_excused = !before.behind.is_empty() && !at_end.behind.is_empty();
    let [migrations, wakeups, forks, exits] = counts;
    let mut waiting = [&before.waiting[..], &at_end.waiting].concat();
    waiting.sort();
    waiting.dedup();
    Some(Finding {
        scheduler: header.policy.clone().unwrap_or_default(),
        idle_cpus,
        busy_cpus,
        waiting,
        behind_real_time: if is_excused { at_end.behind.clone() } else { Vec::new() },
        is_schedulers_fault: !is_excused,
        watched_ms: all_ns / 1_000_000,
        wasted_cpu_ms: None,
        records_lost: 0,
        migrations,
        wakeups,
        forks,
        exits,
    })
}

#[cfg(test)]
mod tests {
    use ekiden_check::TaskSeen;

    use super::*;

    /// Ten looks, 100 ms apart; in this many of them another CPU is idle beside two tasks on CPU 0.
    fn wasted_in(looks: u32, permille: u32) -> Option<Finding> {
        let sum = Sum { window: Duration::from_secs(1), permille, patience: Duration::from_millis(1) };
        let mut wasted = Wasted::new(sum);
        for look in 0..10 {
            let idle = if look < looks { 1 + look % 3 } else { 9 };
            let cpu = |cpu| CpuSeen {
                cpu,
                is_online: true,
                is_idle: cpu == idle,
                nr_running: if cpu == 0 { 2 } else { u32::from(cpu != idle) },
                ..CpuSeen::default()
            };
            let task = TaskSeen {
                pid: 7,
                is_waiting: true,
                prio: 120,
                waits_ns: 2_000_000,
                waited_ns: 2_000_000,
                allowed: CpuMask::first_n(4),
                ..TaskSeen::default()
            };
            wasted.see(
                u64::from(look + 1) * 100_000_000,
                &Snapshot { cpus: (0..4).map(cpu).collect(), tasks: vec![task] },
            );
        }
        assert!(wasted.is_full());
        wasted.finding()
    }

    #[test]
    fn waste_that_takes_turns_is_added_up_over_looks() {
        let finding = wasted_in(6, 149).expect("600 ms of 4 s are wasted");
        assert_eq!((finding.wasted_cpu_ms, finding.idle_cpus.as_slice()), (Some(600), &[1, 2, 3][..]));
        assert!(finding.to_string().contains("600 ms of CPU time were wasted in 1000 ms: CPUs 1-3"), "{finding}");
        assert_eq!(finding.violation().check, "wasted-time");
        assert_eq!(wasted_in(6, 150), None, "as much may be");
        assert_eq!(wasted_in(4, 1), None, "a few looks may see it by chance");
    }

    #[test]
    fn a_cpu_that_is_idle_at_each_look_and_busy_in_between_is_not_idle() {
        let cpu = |cpu, nr_switches| CpuSeen { cpu, nr_switches, is_online: true, is_idle: true, ..CpuSeen::default() };
        let mut lasting = Lasting::default();
        (0..10).for_each(|look| lasting.see(&[cpu(0, 1_000 + 2 * look), cpu(1, 1_000 * look)]));
        assert_eq!(lasting.idle().collect::<Vec<_>>(), [0]);
    }
}
