//! Not much CPU time is wasted in all, however short each piece of it is.
//!
//! Algorithm 2 of papers/002, section 4.1, finds a CPU that stays idle while a task keeps waiting. With some bugs waste takes turns:
//! a CPU is idle for a few milliseconds, then another one, and no task waits for long, but at each moment some CPU is idle
//! beside a task that waits. Here the CPU time that is wasted is added up, window by window. At each moment as many CPUs are
//! wasted as could each run a task of its own that waits for another.
//!
//! Exempt: tasks whose affinity forbids the idle CPUs, tasks of other scheduling classes, CPUs that are offline, and the time after
//! the policy was taken out; a task that waits for a CPU which is idle itself, as that one is about to run it (which the
//! check `kick` is about); and the first moments of a wait, in which balancing may be about to
//! happen. Not seen: waste
//! that is less than the bound in each window, and that of the last window unless it is over the bound as it is.

use std::collections::HashMap;

use ekiden::CpuMask;
use ekiden_trace::Record;

use crate::{Check, TaskName, View, Violation, WasteCurve, WasteWindows};

/// Most tasks that one violation names.
const NAMED: usize = 8;

/// Not much CPU time is wasted in all.
pub struct WastedTime {
    windows: WasteWindows,
    curve: WasteCurve,
    window_ns: u64,
    permille: u32,
    patience_ns: u64,
    /// The time of the record before.
    before_ns: u64,
    /// For how long CPUs were idle in this window while some were wasted, and for how long tasks waited meanwhile.
    idle_ns: Vec<u64>,
    waited_ns: HashMap<u32, (u64, TaskName)>,
}

impl WastedTime {
    /// At most this many thousandths of the CPU time of a window, not counting what a task waits for at first, for `patience_ns`.
    pub fn new(window_ns: u64, permille: u32, patience_ns: u64, nr_cpus: usize) -> Self {
        Self {
            windows: WasteWindows::new(window_ns.max(1)),
            curve: WasteCurve::default(),
            window_ns: window_ns.max(1),
            permille,
            patience_ns,
            before_ns: 0,
            idle_ns: vec![0; nr_cpus],
            waited_ns: HashMap::new(),
        }
    }

    /// From `from_ns` to `to_ns` the machine was as it is in `view`, but that tasks have waited for longer.
    fn add(&mut self, view: &View, mut from_ns: u64, to_ns: u64, found: &mut Vec<Violation>) {
        while view.in_charge && view.may_waste() && from_ns < to_ns {
            // Up to the moment at which the next task has waited for long enough.
            let since_ns = from_ns.checked_sub(self.patience_ns);
            let next_ns = view.next_since_ns(since_ns).unwrap_or(u64::MAX);
            let end_ns = to_ns.min(next_ns.saturating_add(self.patience_ns));
            self.add_part(view, from_ns, end_ns, since_ns, found);
            from_ns = end_ns;
        }
        self.add_part(view, from_ns, to_ns, None, found);
    }

    /// Adds a part of that time in which no other task comes to have waited since `since_ns`.
    fn add_part(&mut self, view: &View, from_ns: u64, to_ns: u64, since_ns: Option<u64>, found: &mut Vec<Violation>) {
        let wasted = since_ns.map_or(0, |since_ns| view.wasted_cpus(since_ns));
        self.curve.add(from_ns, to_ns, wasted);
        let mut windows = self.windows;
        let mut at_ns = from_ns;
        windows.add(from_ns, to_ns, wasted, |begin_ns, sum_ns| {
            let end_ns = begin_ns + self.window_ns;
            self.note(view, end_ns.saturating_sub(at_ns), wasted, since_ns);
            self.judge(view, begin_ns, end_ns, sum_ns, found);
            at_ns = end_ns;
        });
        self.windows = windows;
        self.note(view, to_ns.saturating_sub(at_ns), wasted, since_ns);
    }

    /// The CPUs and tasks that had to do with it.
    fn note(&mut self, view: &View, for_ns: u64, wasted: u32, since_ns: Option<u64>) {
        let Some(since_ns) = since_ns.filter(|_| wasted > 0 && for_ns > 0) else { return };
        view.spare.iter().for_each(|cpu| self.idle_ns[cpu as usize] += for_ns);
        for task in view.left_waiting(since_ns) {
            // It may be gone by the end of the window.
            self.waited_ns.entry(task.pid).or_insert_with(|| (0, view.name(task.pid))).0 += for_ns;
        }
    }

    /// A window is over, or as good as over.
    fn judge(&mut self, view: &View, since_ns: u64, at_ns: u64, sum_ns: u64, found: &mut Vec<Violation>) {
        let idle_ns = std::mem::replace(&mut self.idle_ns, vec![0; view.cpus.len()]);
        let waited_ns = std::mem::take(&mut self.waited_ns);
        let online = view.cpus.iter().filter(|cpu| cpu.online).count().max(1) as u64;
        let all_ns = u128::from(self.window_ns) * u128::from(online);
        if u128::from(sum_ns) * 1_000 <= all_ns * u128::from(self.permille) {
            return;
        }
        let most_ns = idle_ns.iter().copied().max().unwrap_or_default();
        let is_one = |ns: &u64| *ns > 0 && *ns >= most_ns / 10;
        let cpus: CpuMask = (0..).zip(&idle_ns).filter(|(_, ns)| is_one(ns)).map(|(cpu, _)| cpu).collect();
        let mut waited: Vec<(u64, TaskName)> = waited_ns.into_values().collect();
        waited.sort_by(|(one_ns, one), (other_ns, other)| other_ns.cmp(one_ns).then(one.cmp(other)));
        let count = waited.len();
        let tasks: Vec<TaskName> = waited.into_iter().take(NAMED).map(|(_, task)| task).collect();
        let names: Vec<String> = tasks.iter().map(ToString::to_string).collect();
        let more = if count > NAMED { format!(" and {} more", count - NAMED) } else { String::new() };
        found.push(Violation {
            check: self.name(),
            since_ns,
            at_ns,
            message: format!(
                "{:.3} CPU-seconds of {:.3} were wasted, {:.1} %, where {:.1} % are allowed: CPUs {cpus} were idle in turn while others \
                 waited that may run there, most of all {}{more}",
                sum_ns as f64 / 1e9,
                all_ns as f64 / 1e9,
                sum_ns as f64 * 100.0 / all_ns as f64,
                f64::from(self.permille) / 10.0,
                names.join(", "),
            ),
            cpus: cpus.iter().collect(),
            tasks,
        });
    }
}

impl Check for WastedTime {
    fn name(&self) -> &'static str {
        "wasted-time"
    }

    fn record(&mut self, view: &View, _: &Record, found: &mut Vec<Violation>) {
        let from_ns = std::mem::replace(&mut self.before_ns, view.now_ns);
        if from_ns < view.now_ns {
            self.add(view, from_ns, view.now_ns, found);
        }
    }

    fn finish(&mut self, view: &View, found: &mut Vec<Violation>) {
        let (since_ns, sum_ns) = self.windows.unfinished();
        self.judge(view, since_ns, view.now_ns, sum_ns, found);
    }

    fn waste(&self) -> Option<WasteCurve> {
        Some(self.curve.clone())
    }
}
