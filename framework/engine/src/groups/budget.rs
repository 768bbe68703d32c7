//! The CPU time that a group may use.

use crate::atomics::{
    AtomicBool, AtomicI64, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use crate::lock::Lock;

/// A task whose group has hardly any time left runs that long at least; the excess is missing later.
const TURN_NS_MIN: u64 = 50_000;

/// The time in which all tasks that wait for a group's time are to have a turn, however little time that is. They take longer than that
/// by what it costs to end a turn, and are overdue after five seconds.
const ROUND_NS: u64 = 3_000_000_000;

/// Running tasks are charged at ticks, which are 10 ms apart at most. Shorter periods keep this much for time that is used and not charged yet.
const CHARGED_NS: u64 = 10_000_000;

/// How much CPU time a group may use: `cpu.max` and `cpu.max.burst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// CPU time of all its tasks together in each period, in nanoseconds.
    pub quota_ns: u64,
    /// How long a period is, in nanoseconds.
    pub period_ns: u64,
    /// How much of what it does not use it may keep for later periods, in nanoseconds.
    pub burst_ns: u64,
}

/// CPU time of a group that is left in the period.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// Below 0 if more was used than there was.
    left_ns: AtomicI64,
    /// When the period ends that this is about.
    end_ns: AtomicU64,
    /// How long one task may run at a time, so that others have a turn.
    turn_ns: AtomicU64,
    /// Nothing is left, and tasks are throttled until there is. Only cleared with the lock of the throttled.
    throttled: AtomicBool,
    /// Something was used since the last period that nothing was used in: `refill` will be called at the end of this one.
    /// So a CPU that spends need not read the clock.
    active: AtomicBool,
    /// CPU time that was left when this period began.
    begun_ns: AtomicI64,
    /// Taken to change any but the time that is left.
    limit: Lock<Option<Limit>>,
    limited: AtomicBool,
}

/// What follows from spending.
pub(super) struct Spent {
    pub(super) is_used_up: bool,
    /// The end of the period, if this was the first to spend.
    pub(super) refill_at_ns: Option<u64>,
}

impl Budget {
    pub(super) fn set(&self, limit: Option<Limit>, now_ns: u64) {
        let limit = limit.filter(|limit| limit.period_ns != 0);
        let mut current = self.limit.lock();
        *current = limit;
        if let Some(Limit { quota_ns, period_ns, .. }) = limit {
            self.left_ns.store(signed(quota_ns), Relaxed);
            self.end_ns.store(now_ns.saturating_add(period_ns), Relaxed);
            self.begun_ns.store(signed(quota_ns), Relaxed);
            self.turn_ns.store(u64::MAX, Relaxed);
        }
        self.limited.store(limit.is_some(), Release);
    }

    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.limited.load(Relaxed)
    }

    #[inline]
    pub(super) fn is_throttled(&self) -> bool {
        self.throttled.load(Acquire)
    }

    /// Begins a new period, if it is time.
    fn renew(&self, now_ns: u64) {
        let limit = self.limit.lock();
        let end_ns = self.end_ns.load(Relaxed);
        let Some(Limit { quota_ns, period_ns, burst_ns }) = *limit else { return };
        if now_ns < end_ns {
            return;
        }
        let periods = (now_ns - end_ns) / period_ns + 1;
        let most_ns = signed(quota_ns.saturating_mul((CHARGED_NS / period_ns).max(1)).saturating_add(burst_ns));
        let more_ns = signed(quota_ns.saturating_mul(periods));
        let renewed = |left_ns: i64| Some(left_ns.saturating_add(more_ns).min(most_ns));
        // It never gives up; others may spend meanwhile.
        if let Ok(left_ns) = self.left_ns.fetch_update(AcqRel, Relaxed, renewed) {
            self.begun_ns.store(left_ns.saturating_add(more_ns).min(most_ns), Relaxed);
        }
        self.end_ns.store(end_ns.saturating_add(periods.saturating_mul(period_ns)), Release);
    }

    #[inline]
    pub(super) fn spend(&self, ran_ns: u64, mut now_ns: impl FnMut() -> u64) -> Spent {
        let mut refill_at_ns = self.activate(&mut now_ns);
        let ran_ns = signed(ran_ns);
        let is_used_up = self.left_ns.fetch_sub(ran_ns, AcqRel) <= ran_ns;
        if is_used_up {
            self.throttled.store(true, Release);
            // A refill may have been the last one meanwhile: either it sees this, or it is seen here that no other one comes.
            fence(SeqCst);
            refill_at_ns = self.activate(&mut now_ns).or(refill_at_ns);
        }
        Spent { is_used_up, refill_at_ns }
    }

    /// Something is used. Returns the end of the period if this is the first use.
    #[inline]
    fn activate(&self, now_ns: &mut impl FnMut() -> u64) -> Option<u64> {
        if self.active.load(Relaxed) || self.active.swap(true, AcqRel) {
            return None;
        }
        self.renew(now_ns());
        Some(self.end_ns.load(Relaxed))
    }

    /// `None` if nothing is left.
    #[inline]
    pub(super) fn allowance_ns(&self) -> Option<u64> {
        if self.is_throttled() {
            return None;
        }
        let left_ns = self.left_ns.load(Relaxed).max(0) as u64;
        Some(left_ns.min(self.turn_ns.load(Relaxed)).max(TURN_NS_MIN))
    }

    /// When the period ends, if anything was used lately.
    #[inline]
    pub(super) fn ends_ns(&self) -> Option<u64> {
        self.is_active().then(|| self.end_ns.load(Acquire))
    }

    /// Begins a new period, if it is time. When to do so again, which is never if nothing was used; and whether there is time
    /// now.
    pub(super) fn refill(&self, now_ns: u64) -> (Option<u64>, bool) {
        if !self.is_limited() {
            self.active.store(false, Release);
            return (None, true);
        }
        let left_ns = self.left_ns.load(Acquire);
        if now_ns >= self.end_ns.load(Acquire) && left_ns > 0 && left_ns == self.begun_ns.load(Relaxed) {
            // A CPU that spends from here on begins anew; one that has just used up all time may not have seen that.
            self.active.store(false, Release);
            fence(SeqCst);
            if self.is_throttled() {
                self.active.store(true, Release);
            }
        }
        self.renew(now_ns);
        (self.is_active().then(|| self.end_ns.load(Relaxed)), self.left_ns.load(Acquire) > 0)
    }

    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.active.load(Acquire)
    }

    /// There is time again. The caller holds the lock of the throttled.
    pub(super) fn unthrottle(&self) {
        self.throttled.store(false, Release);
    }

    /// Notes how many tasks want to have a turn.
    pub(super) fn set_crowd(&self, tasks: u32) {
        let Some(Limit { quota_ns, period_ns, .. }) = *self.limit.lock() else { return };
        // In microseconds, so that the product fits: the kernel has no wider division.
        let round_us = (quota_ns / 1000).saturating_mul(ROUND_NS / 1000) / (period_ns / 1000).max(1);
        self.turn_ns.store((round_us / u64::from(tasks.max(1))).saturating_mul(1000), Relaxed);
    }
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
