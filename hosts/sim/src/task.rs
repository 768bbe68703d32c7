//! A task of the simulated machine.

use std::num::NonZeroU64;

use ekiden::{CpuId, TaskId};
use ekiden_workload::random::Random;
use smallvec::SmallVec;

use crate::masks::MaskId;
use crate::program::Place;

/// Where a task stands in the simulation's list; used again when it is gone.
pub(crate) type TaskIndex = u32;

/// Work is counted in parts of a nanosecond, because a CPU of capacity `c` does `c` of them in one.
pub(crate) const WORK_PER_NS: u64 = ekiden::FULL_CAPACITY as u64;

/// One task. What every switch touches comes first and fills two cache lines: with many tasks, time goes to fetching them.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) state: State,
    /// Its name in the engine, while it is the policy's.
    pub(crate) id: TaskId,
    pub(crate) pid: u32,
    /// The CPU whose run queue it is on, or was on last.
    pub(crate) cpu: CpuId,
    /// The CPU whose caches know it.
    pub(crate) ran_on: Option<CpuId>,
    pub(crate) mask: MaskId,
    pub(crate) group: u32,
    /// The operation whose work is being done.
    pub(crate) place: Place,
    /// Whether it is the policy's. Others are served first, as the kernel's own class is before sched_ext.
    pub(crate) is_ours: bool,
    /// The work that is left of the operation, in [`WORK_PER_NS`].
    pub(crate) work: u64,
    /// CPU time used in its life.
    pub(crate) cpu_ns: u64,
    pub(crate) wait_ns: u64,
    pub(crate) waits_since_ns: u64,
    /// While it spins: what its CPU time may grow to before it goes to sleep.
    pub(crate) spins_until_ns: Option<NonZeroU64>,
    pub(crate) voluntary_switches: u64,
    /// Rounds left of the innermost loop that it is in.
    pub(crate) rounds: u64,
    /// When each of its timers went off last.
    pub(crate) timers: SmallVec<[Option<u64>; 1]>,

    pub(crate) nice: i32,
    pub(crate) random: Random,
    /// Rounds left of the loops around that, the outermost first.
    pub(crate) outer_rounds: SmallVec<[u64; 2]>,
    /// The round of the barrier that it waits at, or the time until which it runs.
    pub(crate) round: u64,
    pub(crate) involuntary_switches: u64,
    pub(crate) migrations: u64,
    /// Which of the load's tasks it is, or descends from.
    pub(crate) root: u32,
    /// The PID of that one: what a load forks are threads of one process to policies.
    pub(crate) process: u32,
    /// Its parent: where that stands, and its PID, since it may be gone.
    pub(crate) parent: Option<(TaskIndex, u32)>,
    pub(crate) children: u32,
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Has not begun yet.
    New,
    /// Waits for a CPU.
    Waiting,
    /// Runs on [`Task::cpu`].
    Running,
    /// Sleeps until its alarm.
    Asleep,
    /// Waits for a byte.
    Reading {
        /// The pipe that it reads from.
        pipe: u32,
    },
    /// Waits for room.
    Writing {
        /// The pipe that it writes to.
        pipe: u32,
    },
    /// Waits for a lock.
    ForLock {
        /// The lock that it waits for.
        lock: u32,
    },
    /// Waits for others.
    AtBarrier {
        /// The barrier at which it waits.
        barrier: u32,
    },
    /// Waits for a signal.
    ForCondition {
        /// The condition that it waits for.
        condition: u32,
    },
    /// Waits for a device.
    InIo {
        /// The device that it waits for.
        device: u32,
    },
    /// Waits for something that the policy says.
    ForNotice {
        /// The queue in which that comes.
        queue: u32,
    },
    /// Waits until its group may run again.
    Throttled,
    /// Waits until a child is gone.
    ForChild,
    /// Is gone, or about to be.
    Dead,
}

impl Task {
    /// What the task does, for people.
    pub(crate) fn doing(&self) -> String {
        match self.state {
            State::New => "not started".into(),
            State::Waiting => format!("waiting for CPU {}", self.cpu),
            State::Running if self.spins_until_ns.is_some() => format!("spinning on CPU {}", self.cpu),
            State::Running => format!("running on CPU {}", self.cpu),
            State::Asleep => "asleep".into(),
            State::Reading { pipe } => format!("reading from pipe {pipe}, which is empty"),
            State::Writing { pipe } => format!("writing to pipe {pipe}, which is full"),
            State::ForLock { lock } => format!("waiting for lock {lock}"),
            State::AtBarrier { barrier } => format!("waiting at barrier {barrier}"),
            State::ForCondition { condition } => format!("waiting for condition {condition}"),
            State::ForNotice { queue } => format!("waiting for a notice in queue {queue}"),
            State::InIo { device } => format!("waiting for device {device}"),
            State::Throttled => "waiting for its group's next period".into(),
            State::ForChild => "waiting for a child".into(),
            State::Dead => "gone".into(),
        }
    }
}

const _: () = {
    assert!(std::mem::offset_of!(Task, nice) == 128);
    assert!(std::mem::size_of::<Task>() <= 256);
};
