//! What a trace comes to: how often tasks switched and moved, and how long they waited, whichever host wrote it.

use std::{collections::HashSet, ops::Range};

use crate::{Machine, Record, Trace, What};

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
    /// Figures of the tasks `of` and of what they forked, within `span`; of all tasks if `of` is absent. Figures of a trace
    /// without a header, and so without records, are zeros.
    pub fn of(trace: &Trace, of: Option<&[u32]>, span: Range<u64>) -> Self {
        let mut figures = Self::default();
        let Some(mut machine) = trace.header().map(|header| Machine::new(&header)) else { return figures };
        let mut family: HashSet<u32> = of.into_iter().flatten().copied().collect();
        for record in trace.records() {
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
            let counts = is_ours && span.contains(&time_ns);
            figures.wakeups += u64::from(counts && what == What::Wake);
            figures.migrations += u64::from(counts && what == What::Migrate);
            figures.switches += u64::from(counts && what == What::Run);
            let Some(moved) = machine.apply(&record) else { continue };
            let began_ns = machine.now_ns - moved.for_ns;
            figures.waits_ns.extend(moved.waited_ns().filter(|_| counts && began_ns >= span.start));
            if moved.ran_ns().is_some() {
                let ran_ns = machine.now_ns.min(span.end).saturating_sub(began_ns.max(span.start));
                match is_ours {
                    true => figures.ran_ns += ran_ns,
                    false => figures.others_ran_ns += ran_ns,
                }
            }
        }
        figures.waits_ns.sort_unstable();
        figures
    }

    /// The wait that `permille` of all do not exceed; 0 if nothing waited.
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
    use ekiden::Topology;

    use super::*;
    use crate::Header;

    fn trace(records: &[Record]) -> Trace {
        let mut trace = Trace::new(&Header::of(&Topology::flat(1)));
        records.iter().for_each(|record| trace.push(*record));
        trace
    }

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
        let trace = trace(&records);
        let family = Figures::of(&trace, Some(&[1]), 0..100);
        assert_eq!((family.switches, family.ran_ns, family.others_ran_ns), (2, 15, 7));
        assert_eq!((family.wait_ns(500), family.wait_ns(1_000), family.wait_mean_ns()), (4, 5, 4.5));
        let all = Figures::of(&trace, None, 6..100);
        assert_eq!((all.switches, all.wakeups, all.wait_ns(1_000)), (2, 1, 4));
    }

    #[test]
    fn nothing_waits_for_no_time() {
        let none = Figures::of(&trace(&[]), None, 0..1);
        assert_eq!(none, Figures::of(&Trace::default(), None, 0..1));
        assert_eq!((none.wait_ns(500), none.wait_mean_ns()), (0, 0.0));
    }
}
