//! What the tasks of a load share: pipes, locks, barriers, conditions, devices and queues of hints.

use std::collections::VecDeque;

use ekiden_workload::{Device, Workload};

use crate::queues::HintQueue;
use crate::task::TaskIndex;

/// Everything that is shared, by the numbers that the load gives.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) pipes: Vec<Pipe>,
    pub(crate) locks: Vec<Lock>,
    pub(crate) barriers: Vec<Barrier>,
    /// The tasks that wait for each condition, the longest first.
    pub(crate) conditions: Vec<VecDeque<TaskIndex>>,
    pub(crate) devices: Vec<Queue>,
    pub(crate) queues: Vec<HintQueue>,
}

/// Bytes, and the tasks that wait for them or for room. A byte goes to the reader that has waited longest, and so does room.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    pub(crate) bytes: usize,
    pub(crate) readers: VecDeque<TaskIndex>,
    pub(crate) writers: VecDeque<TaskIndex>,
    /// Tasks that look for a byte, on a CPU or preempted, in the order in which they began.
    pub(crate) spinners: Vec<TaskIndex>,
}

/// A lock, and the tasks that want it.
#[derive(Debug, Default)]
pub(crate) struct Lock {
    pub(crate) taken: bool,
    /// Tasks that spin, on a CPU or preempted, in the order in which they began.
    pub(crate) spinners: Vec<TaskIndex>,
    pub(crate) sleepers: VecDeque<TaskIndex>,
}

/// A barrier, and the tasks that are there.
#[derive(Debug, Default)]
pub(crate) struct Barrier {
    pub(crate) arrived: u32,
    /// How often all have come.
    pub(crate) round: u64,
    pub(crate) spinners: Vec<TaskIndex>,
    pub(crate) sleepers: Vec<TaskIndex>,
}

/// A device, and the tasks whose requests it has not begun to serve.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) device: Device,
    pub(crate) busy: u32,
    pub(crate) waiting: VecDeque<TaskIndex>,
}

impl Shared {
    pub(crate) fn new(workload: &Workload) -> Self {
        fn all<T: Default>(count: u32) -> Vec<T> {
            std::iter::repeat_with(T::default).take(count as usize).collect()
        }
        let idle = |device: &Device| Queue { device: device.clone(), busy: 0, waiting: VecDeque::new() };
        Self {
            pipes: all(workload.pipes()),
            locks: all(workload.locks()),
            barriers: all(workload.barriers()),
            conditions: all(workload.conditions()),
            devices: workload.devices.iter().map(idle).collect(),
            queues: all(workload.queues()),
        }
    }
}
