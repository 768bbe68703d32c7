//! Loads, made ready to run: each program as a list of operations without nesting.

use std::collections::HashMap;

use ekiden::CpuId;
use ekiden_workload::{HintWord, Step, WaitMode, Workload};

use crate::masks::{MaskId, Masks};
use crate::model::Costs;

/// Where an operation stands in [`Programs`]; a program is named by its first.
pub(crate) type Place = u32;

/// Work to be done, and then what happens. Work that precedes an effect is joined with it, so that most steps take
/// one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Op {
    pub(crate) work_ns: u64,
    pub(crate) effect: Effect,
}

/// What happens when an operation's work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Effect {
    Nothing,
    RunFor {
        ns: u64,
    },
    Sleep {
        ns: u64,
    },
    PipeWrite {
        pipe: u32,
    },
    PipeRead {
        pipe: u32,
    },
    /// A task that has a byte continues behind it, and one that has looked long enough this many operations further.
    PipePoll {
        pipe: u32,
        spin_ns: u64,
        idle: u32,
    },
    /// Go this many operations further unless the pipe holds this many bytes.
    UnlessHeld {
        pipe: u32,
        at_least: u32,
        forth: u32,
    },
    Lock {
        lock: u32,
        mode: WaitMode,
    },
    Unlock {
        lock: u32,
    },
    Barrier {
        barrier: u32,
        parties: u32,
        mode: WaitMode,
    },
    /// The lock is taken again by the next operation.
    Await {
        condition: u32,
        lock: Option<u32>,
    },
    Signal {
        condition: u32,
        /// How many tasks to wake up.
        most: usize,
    },
    Io {
        device: u32,
    },
    WriteHint {
        queue: u32,
        /// Which of [`Programs::hints`].
        hint: u32,
        ring: bool,
    },
    ReadNotice {
        queue: u32,
    },
    Timer {
        timer: u32,
        period_ns: u64,
        restart: bool,
    },
    SetOnline {
        cpu: CpuId,
        online: bool,
    },
    Yield,
    SetNice {
        nice: i32,
    },
    SetAffinity {
        mask: MaskId,
    },
    Fork {
        program: Place,
    },
    Wait,
    Mark,
    /// The end of the program, as reports show it.
    Finish,
    /// The end of the task.
    Exit,
    /// Go on behind `LoopBegin` that many times, or without end.
    LoopBegin {
        times: u64,
    },
    /// Go that many operations back, if the loop is not over.
    LoopEnd {
        back: u32,
    },
    /// Go this many operations on, or back.
    Jump {
        by: i32,
    },
}

/// A loop that does not end by itself.
pub(crate) const FOR_EVER: u64 = u64::MAX;

/// All programs of a load, those of its tasks and those of their children: one list, in which each goes from its first
/// operation to its [`Effect::Exit`].
#[derive(Debug, Default)]
pub(crate) struct Programs {
    ops: Vec<Op>,
    /// Where each begins, so that equal ones are there once.
    known: HashMap<Vec<Op>, Place>,
    /// Hints that are written into queues, each list once.
    pub(crate) hints: Vec<Vec<HintWord>>,
}

impl Programs {
    /// The programs of `workload`, and where that of each of its tasks begins.
    pub(crate) fn new(workload: &Workload, masks: &mut Masks, costs: &Costs) -> (Self, Vec<Place>) {
        let mut programs = Self::default();
        let first = workload.tasks.iter().map(|task| programs.add(&task.program, masks, costs)).collect();
        (programs, first)
    }

    #[inline]
    pub(crate) fn op(&self, place: Place) -> Op {
        self.ops[place as usize]
    }

    fn add(&mut self, steps: &[Step], masks: &mut Masks, costs: &Costs) -> Place {
        let mut writer = Writer { programs: self, masks, costs, ops: Vec::new(), run_ns: 0 };
        writer.steps(steps);
        writer.end(costs.exit_ns);
        let ops = writer.ops;
        *self.known.entry(ops).or_insert_with_key(|ops| {
            let first = self.ops.len();
            assert!(
                first + ops.len() <= Place::MAX as usize,
                "more steps in one load than the simulator has names for"
            );
            self.ops.extend(ops);
            first as Place
        })
    }
}

