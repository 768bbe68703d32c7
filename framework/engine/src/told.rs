//! Which policies know of which idle CPU. A CPU that begins to idle without telling all, and one that tells a policy what it has missed, each
//! say first and look then; so one of the two sees the other, and no idle CPU is forgotten.

use super::atomics::{
    AtomicU8,
    Ordering::{Relaxed, SeqCst},
    fence,
};

/// Policies, a bit each.
pub(crate) type Seats = u8;

/// Policies that know of a CPU that it is idle.
#[derive(Debug, Default)]
pub(crate) struct Told(AtomicU8);

/// Policies that may not have been told of an idle CPU. Apart from what is only read.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(crate) struct Missed(AtomicU8);

impl Missed {
    /// Whether one of these may have.
    #[inline]
    pub(crate) fn any(&self, seats: Seats) -> bool {
        self.0.load(Relaxed) & seats != 0
    }

    /// A CPU has noted that it is idle, and does not tell these. Writes only what is news.
    #[inline]
    pub(crate) fn pass_over(&self, seats: Seats) {
        fence(SeqCst);
        if seats & !self.0.load(Relaxed) != 0 {
            self.0.fetch_or(seats, Relaxed);
        }
    }

    /// Whether one of these has, so that it is to be told now of each CPU that is seen to idle.
    pub(crate) fn take(&self, seats: Seats) -> bool {
        let is_missed = self.0.fetch_and(!seats, Relaxed) & seats != 0;
        fence(SeqCst);
        is_missed
    }
}

impl Told {
    /// Those are about to be told. Whether it is news.
    pub(crate) fn tell(&self, seats: Seats) -> bool {
        self.0.fetch_or(seats, Relaxed) & seats == 0
    }

    /// They know nothing of it any more.
    pub(crate) fn forget(&self, seats: Seats) {
        self.0.fetch_and(!seats, Relaxed);
    }

    /// The CPU is idle no longer. Who is to hear of that. Writes only if a policy is.
    pub(crate) fn take(&self) -> Seats {
        if self.0.load(Relaxed) == 0 { 0 } else { self.0.swap(0, Relaxed) }
    }
}
