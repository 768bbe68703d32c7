//! Makes of what a kernel's tracepoints tell a trace that keeps the same rules as one of the simulator.

use std::mem;

use rustc_hash::FxHashMap;

use crate::{Record, What};

/// Where a task is, as far as records tell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It exists; nothing else is known.
    Somewhere,
    Away,
    Waiting,
    Running(u32),
}

/// Leaves out what is reported twice or too early, such as the wake-up of a task that has not left its CPU, and puts in what
/// was before the recording began, and where a task waits that is moved. Records come in the order in which things happened,
/// whatever the clocks of two CPUs say; times follow suit.
#[derive(Default)]
pub struct Tidy {
    places: FxHashMap<u32, Place>,
    last_ns: u64,
    /// By CPU, what runs there; only if holes are to be mended.
    running: Option<FxHashMap<u32, u32>>,
}

impl Tidy {
    /// One that also mends holes: where records contradict each other because some were lost in between, the task that is
    /// in the way is taken away, so that no two tasks run on a CPU and none runs twice. After [`What::Lost`] it is not
    /// known any more what ran on that CPU, and which tasks waited anywhere.
    pub fn healing() -> Self {
        Self { running: Some(FxHashMap::default()), ..Self::default() }
    }

    /// Takes what was told next, and gives what is to be told.
    #[inline]
    pub fn pass(&mut self, record: Record, sink: &mut (impl FnMut(Record) + ?Sized)) {
        self.last_ns = self.last_ns.max(record.time_ns);
        let record = Record { time_ns: self.last_ns, ..record };
        if self.running.is_some() {
            self.mend(&record, sink);
        }
        let Record { cpu, what, pid, value, .. } = record;
        match what {
            What::New => {
                self.put(pid, Place::Somewhere);
            }
            What::Wake => {
                if matches!(self.places.get(&pid), Some(Place::Running(_) | Place::Waiting)) {
                    return;
                }
            }
            What::Enqueue => {
                let place = self.places.entry(pid).or_insert(Place::Somewhere);
                if matches!(place, Place::Running(_) | Place::Waiting) {
                    return;
                }
                *place = Place::Waiting;
            }
            What::Run => {
                let before = self.put(pid, Place::Running(cpu));
                if before != Place::Waiting {
                    sink(Record { what: What::Enqueue, value: 0, ..record });
                }
            }
            What::Preempt | What::Block | What::Exit => {
                if !matches!(self.put(pid, Place::Away), Place::Running(_)) {
                    // It ran already when the recording began.
                    let waits = Record { what: What::Enqueue, value: 0, ..record };
                    sink(waits);
                    sink(Record { what: What::Run, ..waits });
                }
                if what == What::Exit {
                    // Its PID may be used again.
                    self.places.remove(&pid);
                }
            }
            What::Migrate if u64::from(cpu) == value => return,
            What::Migrate if self.places.get(&pid) == Some(&Place::Waiting) => {
                sink(record);
                return sink(Record { what: What::Enqueue, value: 0, ..record });
            }
            _ => {}
        }
        sink(record);
    }

    /// Puts a task somewhere, and says where it was.
    #[inline]
    fn put(&mut self, pid: u32, place: Place) -> Place {
        let before = mem::replace(self.places.entry(pid).or_insert(Place::Somewhere), place);
        if let Some(running) = &mut self.running {
            if let Place::Running(cpu) = before {
                running.remove(&cpu);
            }
            if let Place::Running(cpu) = place {
                running.insert(cpu, pid);
            }
        }
        before
    }