/// Writes one program.
struct Writer<'a> {
    programs: &'a mut Programs,
    masks: &'a mut Masks,
    costs: &'a Costs,
    ops: Vec<Op>,
    /// Work that waits for the effect that it precedes.
    run_ns: u64,
}

impl Writer<'_> {
    fn steps(&mut self, steps: &[Step]) {
        for step in steps {
            self.step(step);
        }
    }

    fn step(&mut self, step: &Step) {
        let syscall_ns = self.costs.syscall_ns.max(1);
        let atomic_ns = self.costs.atomic_ns.max(1);
        match step {
            Step::Run { ns } => {
                // Two runs stay two, so that no sum overflows.
                if self.run_ns > 0 {
                    self.push(0, Effect::Nothing);
                }
                self.run_ns = *ns;
            }
            // It begins with a look at the clock.
            Step::RunFor { ns } => self.push(atomic_ns, Effect::RunFor { ns: *ns }),
            Step::Sleep { ns } => self.push(syscall_ns, Effect::Sleep { ns: *ns }),
            Step::PipeWrite { pipe } => self.push(syscall_ns, Effect::PipeWrite { pipe: *pipe }),
            Step::PipeRead { pipe } => self.push(syscall_ns, Effect::PipeRead { pipe: *pipe }),
            Step::PipePoll { pipe, spin_ns, idle } => self.poll(*pipe, *spin_ns, idle),
            Step::IfHeld { pipe, at_least, steps } => {
                let at = self.ops.len();
                self.push(atomic_ns, Effect::Nothing);
                self.steps(steps);
                // Work that is left to do belongs to the steps.
                if self.run_ns > 0 {
                    self.push(0, Effect::Nothing);
                }
                let forth = (self.ops.len() - at) as u32;
                self.ops[at].effect = Effect::UnlessHeld { pipe: *pipe, at_least: *at_least, forth };
            }
            Step::Lock { lock, mode } => self.push(atomic_ns, Effect::Lock { lock: *lock, mode: *mode }),
            Step::Unlock { lock } => self.push(atomic_ns, Effect::Unlock { lock: *lock }),
            Step::Barrier { barrier, parties, mode } => {
                self.push(atomic_ns, Effect::Barrier { barrier: *barrier, parties: *parties, mode: *mode });
            }
            Step::Await { condition, lock } => {
                self.push(syscall_ns, Effect::Await { condition: *condition, lock: *lock });
                if let Some(lock) = *lock {
                    self.push(atomic_ns, Effect::Lock { lock, mode: WaitMode::Block });
                }
            }
            Step::Signal { condition } => self.push(syscall_ns, Effect::Signal { condition: *condition, most: 1 }),
            Step::Broadcast { condition } => {
                self.push(syscall_ns, Effect::Signal { condition: *condition, most: usize::MAX });
            }
            Step::Io { device } => self.push(syscall_ns, Effect::Io { device: *device }),
            Step::WriteHint { queue, hint, ring } => {
                let hints = &mut self.programs.hints;
                let known = hints.iter().position(|known| known == hint).unwrap_or_else(|| {
                    hints.push(hint.clone());
                    hints.len() - 1
                });
                // In shared memory; to ring takes a system call.
                let ns = if *ring { syscall_ns } else { atomic_ns };
                self.push(ns, Effect::WriteHint { queue: *queue, hint: known as u32, ring: *ring });
            }
            Step::ReadNotice { queue } => self.push(atomic_ns, Effect::ReadNotice { queue: *queue }),
            Step::Timer { timer, period_ns, restart } => {
                self.push(syscall_ns, Effect::Timer { timer: *timer, period_ns: *period_ns, restart: *restart });
            }
            Step::CpuOffline { cpu } => self.push(syscall_ns, Effect::SetOnline { cpu: *cpu, online: false }),
            Step::CpuOnline { cpu } => self.push(syscall_ns, Effect::SetOnline { cpu: *cpu, online: true }),
            Step::Yield => self.push(syscall_ns, Effect::Yield),
            Step::SetNice { nice } => self.push(syscall_ns, Effect::SetNice { nice: *nice }),
            Step::SetAffinity { cpus } => {
                let mask = self.masks.intern(cpus.as_deref());
                self.push(syscall_ns, Effect::SetAffinity { mask });
            }
            Step::Fork { program } => {
                let program = self.programs.add(program, self.masks, self.costs);
                self.push(self.costs.fork_ns.max(1), Effect::Fork { program });
            }
            Step::Wait => self.push(syscall_ns, Effect::Wait),
            Step::Mark => self.push(syscall_ns, Effect::Mark),
            Step::Exec => self.end(self.costs.exec_ns.saturating_add(self.costs.exit_ns)),
            Step::Exit => self.end(self.costs.exit_ns),
            Step::Repeat { times, steps } => self.repeat(*times, steps),
            Step::Forever { steps } => self.repeat(FOR_EVER, steps),
        }
    }

    /// A look for a byte, the way out for a task that has one, and what other tasks do before they look again.
    fn poll(&mut self, pipe: u32, spin_ns: u64, idle: &[Step]) {
        // The work before it is done once, and to look is done again.
        if self.run_ns > 0 {
            self.push(0, Effect::Nothing);
        }
        let at = self.ops.len();
        self.push(self.costs.atomic_ns.max(1), Effect::PipePoll { pipe, spin_ns, idle: 2 });
        self.push(0, Effect::Nothing);
        self.steps(idle);
        self.push(0, Effect::Jump { by: at as i32 - self.ops.len() as i32 });
        self.ops[at + 1].effect = Effect::Jump { by: (self.ops.len() - at - 1) as i32 };
    }

    fn repeat(&mut self, times: u64, steps: &[Step]) {
        let begin = self.ops.len();
        let before_ns = self.run_ns;
        self.push(0, Effect::LoopBegin { times });
        let body = self.ops.len();
        self.steps(steps);
        // A body that takes no time would go round at one moment for as long as the count says.
        let takes_time = self.run_ns > 0 || self.ops[body..].iter().any(|op| op.work_ns > 0);
        if times == 0 || !takes_time {
            self.ops.truncate(begin);
            self.run_ns = before_ns;
            return;
        }
        self.push(0, Effect::LoopEnd { back: (self.ops.len() - body) as u32 });
    }

    fn end(&mut self, exit_ns: u64) {
        self.push(0, Effect::Finish);
        self.push(exit_ns, Effect::Exit);
    }

    fn push(&mut self, ns: u64, effect: Effect) {
        let work_ns = std::mem::take(&mut self.run_ns).saturating_add(ns);
        self.ops.push(Op { work_ns, effect });
    }
}

