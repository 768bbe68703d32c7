//! The states of a task, and which event may lead from which to which (papers/001, figure 3).

use core::fmt;

use ekiden::CpuId;

/// Where a task stands with its policy.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The entry holds no task.
    Free = 0,
    /// Known, and never waited for a CPU yet.
    New = 1,
    /// Waits for a CPU; the policy holds its token.
    Ready = 2,
    /// Made to give way: the policy holds its token, and the kernel is about to put it on the run queue. Only the CPU
    /// that it ran on may pick it until then.
    ReadyByTick = 3,
    /// Picked, and runs or is about to.
    Running = 4,
    /// Sleeps.
    Blocked = 5,
    /// Waits for a CPU, but its group has no CPU time left; the policy thinks that it sleeps.
    Throttled = 6,
    /// Throttled, and the kernel is about to put it on the run queue: see [`ReadyByTick`](Self::ReadyByTick).
    ThrottledByTick = 7,
}

impl Phase {
    #[inline]
    fn from_bits(bits: u64) -> Self {
        match bits & 7 {
            1 => Phase::New,
            2 => Phase::Ready,
            3 => Phase::ReadyByTick,
            4 => Phase::Running,
            5 => Phase::Blocked,
            6 => Phase::Throttled,
            7 => Phase::ThrottledByTick,
            _ => Phase::Free,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Free => "free",
            Phase::New => "new",
            Phase::Ready => "ready",
            Phase::ReadyByTick => "ready-by-tick",
            Phase::Running => "running",
            Phase::Blocked => "blocked",
            Phase::Throttled => "throttled",
            Phase::ThrottledByTick => "throttled-by-tick",
        }
    }

    /// Whether the policy holds a good token of the task.
    pub fn is_waiting(self) -> bool {
        matches!(self, Phase::Ready | Phase::ReadyByTick)
    }

    /// Whether it was picked, and nothing that it did since is known.
    #[inline]
    pub fn is_running(self) -> bool {
        self == Phase::Running
    }

    /// Whether the task waits for its group to have CPU time.
    #[inline]
    pub fn is_throttled(self) -> bool {
        matches!(self, Phase::Throttled | Phase::ThrottledByTick)
    }
}

/// What moves a task from one state to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transition {
    /// The task comes under our care.
    Enable,
    /// The kernel puts it on a run queue.
    Enqueue,
    /// The kernel wants to know what runs next, and the task could go on.
    GiveWay,
    /// A policy picked it.
    Pick,
    /// The kernel could not run what was picked.
    Refuse,
    /// It sleeps or exits.
    Block,
    /// It leaves our care, or dies.
    Depart,
    /// Its group has no CPU time left.
    Throttle,
    /// Its group has CPU time again.
    Release,
}

/// Every transition that is expected. Whatever is not listed is counted and reported as an unexpected transition.
///
/// Some look odd and are not: while the kernel bypasses its BPF scheduler (suspend, hotplug) it runs tasks behind our
/// back, so that one which waits may block, and one which sleeps may turn up running.
pub const TRANSITIONS: &[(Phase, Transition, Phase)] = &[
    (Phase::New, Transition::Enable, Phase::New),
    (Phase::New, Transition::Enqueue, Phase::Ready),
    (Phase::Blocked, Transition::Enqueue, Phase::Ready),
    (Phase::Running, Transition::Enqueue, Phase::Ready),
    (Phase::ReadyByTick, Transition::Enqueue, Phase::Ready),
    (Phase::Ready, Transition::Enqueue, Phase::Ready),
    (Phase::Running, Transition::GiveWay, Phase::ReadyByTick),
    (Phase::Ready, Transition::GiveWay, Phase::ReadyByTick),
    (Phase::ReadyByTick, Transition::GiveWay, Phase::ReadyByTick),
    (Phase::Blocked, Transition::GiveWay, Phase::ReadyByTick),
    (Phase::New, Transition::GiveWay, Phase::ReadyByTick),
    (Phase::Ready, Transition::Pick, Phase::Running),
    (Phase::ReadyByTick, Transition::Pick, Phase::Running),
    (Phase::Running, Transition::Refuse, Phase::Ready),
    // It has had a turn without its policy, or another policy since it was picked.
    (Phase::New, Transition::Refuse, Phase::Ready),
    (Phase::Running, Transition::Block, Phase::Blocked),
    (Phase::Ready, Transition::Block, Phase::Blocked),
    (Phase::ReadyByTick, Transition::Block, Phase::Blocked),
    (Phase::Blocked, Transition::Block, Phase::Blocked),
    (Phase::New, Transition::Block, Phase::New),
    (Phase::New, Transition::Depart, Phase::Free),
    (Phase::Ready, Transition::Depart, Phase::Free),
    (Phase::ReadyByTick, Transition::Depart, Phase::Free),
    (Phase::Running, Transition::Depart, Phase::Free),
    (Phase::Blocked, Transition::Depart, Phase::Free),
    // By tick, if it has not left its CPU.
    (Phase::New, Transition::Throttle, Phase::Throttled),
    (Phase::Blocked, Transition::Throttle, Phase::Throttled),
    (Phase::Running, Transition::Throttle, Phase::Throttled),
    (Phase::Ready, Transition::Throttle, Phase::Throttled),
    (Phase::ReadyByTick, Transition::Throttle, Phase::ThrottledByTick),
    (Phase::Throttled, Transition::Release, Phase::Ready),
    (Phase::ThrottledByTick, Transition::Release, Phase::ReadyByTick),
    (Phase::Throttled, Transition::Enqueue, Phase::Throttled),
    (Phase::ThrottledByTick, Transition::Enqueue, Phase::Throttled),
    (Phase::Throttled, Transition::GiveWay, Phase::ThrottledByTick),
    (Phase::ThrottledByTick, Transition::GiveWay, Phase::ThrottledByTick),
    (Phase::Throttled, Transition::Block, Phase::Blocked),
    (Phase::ThrottledByTick, Transition::Block, Phase::Blocked),
    (Phase::Throttled, Transition::Depart, Phase::Free),
    (Phase::ThrottledByTick, Transition::Depart, Phase::Free),
];

