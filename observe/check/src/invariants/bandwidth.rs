//! A group gets no more CPU time than its limit allows.
//!
//! Looked at twenty periods at a time: in those, its tasks get twenty times what they have in one, and once more, because the
//! host's periods may begin elsewhere. Hosts notice that a limit is reached at ticks, so every CPU may add one.
//!
//! Exempt: time from one change of a limit to the end of the twenty periods. Not seen: less CPU time than the limit allows,
//! shares between groups, and tasks that change their group while they run.

use std::collections::BTreeMap;

use ekiden_trace::{Record, What};

use crate::{Check, View, Violation};

/// How many periods are looked at together.
const PERIODS: u64 = 20;

/// What passes between two ticks of the slowest kernel.
const TICK_NS: u64 = 10_000_000;

/// A group gets no more than its limit.
pub struct Bandwidth {
    nr_cpus: u64,
    groups: BTreeMap<u32, Budget>,
    /// The groups of tasks that are in one with a limit.
    of_task: BTreeMap<u32, u32>,
}

/// A group that has a limit.
#[derive(Default)]
struct Budget {
    quota_ns: u64,
    period_ns: u64,
    /// The window began then, and this much was used before the tasks that run now began to.
    since_ns: u64,
    used_ns: u64,
    /// Since when each of its tasks runs.
    running: BTreeMap<u32, u64>,
}

impl Budget {
    /// Counts what the tasks have run up to `now_ns`.
    fn count(&mut self, now_ns: u64) {
        for since_ns in self.running.values_mut() {
            self.used_ns = self.used_ns.saturating_add(now_ns.saturating_sub(*since_ns));
            *since_ns = now_ns;
        }
    }
}

impl Bandwidth {
    /// For a machine of this many CPUs.
    pub fn new(nr_cpus: usize) -> Self {
        Self { nr_cpus: nr_cpus as u64, groups: BTreeMap::new(), of_task: BTreeMap::new() }
    }

    /// Looks at all that is over.
    fn judge(&mut self, now_ns: u64, found: &mut Vec<Violation>) {
        for (group, budget) in self.groups.iter_mut().filter(|(_, budget)| budget.period_ns > 0) {
            let window_ns = PERIODS.saturating_mul(budget.period_ns);
            let mut looked_at = 0;
            while now_ns.saturating_sub(budget.since_ns) >= window_ns {
                let end_ns = budget.since_ns + window_ns;
                budget.count(end_ns);
                let allowed_ns = (PERIODS + 1).saturating_mul(budget.quota_ns).saturating_add(self.nr_cpus * TICK_NS);
                if budget.used_ns > allowed_ns {
                    found.push(Violation {
                        check: "bandwidth",
                        since_ns: budget.since_ns,
                        at_ns: end_ns,
                        cpus: Vec::new(),
                        tasks: Vec::new(),
                        message: format!(
                            "group {group} had {} ms of CPU time in {PERIODS} periods of {} ms; its limit allows {} ms",
                            budget.used_ns / 1_000_000,
                            budget.period_ns / 1_000_000,
                            allowed_ns / 1_000_000
                        ),
                    });
                }
                (budget.since_ns, budget.used_ns) = (end_ns, 0);
                looked_at += 1;
                if looked_at == 2 {
                    // Nothing has happened since, so the rest is like the second.
                    budget.since_ns += (now_ns - end_ns) / window_ns * window_ns;
                    budget.running.values_mut().for_each(|since_ns| *since_ns = budget.since_ns);
                }
            }
        }
    }
}

impl Check for Bandwidth {
    fn name(&self) -> &'static str {
        "bandwidth"
    }

    fn record(&mut self, view: &View, record: &Record, found: &mut Vec<Violation>) {
        let (Record { cpu: piece, what, pid, value, .. }, now_ns) = (*record, view.now_ns);
        self.judge(now_ns, found);
        match (what, piece) {
            (What::Limit, 0) => {
                let running = self.groups.remove(&pid).unwrap_or_default().running;
                let running = running.into_keys().map(|pid| (pid, now_ns)).collect();
                self.groups.insert(pid, Budget { quota_ns: value, since_ns: now_ns, running, ..Budget::default() });
            }
            (What::Limit, _) => {
                if let Some(budget) = self.groups.get_mut(&pid) {
                    budget.period_ns = value;
                }
            }
            (What::Group, _) => {
                self.of_task.remove(&pid);
                if self.groups.contains_key(&(value as u32)) {
                    self.of_task.insert(pid, value as u32);
                }
            }
            (What::Run | What::Preempt | What::Block | What::Throttle | What::Exit, _) => {
                let Some(budget) = self.of_task.get(&pid).and_then(|group| self.groups.get_mut(group)) else { return };
                budget.count(now_ns);
                budget.running.remove(&pid);
                if what == What::Run {
                    budget.running.insert(pid, now_ns);
                } else if what == What::Exit {
                    self.of_task.remove(&pid);
                }
            }
            _ => {}
        }
    }
}