#[cfg(test)]
mod tests {
    use ekiden::CpuMask;
    use ekiden_workload::TaskSpec;

    use super::*;
    use crate::model::Model;

    fn program(steps: Vec<Step>) -> Vec<Op> {
        let mut masks = Masks::new(1, CpuMask::first_n(1));
        let workload = Workload::new("test", 1, [TaskSpec::new("task", steps)]);
        let (programs, first) = Programs::new(&workload, &mut masks, &Model::free().costs);
        programs.ops[first[0] as usize..].to_vec()
    }

    fn op(work_ns: u64, effect: Effect) -> Op {
        Op { work_ns, effect }
    }

    const END: [Op; 2] = [Op { work_ns: 0, effect: Effect::Finish }, Op { work_ns: 0, effect: Effect::Exit }];

    #[test]
    fn work_is_joined_with_what_follows_it() {
        let ops = program(vec![Step::Run { ns: 10 }, Step::Sleep { ns: 5 }, Step::Run { ns: 7 }]);
        assert_eq!(ops, [op(11, Effect::Sleep { ns: 5 }), op(7, Effect::Finish), END[1]]);
    }

    #[test]
    fn a_loop_jumps_back_behind_its_beginning() {
        let ops = program(vec![Step::Run { ns: 3 }, Step::repeat(4, [Step::Yield, Step::Run { ns: 9 }])]);
        let expected =
            [op(3, Effect::LoopBegin { times: 4 }), op(1, Effect::Yield), op(9, Effect::LoopEnd { back: 1 })];
        assert_eq!(ops, [expected.as_slice(), &END].concat());
    }

    #[test]
    fn loops_that_take_no_time_are_left_out() {
        let nothing = Step::repeat(u64::MAX - 1, [Step::repeat(0, [Step::Yield]), Step::Run { ns: 0 }]);
        assert_eq!(program(vec![nothing]), END);
    }
}
