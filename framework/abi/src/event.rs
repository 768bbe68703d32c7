//! What a host tells the engine, and what the engine answers.

use crate::{Kicks, TaskId};

/// What happened on the machine. The numbers are part of the wire and are never used again for something else.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// A task exists from now on. The payload is the host's name for it, eight bytes, `args[1]` its PID, and the event's task its
    /// parent, if that is known and the task is new. The new id is in `Outcome::task`. If there is no room, the task is beyond the table:
    /// the host keeps it in a queue of its own, asks again when it next waits ([`init_flags::AGAIN`]), and says with
    /// [`TaskDisable`](Self::TaskDisable) or [`TaskExit`](Self::TaskExit) without a task that one has left.
    ///
    /// The name is no argument, so that a program that can only send events (BPF) cannot make up tasks.
    TaskInit = 1,
    /// The task is under our care from now on. `args[0]` is its nice value as a signed number.
    TaskEnable = 2,
    /// The task leaves our care, for another scheduling class or because the policy ends. Its id is worthless from here
    /// on; if it comes back, it is initialised again.
    TaskDisable = 3,
    /// The task is dead. Its id is worthless from here on.
    TaskExit = 4,
    /// The host needs a CPU for a waking or new task. `cpu` is the previous one, `args[0]` what the host would take.
    SelectCpu = 5,
    /// The task waits for a CPU, on `cpu`. `flags` says why.
    Enqueue = 6,
    /// The task sleeps or exits. A host may leave it out for a policy that does not implement `task_blocked`: the
    /// engine also understands it from a wake-up, or from a search for work after the task.
    Block = 7,
    /// `cpu` looks for work. `task` is the one that ran so far, if it is ours, and `flags` says whether it still could.
    Pick = 8,
    /// The host could not run what was picked, which waits on `cpu` again. `args[0]` is a [`crate::RefusalReason`]; `args[1]` the CPU for which it
    /// was picked, and one more, where the task may have been put on a queue anew meanwhile, and 0 where it cannot.
    PickRefused = 9,
    /// The periodic tick found `task` running on `cpu`, or, without a task, one beyond the table. `args[0]` is how many of those wait
    /// for this CPU, of those that wait for any a part.
    Tick = 10,
    /// `task` gives way, on `cpu`.
    Yield = 11,
    /// The nice value changed to `args[0]`.
    Nice = 12,
    /// The set of allowed CPUs changed.
    Affinity = 13,
    /// `cpu` joins the machine.
    CpuOnline = 14,
    /// `cpu` leaves the machine.
    CpuOffline = 15,
    /// The timer that the policy armed on `cpu` went off.
    Timer = 16,
    /// User space sent `args[1]` bytes at `args[0]` to a policy; synchronous form. This and the next three are for the policy in
    /// the policy slot that `flags` names, counted from 1, or, if that is 0, for the one of the event's task, or the default one.
    Hint = 17,
    /// User space opened a hint queue; `args[0]` is its number and, in the upper half, the PID of the process.
    QueueOpen = 18,
    /// User space has put hints into queue `args[0]`.
    QueueReady = 19,
    /// User space closed hint queue `args[0]`.
    QueueClose = 20,
    /// The task is in the group `args[0]` from now on. A new task is in the root until this comes. [`Status::Invalid`] if that group is
    /// unknown: there was no room for it, and the task counts for the one above it, which the host names next.
    TaskMove = 21,
    /// A group exists from now on: `args[0]` is the host's name for it, `args[1]` that of the group that it is in, or 0 if it is
    /// the root. It weighs 100 and has no limit. `flags` is not 0 if the group that it is in belongs to a user other than root.
    /// [`Status::Invalid`] if that is unknown: the host names the next one above it.
    GroupCreate = 22,
    /// The group `args[0]` is no more.
    GroupDestroy = 23,
    /// The group `args[0]` weighs `args[1]` among its siblings, from 1 to 10,000.
    GroupWeight = 24,
    /// The group `args[0]` is to run only when its siblings do not want to, if `args[1]` is not 0.
    GroupIdle = 25,
    /// The group `args[0]` may use `args[1]` nanoseconds of CPU time in each period of `flags` nanoseconds, and keep up to
    /// `runtime_ns` of what it does not use. A period of 0 is no limit.
    GroupLimit = 26,
    /// The time has come that the engine wanted to be told of on `cpu`, or a task has returned to user mode there:
    /// [`refill_flags`].
    Refill = 27,
    /// Parameters of `task` were set; they are in the payload ([`crate::RawParams`]). Other events of the task may be under
    /// way.
    TaskParams = 28,
}

