//! How different the tasks of a storm are, and how many.

use std::{ops::Range, time::Duration};

pub(super) struct Breadth {
    /// What is given to tasks, and to groups.
    pub(super) nice: Range<i32>,
    pub(super) weights: Range<u32>,
    /// What stress-ng does in each of the two groups. None of it executes PAUSE in a loop or programs timers all the time: either takes an
    /// emulator forever.
    pub(super) stressors: [&'static str; 2],
    /// What it does besides, in the first one, and is not asked for how it ended.
    pub(super) unjudged: Option<&'static str>,
    pub(super) has_huge_pages: bool,
    /// How long those who are told to freeze or to die may have no CPU before one of them is lost.
    pub(super) patience: Duration,
}

/// Some forty threads in all. No more than ten of a group want a CPU at a time: those of `affinity` sleep 20 ms after each change.
///
/// Not all nice values and weights there are, because what makes tasks wait multiplies. While one CPU is left, a policy that is asked later has 12 % of
/// it. A task that has had a tick of 4 ms there waits until all others have had as much for their weight: two seconds if sixty tasks of nice 0
/// are owed as much as it, and five if it has half of their weight. That is as it should be, and a policy is taken out after eight. So a
/// group weighs as much as the tasks in it that want a CPU, and the one kernel thread of nice 19 that has something to do, that of huge pages, has nothing.
pub(super) const DAILY: Breadth = Breadth {
    nice: -2..3,
    weights: 500..1000,
    stressors: [
        "--fork 2 --switch 1 --futex 1 --pipe 1 --affinity 1 --affinity-sleep 20000000",
        "--cpu 2 --cpu-method int64 --cpu-load 80 --nanosleep 1 --nanosleep-threads 2 --poll 1 --sem 1",
    ],
    unjudged: None,
    has_huge_pages: false,
    patience: Duration::from_secs(20),
};

/// All nice values and weights that there are, and a thousand threads. What is fair makes some of them wait for very long.
///
/// The last thread of `pthread` may outlive what it reads, by itself, so that it ends by a signal now and then.
pub(super) const WIDE: Breadth = Breadth {
    nice: -20..20,
    weights: 1..10_001,
    stressors: [
        "--fork 4 --switch 4 --futex 4 --pipe 4 --affinity 4 --nanosleep 2 --nanosleep-threads 240",
        "--cpu 4 --cpu-method int64 --cpu-load 80 --nanosleep 2 --nanosleep-threads 240 --poll 8 --sem 8",
    ],
    unjudged: Some("--pthread 2 --pthread-max 64"),
    has_huge_pages: true,
    patience: Duration::from_secs(60),
};
