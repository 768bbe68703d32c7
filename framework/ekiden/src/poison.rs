//! What calls that wait hear of a panic elsewhere: that what they wait for may never be let go of. They end because of it, which is
//! a consequence and no reason. So the reason comes first: a call that sees the poison finds it complete.

use super::atomics::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

/// Set when a policy of this program has panicked: its locks may never be released.
#[derive(Debug)]
pub(crate) struct Poison {
    pub(crate) is_set: AtomicBool,
}

impl Poison {
    /// A call has panicked. If it is no consequence, `keep_reason` keeps why, before any call can end because of it. Several may
    /// panic at once, each for a reason of its own: the host keeps the first.
    #[inline]
    pub(crate) fn panicked(&self, keep_reason: impl FnOnce()) {
        if !self.is_set() {
            keep_reason();
            self.set();
        }
    }

    /// The reason is kept.
    pub(crate) fn set(&self) {
        self.is_set.store(true, Release);
    }

    /// No call is under way.
    pub(crate) fn forget(&self) {
        self.is_set.store(false, Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Acquire)
    }
}