/// Bits of `Event::flags` for [`EventKind::TaskInit`].
pub mod init_flags {
    /// There was no room for the task before.
    pub const AGAIN: u64 = 1;
}

/// Bits of `Event::flags` for [`EventKind::Refill`].
pub mod refill_flags {
    /// The CPU has just gone from the kernel to user mode.
    pub const RETURNED: u64 = 1;
}

/// Bits of `Event::flags` for [`EventKind::Enqueue`].
pub mod enqueue_flags {
    /// The task was asleep.
    pub const WAKEUP: u64 = 1;
    /// Nothing else wants the CPU; it goes idle unless the task is picked at once.
    pub const LAST: u64 = 2;
    /// The host can put the task on its CPU from here, and need not wait until that CPU looks for work. If the CPU runs
    /// none of our tasks, the search for work comes with the event, as if [`Pick`] had followed at once: the outcome
    /// says [`Run`](crate::Status::Run) if the policy picks the task, and otherwise all is as without this bit.
    ///
    /// [`Pick`]: crate::EventKind::Pick
    pub const MAY_PLACE: u64 = 4;
}

/// Bits of `Event::flags` for [`EventKind::Pick`].
pub mod pick_flags {
    /// `Event::task` could go on running, and its slice is used up.
    pub const PREV_RUNNABLE: u64 = 1;
    /// The policies are asked in any case: no task beyond the table waits after all. `Event::task` has been dealt with.
    pub const POLICIES: u64 = 2;
}

/// One thing that happened on the machine.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Event {
    /// An [`EventKind`], as a number because it comes from outside.
    pub kind: u32,
    /// The CPU it happened on or is about.
    pub cpu: u32,
    /// The task it is about, or [`TaskId::NONE`].
    pub task: TaskId,
    /// Bits that depend on the kind.
    pub flags: u64,
    /// CPU time that the task has used in its life, in nanoseconds.
    pub runtime_ns: u64,
    /// Depends on the kind.
    pub args: [u64; 2],
}

impl Event {
    /// An event of `kind` on `cpu`, with nothing else set.
    #[inline]
    pub fn new(kind: EventKind, cpu: u32) -> Self {
        Self { kind: kind as u32, cpu, ..Self::default() }
    }
}

/// How an event ended.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Status {
    /// Done. For a pick: nothing to run.
    #[default]
    Done = 0,
    /// `Outcome::host_task` is to run on the CPU of the event.
    Run = 1,
    /// The task that ran so far continues, with a fresh slice.
    KeepPrevious = 2,
    /// For a pick: a task beyond the table is to run, if one waits. `Outcome::cpu` is 0 if policies were not asked, which they are next if
    /// none waits ([`pick_flags::POLICIES`]), and 1 if they have nothing.
    Beyond = 3,
    /// The policy is gone; the host hands all tasks back to the kernel's own scheduler.
    Fault = -1,
    /// The event made no sense: an unknown kind or a task that does not exist. Nothing changed.
    Invalid = -2,
    /// The task table is full. The task is beyond it: see [`EventKind::TaskInit`].
    Full = -3,
}

/// What the host is to do. The host hands it in zeroed; the engine writes what is different.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// A [`Status`].
    pub status: i32,
    /// The CPU chosen by `SelectCpu`. For hints: 0 if it was taken, negative if not. For [`Status::Beyond`] see there.
    pub cpu: i32,
    /// The host's name for the task to run, as given with `TaskInit`.
    pub host_task: u64,
    /// The new task's id after `TaskInit`; the picked one's after `Pick`.
    pub task: TaskId,
    /// How long the picked task may run, in nanoseconds; 0 leaves it to the host.
    pub slice_ns: u64,
    /// Arm a timer on the event's CPU that many nanoseconds from now; 0 arms none.
    pub timer_ns: u64,
    /// CPUs that are to look for work again at once.
    pub kicks: Kicks,
}