impl Transition {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Transition::Enable => "enable",
            Transition::Enqueue => "enqueue",
            Transition::GiveWay => "give way",
            Transition::Pick => "pick",
            Transition::Refuse => "refuse",
            Transition::Block => "block",
            Transition::Depart => "depart",
            Transition::Throttle => "throttle",
            Transition::Release => "release",
        }
    }

    /// Where the transition leads from `phase`, or `None` if it is not expected there.
    #[inline]
    pub fn from(self, phase: Phase) -> Option<Phase> {
        const NEXT: [[Option<Phase>; 8]; 9] = {
            let mut next = [[None; 8]; 9];
            let mut i = 0;
            while i < TRANSITIONS.len() {
                let (from, by, to) = TRANSITIONS[i];
                next[by as usize][from as usize] = Some(to);
                i += 1;
            }
            next
        };
        NEXT[self as usize][phase as usize]
    }
}

/// Whether one policy can take over from another, or share the machine with it. Only what that costs is measured without it.
pub(crate) const UPGRADABLE: bool = !cfg!(feature = "fixed");

/// A task's state in one word, so that it changes at once: phase, whether it asked to yield, the policy that has heard of it,
/// whether it is just being told of a move, whether a CPU has claimed it, CPU, and the serial number of its newest token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct State(pub(crate) u64);

impl State {
    const YIELDING: u64 = 1 << 8;
    /// What it is attached to: an epoch and a policy slot.
    const ATTACHMENT: u64 = Self::EPOCH | 7 << Self::POLICY_SLOT_SHIFT;
    const EPOCH: u64 = 1 << 9;
    const POLICY_SLOT_SHIFT: u32 = 10;
    const UNHEARD: u64 = 1 << 13;
    const MOVING: u64 = 1 << 14;
    const CLAIMED: u64 = 1 << 15;

    /// A state from its parts.
    pub fn new(phase: Phase, cpu: CpuId, serial: u32) -> Self {
        Self(phase as u64 | u64::from(cpu as u16) << 16 | u64::from(serial) << 32)
    }

    /// Where the task stands.
    #[inline]
    pub fn phase(self) -> Phase {
        Phase::from_bits(self.0)
    }

    /// The CPU whose run queue it is on, or was on last.
    #[inline]
    pub fn cpu(self) -> CpuId {
        CpuId::from((self.0 >> 16) as u16)
    }

    /// Whether the task waits for this CPU, which is one of the machine's, and this is the serial number of its token: in one comparison.
    #[inline]
    pub(crate) fn waits_with(self, serial: u32, cpu: CpuId) -> bool {
        // The two phases in which it waits differ in the lowest bit.
        let is_waiting = self.0 & 0b110 == Phase::Ready as u64;
        is_waiting && self.0 >> 16 == u64::from(serial) << 16 | u64::from(cpu)
    }

