//! What the engine looks at first in each event, in one word: one load and one comparison find the common case, one policy and no group.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::{Acquire, Release};

/// What an event may find. Everything frequent is compiled for each of these, and spared what cannot be there.
///
/// There may be several policies, and groups.
pub(crate) const SEVERAL: u8 = 0;
/// There is but one policy, in policy slot 0. There may be groups.
pub(crate) const SINGLE: u8 = 1;
/// There is but one policy, in policy slot 0, and there was never a group besides the root.
pub(crate) const PLAIN: u8 = 2;

/// Bits, none of which is set where there is one policy and no group.
#[derive(Debug, Default)]
pub(crate) struct Conditions(AtomicU8);

impl Conditions {
    /// There are policies besides that in policy slot 0, or some may come.
    const SEVERAL: u8 = 1;
    /// There is a group besides the root, or was.
    const GROUPS: u8 = 2;
    /// No policy is left.
    const OVER: u8 = 4;

    /// Whether an event is [`PLAIN`], and there is a policy.
    #[inline]
    pub(crate) fn are_plain(&self) -> bool {
        self.0.load(Acquire) == 0
    }

    #[inline]
    pub(crate) fn are_single(&self) -> bool {
        self.0.load(Acquire) & Self::SEVERAL == 0
    }

    /// There may be several policies from here on. Whether that is new.
    pub(crate) fn set_several(&self) -> bool {
        self.0.fetch_or(Self::SEVERAL, Release) & Self::SEVERAL == 0
    }

    /// All events know that there is but one policy.
    pub(crate) fn set_single(&self) {
        self.0.fetch_and(!Self::SEVERAL, Release);
    }

    /// A group is about to come. This stays, as [`Groups::is_active`](crate::groups::Groups::is_active) tells the rest: so it need not be kept
    /// in step with that.
    pub(crate) fn set_groups(&self) {
        self.0.fetch_or(Self::GROUPS, Release);
    }

    #[inline]
    pub(crate) fn are_over(&self) -> bool {
        self.0.load(Acquire) & Self::OVER != 0
    }

    /// No policy is left. This stays.
    pub(crate) fn set_over(&self) {
        self.0.fetch_or(Self::OVER, Release);
    }
}
