//! Tasks that are runnable all the time on one CPU get CPU time by their weights.
//!
//! Looked at a second at a time, on each CPU whose runnable tasks stay the same throughout: what each one ran is compared
//! with its share by weight.
//!
//! Exempt: seconds in which a task comes, leaves, or changes its nice value, and tasks of other classes. Not seen:
//! unfairness between CPUs, and between tasks that sleep.

use std::collections::BTreeMap;

use ekiden_trace::{At, Record, What};

use crate::{Check, View, Violation};

const WINDOW_NS: u64 = 1_000_000_000;

/// Tasks of one CPU get CPU time by their weights.
pub struct FairnessLag {
    lag_ns: u64,
    cpus: Vec<Window>,
}

/// A time in which the same tasks were runnable on a CPU.
#[derive(Clone, Default)]
struct Window {
    since_ns: u64,
    /// What each of them had run when it began.
    ran_ns: BTreeMap<u32, u64>,
}

impl FairnessLag {
    /// With the most that a task may be off, in nanoseconds of CPU time in a second.
    pub fn new(lag_ns: u64, nr_cpus: usize) -> Self {
        Self { lag_ns, cpus: vec![Window::default(); nr_cpus] }
    }

    fn begin(&mut self, view: &View, cpu: u32) {
        let waiting = view.queues[cpu as usize].waiting.iter().copied();
        let here = waiting.chain(view.cpus[cpu as usize].running);
        let window = &mut self.cpus[cpu as usize];
        window.since_ns = view.now_ns;
        window.ran_ns = here.map(|pid| (pid, view.ran_ns(pid))).collect();
    }

    fn judge(&self, view: &View, cpu: u32, found: &mut Vec<Violation>) {
        let window = &self.cpus[cpu as usize];
        let weight = |pid| view.task(pid).map_or(0, |task| u64::from(ekiden::weight_of_nice(task.nice)));
        let ran_ns = |pid: u32, before: u64| view.ran_ns(pid).saturating_sub(before);
        // Wider than any clock: a damaged trace may have it that one CPU runs several tasks for centuries.
        let (mut all_ns, mut weights) = (0_u128, 0);
        for (pid, before) in &window.ran_ns {
            all_ns += u128::from(ran_ns(*pid, *before));
            weights += weight(*pid);
        }
        for (pid, before) in &window.ran_ns {
            let fair_ns = (all_ns * u128::from(weight(*pid)) / u128::from(weights.max(1))) as u64;
            let got_ns = ran_ns(*pid, *before);
            if got_ns.abs_diff(fair_ns) > self.lag_ns {
                let task = view.name(*pid);
                found.push(Violation {
                    check: self.name(),
                    since_ns: window.since_ns,
                    at_ns: view.now_ns,
                    cpus: vec![cpu],
                    message: format!(
                        "{task} ran {} ms on CPU {cpu} where {} ms were its share; {} ms off are allowed",
                        got_ns / 1_000_000,
                        fair_ns / 1_000_000,
                        self.lag_ns / 1_000_000
                    ),
                    tasks: vec![task],
                });
            }
        }
    }
}

impl Check for FairnessLag {
    fn name(&self) -> &'static str {
        "fairness"
    }

    fn record(&mut self, view: &View, record: &Record, found: &mut Vec<Violation>) {
        let Record { cpu, what, pid, .. } = *record;
        let of_task = view.task(pid).map(|task| task.at);
        let concerned = match (what, of_task) {
            // It stays among those that are runnable here, or joins them.
            (What::Enqueue | What::Run | What::Keep | What::Tick, _) => cpu,
            (What::Block | What::Exit, Some(At::Running(cpu))) => cpu,
            (What::Nice | What::Depart, Some(At::Running(cpu) | At::Waiting(cpu))) => cpu,
            (What::Migrate, _) => record.value as u32,
            _ => return,
        };
        let Some(window) = self.cpus.get(concerned as usize) else { return };
        let leaves = matches!(what, What::Block | What::Exit | What::Nice | What::Depart | What::Migrate);
        let joins = what == What::Enqueue && !window.ran_ns.contains_key(&pid);
        if leaves || joins {
            self.begin(view, concerned);
            let window = &mut self.cpus[concerned as usize];
            if leaves {
                window.ran_ns.remove(&pid);
            } else {
                window.ran_ns.insert(pid, view.ran_ns(pid));
            }
        } else if view.now_ns - window.since_ns >= WINDOW_NS {
            self.judge(view, concerned, found);
            self.begin(view, concerned);
            // Between two records of one switch, the one that ran is in neither place.
            self.cpus[concerned as usize].ran_ns.entry(pid).or_insert_with(|| view.ran_ns(pid));
        }
    }
}
