//! What happened, whichever program recorded it.

/// A task as an event tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) pid: u32,
    pub(crate) name: Name,
    /// The kernel's priority: below 100 is a real-time task, 120 is nice 0. Absent if the event does not tell.
    pub(crate) prio: Option<i32>,
}

/// The name of a task, filled up with zeros.
pub(crate) type Name = [u8; 16];

/// How a task leaves its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// It would go on.
    Ready,
    Asleep,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Switch {
        prev: Task,
        leaves: Leaves,
        next: Task,
    },
    Waking {
        task: Task,
        target: u32,
        by: u32,
    },
    Wakeup {
        task: Task,
        target: u32,
        by: u32,
        is_new: bool,
    },
    Migrate {
        task: Task,
        from: u32,
        to: u32,
    },
    Fork {
        parent: u32,
        child: u32,
        name: Name,
    },
    Rename {
        pid: u32,
        name: Name,
    },
    Idle,
    Hotplug {
        target: u32,
        is_online: bool,
    },
    /// Events of this CPU were lost; zero is that they were not counted.
    Lost {
        count: u64,
    },
}

/// When and where something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) time_ns: u64,
    pub(crate) cpu: u32,
    pub(crate) event: Event,
}
