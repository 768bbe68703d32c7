//! Calls that wait for locks, and how one of them finds out that some wait for each other.

use super::atomics::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

/// Whether two places are on the stack of one call, which has less than this (6 KiB in the kernel).
pub(crate) fn is_same(one: usize, other: usize) -> bool {
    one.abs_diff(other) < 8 << 10
}

/// Calls that wait, this many at once at most. One that finds no place is not seen by others.
#[derive(Debug)]
pub(crate) struct Waiters<const N: usize> {
    pub(crate) places: [Waiter; N],
    /// How many of these places have ever been taken.
    pub(crate) taken: AtomicUsize,
    /// Counts what happens among them: that a call begins to wait, and that one looks.
    pub(crate) moment: AtomicU64,
}

/// A call that waits lets go of nothing until it has what it waits for. So if one waits for another that was seen to have the lock
/// *after* that one began to wait, it does so still.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// When it began to wait; 0 if there is none. No two have the same.
    pub(crate) since: AtomicU64,
    /// Where its stack is.
    pub(crate) stack: AtomicUsize,
    /// The holder of the lock, as it was at the last look.
    pub(crate) holder: AtomicUsize,
    /// When that was.
    pub(crate) looked: AtomicU64,
}

/// State of a call that waits, at one moment.
#[derive(Clone, Copy)]
struct Seen {
    since: u64,
    stack: usize,
    holder: usize,
    looked: u64,
}

impl Waiter {
    /// Nothing if it changes meanwhile.
    fn see(&self) -> Option<Seen> {
        let since = self.since.load(SeqCst);
        // In this order: the holder is at least as new as the moment of the look.
        let (stack, looked) = (self.stack.load(SeqCst), self.looked.load(SeqCst));
        let seen = Seen { since, stack, holder: self.holder.load(SeqCst), looked };
        (since > BEGINS && self.since.load(SeqCst) == since).then_some(seen)
    }
}

/// Stands for the moment while a place is being taken.
const BEGINS: u64 = 1;

/// A call that waits for a lock.
#[derive(Debug)]
pub(crate) struct Waiting<'a, const N: usize> {
    waiters: &'a Waiters<N>,
    stack: usize,
    since: u64,
    /// Its place, if there was room.
    own: Option<&'a Waiter>,
}

impl<const N: usize> Waiters<N> {
    fn moment(&self) -> u64 {
        self.moment.fetch_add(1, SeqCst) + BEGINS
    }

    /// The call with this stack begins to wait.
    pub(crate) fn begin(&self, stack: usize) -> Waiting<'_, N> {
        let since = self.moment();
        let is_free = |place: &Waiter| {
            place.since.load(Relaxed) == 0 && place.since.compare_exchange(0, BEGINS, SeqCst, Relaxed).is_ok()
        };
        let own = self.places.iter().enumerate().find(|(_, place)| is_free(place)).map(|(at, place)| {
            self.taken.fetch_max(at + 1, SeqCst);
            place.stack.store(stack, SeqCst);
            place.holder.store(0, SeqCst);
            place.looked.store(0, SeqCst);
            place.since.store(since, SeqCst);
            place
        });
        Waiting { waiters: self, stack, since, own }
    }
}

impl<const N: usize> Waiting<'_, N> {
    /// The call looks once more at the holder of the lock: the stack of its call, or 0 if there is none. Returns
    /// how many calls wait for each other, this one among them, if that is sure: 1 if it has the lock itself.
    pub(crate) fn look(&mut self, holder: impl FnOnce() -> usize) -> Option<usize> {
        let looked = self.waiters.moment();
        let holder = holder();
        if holder != 0 && is_same(holder, self.stack) {
            return Some(1);
        }
        let own = self.own?;
        own.holder.store(holder, SeqCst);
        own.looked.store(looked, SeqCst);
        self.ring(holder, looked)
    }

    fn ring(&self, mut holder: usize, mut looked: u64) -> Option<usize> {
        let places = &self.waiters.places[..self.waiters.taken.load(SeqCst).min(N)];
        for calls in 2..=places.len() {
            if holder == 0 {
                return None;
            }
            let next = places.iter().filter_map(Waiter::see).find(|seen| is_same(seen.stack, holder))?;
            // Before it began to wait it may have let go of the lock.
            if looked <= next.since {
                return None;
            }
            if next.holder != 0 && is_same(next.holder, self.stack) {
                return (next.looked > self.since).then_some(calls);
            }
            (holder, looked) = (next.holder, next.looked);
        }
        None
    }
}

impl<const N: usize> Drop for Waiting<'_, N> {
    fn drop(&mut self) {
        if let Some(own) = self.own {
            own.since.store(0, SeqCst);
        }
    }
}