    /// Takes away what cannot be where it was if this is so.
    fn mend(&mut self, record: &Record, sink: &mut (impl FnMut(Record) + ?Sized)) {
        let Record { cpu, what, pid, .. } = *record;
        let Some(running) = &self.running else { return };
        let mut gone = Vec::new();
        match what {
            What::Run | What::Preempt | What::Block | What::Exit => {
                gone.extend(running.get(&cpu).copied().filter(|other| *other != pid).map(|other| (other, cpu)));
                match self.places.get(&pid) {
                    Some(Place::Running(on)) if *on != cpu || what == What::Run => gone.push((pid, *on)),
                    _ => {}
                }
            }
            What::Idle | What::Offline => gone.extend(running.get(&cpu).map(|other| (*other, cpu))),
            What::Lost => {
                let waits = |(pid, place): (&u32, &Place)| (*place == Place::Waiting).then_some((*pid, cpu));
                gone.extend(self.places.iter().filter_map(waits));
                gone.extend(running.get(&cpu).map(|other| (*other, cpu)));
                gone.sort_unstable();
            }
            _ => {}
        }
        for (pid, cpu) in gone {
            sink(Record { cpu, what: What::Block, pid, value: 0, ..*record });
            self.put(pid, Place::Somewhere);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(time_ns: u64, what: What) -> Record {
        Record { time_ns, cpu: 0, what, pid: 7, value: 0 }
    }

    fn tidy(records: impl Iterator<Item = Record>) -> Vec<Record> {
        let (mut tidy, mut tidied) = (Tidy::default(), Vec::new());
        records.for_each(|record| tidy.pass(record, &mut |record| tidied.push(record)));
        tidied
    }

    fn tidied(whats: &[What]) -> Vec<What> {
        let records = whats.iter().zip(0..).map(|(what, time_ns)| record(time_ns, *what));
        tidy(records).iter().map(|record| record.what).collect()
    }

    #[test]
    fn a_wake_up_of_a_task_that_has_not_left_its_cpu_is_left_out() {
        use What::{Block, Enqueue, New, Run, Wake};
        assert_eq!(tidied(&[New, Enqueue, Run, Wake, Enqueue, Block]), [New, Enqueue, Run, Block]);
        // It comes while the task is on its way out; the task waits from when it is out.
        assert_eq!(tidied(&[New, Enqueue, Run, Wake, Block, Enqueue, Run]), [New, Enqueue, Run, Block, Enqueue, Run]);
    }

    #[test]
    fn what_a_task_did_before_the_recording_is_put_in() {
        use What::{Block, Enqueue, Preempt, Run};
        assert_eq!(tidied(&[Run, Block]), [Enqueue, Run, Block]);
        assert_eq!(tidied(&[Preempt, Enqueue, Run]), [Enqueue, Run, Preempt, Enqueue, Run]);
    }

    #[test]
    fn a_move_to_where_a_task_is_already_is_none() {
        let moves = [record(0, What::Migrate), Record { cpu: 1, ..record(1, What::Migrate) }];
        assert_eq!(tidy(moves.into_iter()), [Record { cpu: 1, ..record(1, What::Migrate) }]);
    }

    #[test]
    fn times_do_not_go_back_and_a_dead_task_is_forgotten() {
        let records = [record(5, What::Enqueue), record(3, What::Run), record(9, What::Exit)];
        let times: Vec<u64> = tidy(records.into_iter()).iter().map(|record| record.time_ns).collect();
        assert_eq!(times, [5, 5, 9]);
        let mut tidy = Tidy::default();
        records.into_iter().for_each(|record| tidy.pass(record, &mut |_| {}));
        assert!(tidy.places.is_empty());
    }

    #[test]
    fn a_task_that_waits_and_is_moved_waits_where_it_was_moved_to() {
        use What::{Enqueue, Migrate, Run};
        let moved = Record { cpu: 1, value: 0, ..record(1, Migrate) };
        let run = Record { cpu: 1, ..record(2, Run) };
        let expected = [record(0, Enqueue), moved, Record { what: Enqueue, ..moved }, run];
        assert_eq!(tidy([record(0, Enqueue), moved, run].into_iter()), expected);
    }

    #[test]
    fn what_holes_hide_is_mended() {
        use What::{Block, Enqueue, Idle, Lost, Preempt, Run};
        let of = |what, cpu, pid| Record { time_ns: 0, cpu, what, pid, value: 0 };
        let healed = |records: &[Record]| {
            let (mut tidy, mut healed) = (Tidy::healing(), Vec::new());
            records.iter().for_each(|record| tidy.pass(*record, &mut |record| healed.push(record)));
            healed.iter().map(|record| (record.what, record.cpu, record.pid)).collect::<Vec<_>>()
        };
        // The CPU runs another one; the task runs on another CPU; it was idle in between.
        assert_eq!(
            healed(&[of(Run, 0, 7), of(Run, 0, 8), of(Run, 1, 8), of(Idle, 1, 0)]),
            [
                (Enqueue, 0, 7),
                (Run, 0, 7),
                (Block, 0, 7),
                (Enqueue, 0, 8),
                (Run, 0, 8),
                (Block, 0, 8),
                (Enqueue, 1, 8),
                (Run, 1, 8),
                (Block, 1, 8),
                (Idle, 1, 0)
            ]
        );
        // Nothing is known after a hole of what ran there, and which tasks waited.
        assert_eq!(
            healed(&[of(Enqueue, 1, 9), of(Run, 0, 7), of(Lost, 0, 0), of(Preempt, 0, 7)]),
            [
                (Enqueue, 1, 9),
                (Enqueue, 0, 7),
                (Run, 0, 7),
                (Block, 0, 7),
                (Block, 0, 9),
                (Lost, 0, 0),
                (Enqueue, 0, 7),
                (Run, 0, 7),
                (Preempt, 0, 7)
            ]
        );
    }
}
