//! The numbers by which steps name pipes, locks, barriers and the like: how many there are, and how they change where two loads are joined.

use std::collections::HashSet;

use super::{HintWord, Step, Workload};

impl Workload {
    /// Both loads at once, sharing nothing: what the other one numbers gets other numbers, and names that are taken get
    /// a number behind them. It lasts as long as the one that lasts longer.
    #[must_use]
    pub fn beside(mut self, mut other: Self) -> Self {
        let [pipes, locks, barriers] = [self.pipes(), self.locks(), self.barriers()];
        let first = [pipes, locks, barriers, self.conditions(), self.devices.len() as u32, self.queues()];
        let taken: HashSet<&str> = self.tasks.iter().map(|task| task.name.as_str()).collect();
        for task in &mut other.tasks {
            renumber(&mut task.program, first);
            task.name = free_name(&task.name, &taken);
        }
        let taken: HashSet<&str> = self.groups.iter().map(|group| group.name.as_str()).collect();
        for group in &mut other.groups {
            let name = free_name(&group.name, &taken);
            let members = other.tasks.iter_mut().filter(|task| task.group.as_ref() == Some(&group.name));
            members.for_each(|task| task.group = Some(name.clone()));
            group.name = name;
        }
        self.cpus = self.cpus.max(other.cpus);
        self.duration_ns = self.duration_ns.max(other.duration_ns);
        self.groups.append(&mut other.groups);
        self.devices.append(&mut other.devices);
        self.tasks.append(&mut other.tasks);
        self
    }

    /// Calls `with` on every step of every task, nested ones too.
    pub fn each_step(&self, mut with: impl FnMut(&Step)) {
        self.tasks.iter().for_each(|task| visit(&task.program, &mut with));
    }

    fn numbers(&self, number_in: impl Fn(&Step) -> Option<u32>) -> u32 {
        let mut numbers = 0;
        self.each_step(|step| {
            if let Some(number) = number_in(step) {
                numbers = numbers.max(number.saturating_add(1));
            }
        });
        numbers
    }

    /// How many pipes there are: one more than the highest that a step names.
    pub fn pipes(&self) -> u32 {
        self.numbers(|step| match step {
            Step::PipeWrite { pipe } | Step::PipeRead { pipe } => Some(*pipe),
            Step::PipePoll { pipe, .. } | Step::IfHeld { pipe, .. } => Some(*pipe),
            Step::WriteHint { hint, .. } => hint.iter().filter_map(pipe_in).max(),
            _ => None,
        })
    }

    /// How many locks there are.
    pub fn locks(&self) -> u32 {
        self.numbers(|step| match step {
            Step::Lock { lock, .. } | Step::Unlock { lock } => Some(*lock),
            Step::Await { lock, .. } => *lock,
            _ => None,
        })
    }

    /// How many barriers there are.
    pub fn barriers(&self) -> u32 {
        self.numbers(|step| match step {
            Step::Barrier { barrier, .. } => Some(*barrier),
            _ => None,
        })
    }

    /// How many conditions there are.
    pub fn conditions(&self) -> u32 {
        self.numbers(|step| match step {
            Step::Await { condition, .. } | Step::Signal { condition } | Step::Broadcast { condition } => {
                Some(*condition)
            }
            _ => None,
        })
    }

    /// How many queues of hints there are.
    pub fn queues(&self) -> u32 {
        self.numbers(|step| match step {
            Step::WriteHint { queue, .. } | Step::ReadNotice { queue } => Some(*queue),
            _ => None,
        })
    }

    /// How many timers each task has.
    pub fn timers(&self) -> u32 {
        self.numbers(|step| match step {
            Step::Timer { timer, .. } => Some(*timer),
            _ => None,
        })
    }
}

/// Calls `with` on every step, nested ones too.
pub(crate) fn visit(steps: &[Step], with: &mut impl FnMut(&Step)) {
    for step in steps {
        with(step);
        match step {
            Step::Fork { program: inner } | Step::Repeat { steps: inner, .. } | Step::Forever { steps: inner } => {
                visit(inner, with);
            }
            Step::PipePoll { idle: inner, .. } | Step::IfHeld { steps: inner, .. } => visit(inner, with),
            _ => {}
        }
    }
}

fn pipe_in(word: &HintWord) -> Option<u32> {
    match word {
        HintWord::Held { pipe } => Some(*pipe),
        HintWord::Value(_) | HintWord::OwnPid => None,
    }
}

/// `name`, with a number behind it if it is taken.
fn free_name(name: &str, taken: &HashSet<&str>) -> String {
    let mut free = name.to_owned();
    let mut number = 1;
    while taken.contains(free.as_str()) {
        number += 1;
        free = format!("{name}-{number}");
    }
    free
}

/// Lets the numbers of pipes, locks, barriers, conditions, devices and queues begin with these.
fn renumber(steps: &mut [Step], first: [u32; 6]) {
    let [pipes, locks, barriers, conditions, devices, queues] = first;
    for step in steps {
        match step {
            Step::PipeWrite { pipe } | Step::PipeRead { pipe } => *pipe += pipes,
            Step::Lock { lock, .. } | Step::Unlock { lock } => *lock += locks,
            Step::Barrier { barrier, .. } => *barrier += barriers,
            Step::Await { condition, lock } => {
                *condition += conditions;
                if let Some(lock) = lock {
                    *lock += locks;
                }
            }
            Step::Signal { condition } | Step::Broadcast { condition } => *condition += conditions,
            Step::Io { device } => *device += devices,
            Step::PipePoll { pipe, idle: inner, .. } | Step::IfHeld { pipe, steps: inner, .. } => {
                *pipe += pipes;
                renumber(inner, first);
            }
            Step::WriteHint { queue, hint, .. } => {
                *queue += queues;
                for word in hint {
                    if let HintWord::Held { pipe } = word {
                        *pipe += pipes;
                    }
                }
            }
            Step::ReadNotice { queue } => *queue += queues,
            Step::Fork { program: inner } | Step::Repeat { steps: inner, .. } | Step::Forever { steps: inner } => {
                renumber(inner, first);
            }
            _ => {}
        }
    }
}