    /// Whether the task, which waits, has not left its CPU yet: see [`Phase::ReadyByTick`].
    #[inline]
    pub(crate) fn waits_by_tick(self) -> bool {
        // The two phases in which it waits differ in the lowest bit.
        self.0 & 1 == Phase::ReadyByTick as u64 & 1
    }

    /// The serial number of its newest token; 0 before the first.
    #[inline]
    pub fn serial(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether it asked to give way.
    #[inline]
    pub fn is_yielding(self) -> bool {
        self.0 & Self::YIELDING != 0
    }

    /// This state with the wish to give way noted.
    pub fn yielding(self) -> Self {
        Self(self.0 | Self::YIELDING)
    }

    /// Enters another phase; a wish to give way ends.
    #[inline]
    pub fn in_phase(self, phase: Phase) -> Self {
        Self(self.0 & !(0xffff & !Self::ATTACHMENT) | phase as u64)
    }

    /// Which policy has heard of the task.
    #[inline]
    pub(crate) fn attachment(self) -> Attachment {
        Attachment(self.0 & Self::ATTACHMENT)
    }

    /// The policy slot of that policy.
    #[inline]
    pub fn policy_slot(self) -> usize {
        (self.0 >> Self::POLICY_SLOT_SHIFT & 7) as usize
    }

    /// Attaches the task to another policy.
    pub(crate) fn at(self, attachment: Attachment) -> Self {
        Self(self.0 & !(Self::ATTACHMENT | Self::MOVING) | attachment.0)
    }

    /// Throttles the task on `cpu`; `is_unheard` says that the policy has not heard of it.
    pub(crate) fn throttled(self, phase: Phase, cpu: CpuId, is_unheard: bool) -> Self {
        let unheard = if is_unheard { Self::UNHEARD } else { 0 };
        Self(Self::new(phase, cpu, self.serial()).0 | self.0 & Self::ATTACHMENT | unheard)
    }

    /// Whether the policy has not heard of the task, which is throttled.
    pub(crate) fn is_unheard(self) -> bool {
        self.0 & Self::UNHEARD != 0
    }

    /// Whether the policy is just being told that the task has moved.
    #[inline]
    pub(crate) fn is_moving(self) -> bool {
        self.0 & Self::MOVING != 0
    }

    /// Marks the task as moving, until its policy has been told.
    pub(crate) fn moving(self) -> Self {
        Self(self.0 | Self::MOVING)
    }

    /// Moves the waiting task to `cpu`, which has claimed its token.
    pub(crate) fn claimed(self, cpu: CpuId) -> Self {
        Self(Self::new(Phase::Ready, cpu, self.serial()).0 | self.0 & Self::ATTACHMENT | Self::CLAIMED)
    }

    /// Whether the task came to its CPU so.
    #[inline]
    pub(crate) fn is_claimed(self) -> bool {
        self.0 & Self::CLAIMED != 0
    }

    /// The state after a new token for `cpu` is issued.
    #[inline]
    pub fn issue(self, phase: Phase, cpu: CpuId) -> Self {
        // Serial 0 means "no token", so it is skipped when the count wraps.
        Self(Self::new(phase, cpu, self.serial().wrapping_add(1).max(1)).0 | self.0 & Self::ATTACHMENT)
    }
}

/// A policy slot in the engine, and which of two policies that follow each other there. One bit is enough for that: a policy has heard
/// of all tasks before the next one takes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Attachment(pub(crate) u64);

impl Attachment {
    /// No task is attached there.
    pub(crate) const NOWHERE: Self = Self(u64::MAX);

    /// The attachment of the first policy in this policy slot.
    pub(crate) fn in_policy_slot(policy_slot: usize) -> Self {
        Self((policy_slot as u64) << State::POLICY_SLOT_SHIFT)
    }

    /// The attachment of the policy that follows in the same policy slot.
    pub(crate) fn next(self) -> Self {
        Self(self.0 ^ State::EPOCH)
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on CPU {}, token {}", self.phase(), self.cpu(), self.serial())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn one_comparison_says_what_phase_cpu_and_serial_number_say(bits: u64, other_serial: bool, other_cpu: bool) {
            let state = State(bits);
            let serial = state.serial() ^ u32::from(other_serial);
            let cpu = state.cpu() ^ CpuId::from(other_cpu);
            let by_parts = state.phase().is_waiting() && state.serial() == serial && state.cpu() == cpu;
            prop_assert_eq!(state.waits_with(serial, cpu), by_parts);
            let by_tick = state.phase() == Phase::ReadyByTick;
            prop_assert_eq!(state.phase().is_waiting() && state.waits_by_tick(), by_tick);
        }
    }
}
