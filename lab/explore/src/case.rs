//! What happens at once.

/// Something that happens on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The task that runs here wakes up a task; tasks are counted from 0.
    Wake(usize),
    /// The task that runs here sleeps, and the CPU looks for work.
    Sleep,
    /// The tick finds the running task.
    Tick,
}

/// A small machine, and what happens on it at once.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What it is called on the command line.
    pub name: &'static str,
    /// The CPU of each task at the beginning, and whether it sleeps. The first of each CPU that does not sleep runs.
    pub tasks: &'static [(u32, bool)],
    /// What happens on each CPU, one thing after the other.
    pub cpus: &'static [&'static [Step]],
}

/// All there are, the smallest first.
pub const CASES: &[Case] = &[
    Case {
        name: "wake-and-sleep",
        tasks: &[(0, false), (1, false), (0, true)],
        cpus: &[&[Step::Wake(2)], &[Step::Sleep]],
    },
    Case {
        name: "two-sleepers",
        tasks: &[(0, false), (1, false), (0, false), (1, false)],
        cpus: &[&[Step::Sleep, Step::Sleep], &[Step::Sleep, Step::Sleep]],
    },
    Case {
        name: "two-wakers",
        tasks: &[(0, false), (1, false), (2, false), (0, true), (1, true)],
        cpus: &[&[Step::Wake(3), Step::Tick], &[Step::Wake(4), Step::Sleep], &[Step::Sleep]],
    },
];

impl Case {
    /// The case of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        CASES.iter().find(|case| case.name == name)
    }
}
