//! Counters per CPU, so that counting does not make CPUs meet.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What one CPU has counted.
#[repr(align(64))]
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) picks: AtomicU64,
    pub(crate) idles: AtomicU64,
    pub(crate) migrations: AtomicU64,
    pub(crate) refusals: AtomicU64,
    pub(crate) surprises: AtomicU64,
}

/// The sum over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Tasks picked.
    pub picks: u64,
    /// Searches for work that found none.
    pub idles: u64,
    /// Waiting tasks moved to another CPU.
    pub migrations: u64,
    /// Tokens handed back.
    pub refusals: u64,
    /// Transitions that are not in [`TRANSITIONS`](crate::TRANSITIONS).
    pub surprises: u64,
}

impl Counters {
    /// Adds one. Only one CPU writes a set of counters at a time, so no atomic addition is needed.
    #[inline]
    pub(crate) fn count(counter: &AtomicU64) {
        counter.store(counter.load(Relaxed) + 1, Relaxed);
    }

    pub(crate) fn add_to(&self, totals: &mut Totals) {
        totals.picks += self.picks.load(Relaxed);
        totals.idles += self.idles.load(Relaxed);
        totals.migrations += self.migrations.load(Relaxed);
        totals.refusals += self.refusals.load(Relaxed);
        totals.surprises += self.surprises.load(Relaxed);
    }
}
