//! What a trace comes to: how often tasks switched and moved, and how long they waited, whoever wrote it.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use crate::{Record, What};

/// What some tasks, and their children, did in some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// How often a CPU began to run one of them.
    pub switches: u64,
    /// How often one of them changed CPU.
    pub migrations: u64,
    /// How often one of them was woken up.
    pub wakeups: u64,
    /// CPU time of these tasks, all CPUs together.
    pub ran_ns: u64,
    /// CPU time of all others in that time.
    pub others_ran_ns: u64,
    /// How long they waited for a CPU each time (the run-queue delay), the shortest first.
    waits_ns: Vec<u64>,
}

impl Figures {
    /// Figures of the tasks `of` and of what they forked, within `span`; of all tasks if `of` is absent.
    pub fn of(records: impl Iterator<Item = Record>, of: Option<&[u32]>, span: Range<u64>) -> Self {
        let mut figures = Self::default();
        let mut family: HashSet<u32> = of.into_iter().flatten().copied().collect();
        let mut waits_since: HashMap<u32, u64> = HashMap::new();
        let mut runs_since: HashMap<u32, u64> = HashMap::new();
        for record in records {
            let Record { time_ns, what, pid, value, .. } = record;
            if what == What::New && of.is_some() {
                // A PID may be used again.
                let is_child = u32::try_from(value).is_ok_and(|parent| family.contains(&parent));
                if is_child {
                    family.insert(pid);
                } else if !of.is_some_and(|of| of.contains(&pid)) {
                    family.remove(&pid);
                }
            }
            let is_ours = of.is_none() || family.contains(&pid);
            let within = span.contains(&time_ns);
            match what {
                What::Wake if is_ours && within => figures.wakeups += 1,
                What::Migrate if is_ours && within => figures.migrations += 1,
                What::Enqueue => {
                    waits_since.entry(pid).or_insert(time_ns);
                }
                What::Run => {
                    runs_since.insert(pid, time_ns);
                    let since_ns = waits_since.remove(&pid);
                    if is_ours && within {
                        figures.switches += 1;
                        let wait = since_ns.filter(|since_ns| *since_ns >= span.start);
                        figures.waits_ns.extend(wait.map(|since_ns| time_ns - since_ns));
                    }
                }
                What::Preempt | What::Block | What::Exit | What::Throttle => {
                    waits_since.remove(&pid);
                    let Some(since_ns) = runs_since.remove(&pid) else { continue };
                    let ran_ns = time_ns.min(span.end).saturating_sub(since_ns.max(span.start));
                    match is_ours {
                        true => figures.ran_ns += ran_ns,
                        false => figures.others_ran_ns += ran_ns,
                    }
                }
                _ => {}
            }
        }
        figures.waits_ns.sort_unstable();
        figures
    }

    /// The wait that so many in a thousand do not exceed; 0 if nothing waited.
    pub fn wait_ns(&self, permille: u32) -> u64 {
        let place = (self.waits_ns.len() as u64 * u64::from(permille.min(1_000))).div_ceil(1_000);
        self.waits_ns.get(place.saturating_sub(1) as usize).copied().unwrap_or(0)
    }

    /// The mean wait, or 0.
    pub fn wait_mean_ns(&self) -> f64 {
        self.waits_ns.iter().sum::<u64>() as f64 / self.waits_ns.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(time_ns: u64, what: What, pid: u32) -> Record {
        Record { time_ns, cpu: 0, what, pid, value: 0 }
    }

    #[test]
    fn waits_switches_and_time_are_those_of_the_tasks_in_question() {
        use What::{Block, Enqueue, New, Run, Wake};
        let records = [
            record(0, Enqueue, 1),
            record(5, Run, 1),
            Record { value: 1, ..record(6, New, 2) },
            record(6, Enqueue, 2),
            Record { value: 9, ..record(6, New, 3) },
            record(10, Block, 1),
            record(10, Run, 2),
            record(20, Block, 2),
            record(20, Wake, 3),
            record(20, Enqueue, 3),
            record(23, Run, 3),
            record(30, Block, 3),
        ];
        let family = Figures::of(records.into_iter(), Some(&[1]), 0..100);
        assert_eq!((family.switches, family.ran_ns, family.others_ran_ns), (2, 15, 7));
        assert_eq!((family.wait_ns(500), family.wait_ns(1_000), family.wait_mean_ns()), (4, 5, 4.5));
        let all = Figures::of(records.into_iter(), None, 6..100);
        assert_eq!((all.switches, all.wakeups, all.wait_ns(1_000)), (2, 1, 4));
    }

    #[test]
    fn nothing_waits_for_no_time() {
        let none = Figures::of(std::iter::empty(), None, 0..1);
        assert_eq!((none.wait_ns(500), none.wait_mean_ns()), (0, 0.0));
    }
}
