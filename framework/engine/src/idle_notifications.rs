//! Which policies know of which idle CPU. A CPU that begins to idle without telling all, and one that tells a policy what it has missed, each
//! say first and look then; so one of the two sees the other, and no idle CPU is forgotten.

use super::atomics::{
    AtomicU8,
    Ordering::{Relaxed, SeqCst},
    fence,
};

/// Policies, a bit each.
pub(crate) type PolicySlots = u8;

/// Policies that know of a CPU that it is idle.
#[derive(Debug, Default)]
pub(crate) struct IdleKnown(AtomicU8);

/// Policies that may not have been told of an idle CPU. Apart from what is only read.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(crate) struct IdleMissed(AtomicU8);

impl IdleMissed {
    /// Whether one of these policies may have missed an idle CPU.
    #[inline]
    pub(crate) fn any(&self, policy_slots: PolicySlots) -> bool {
        self.0.load(Relaxed) & policy_slots != 0
    }

    /// A CPU has noted that it is idle, and does not tell these. Writes only what is news.
    #[inline]
    pub(crate) fn pass_over(&self, policy_slots: PolicySlots) {
        fence(SeqCst);
        if policy_slots & !self.0.load(Relaxed) != 0 {
            self.0.fetch_or(policy_slots, Relaxed);
        }
    }

    /// Whether one of these policies has, so that it is to be told now of each CPU that is seen to idle.
    pub(crate) fn take(&self, policy_slots: PolicySlots) -> bool {
        let is_missed = self.0.fetch_and(!policy_slots, Relaxed) & policy_slots != 0;
        fence(SeqCst);
        is_missed
    }
}

impl IdleKnown {
    /// Marks these policies as about to be told. Whether it is news.
    pub(crate) fn tell(&self, policy_slots: PolicySlots) -> bool {
        self.0.fetch_or(policy_slots, Relaxed) & policy_slots == 0
    }

    /// They know nothing of it any more.
    pub(crate) fn forget(&self, policy_slots: PolicySlots) {
        self.0.fetch_and(!policy_slots, Relaxed);
    }

    /// The CPU is idle no longer. Returns the policies to tell. Writes only if there are any.
    pub(crate) fn take(&self) -> PolicySlots {
        if self.0.load(Relaxed) == 0 { 0 } else { self.0.swap(0, Relaxed) }
    }
}
