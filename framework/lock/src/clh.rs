//! Calls that wait for one lock stand in a queue: first come, first served. It is that of Craig, Landin and Hagersten (CLH): each
//! call looks at the place of the one before it, a cache line that no other call looks at. Places are not on stacks, so the queue
//! outlives a call that faults, and a call that leaves early is skipped.
//!
//! The first one in the queue takes the lock itself. So a lock for which no call waits needs no place.

use super::atomics::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// What a place says.
pub(crate) const FREE: u32 = 0;
const WAITS: u32 = 1;
/// Its call is not in the queue any more; the one behind it is first.
const PASSED: u32 = 2;
/// Its call has left the queue before it was first; the one behind it looks at the place before this one.
const GONE: u32 = 3;

/// The place of a call in a queue.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) state: AtomicU32,
    /// The place before it, when its call is gone.
    pub(crate) before: AtomicU32,
}

/// Calls that wait for one lock.
#[derive(Debug)]
pub(crate) struct Queue {
    /// The number of the place of the one that came last, from 1 on; 0 if the queue is empty.
    pub(crate) last: AtomicU32,
}

impl Queue {
    /// Whether no call waits. A call that has left before it was first may still stand there until the next one comes.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.last.load(Relaxed) == 0
    }

    /// Stands behind all others, at one of these places. Looks for a free one from `hint` on.
    pub(crate) fn join<'a>(&'a self, places: &'a [Place], hint: usize) -> Turn<'a> {
        let is_free = |at: &usize| {
            let state = &places[*at].state;
            state.load(Relaxed) == FREE && state.compare_exchange(FREE, WAITS, Acquire, Relaxed).is_ok()
        };
        let from = hint % places.len();
        let own = (from..places.len()).chain(0..from).find(is_free).map_or(0, |at| at as u32 + 1);
        let before = if own == 0 { 0 } else { self.last.swap(own, AcqRel) };
        Turn { queue: self, places, own, before }
    }
}

/// A call in a queue, until this is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    queue: &'a Queue,
    places: &'a [Place],
    /// Places by their numbers from 1 on; 0 for none.
    own: u32,
    before: u32,
}

impl Turn<'_> {
    fn place(&self, number: u32) -> Option<&Place> {
        self.places.get((number as usize).wrapping_sub(1))
    }

    /// Whether no other call comes before this one. Once it is so, it stays so. A call for which there was no place is not kept
    /// waiting.
    pub fn is_first(&mut self) -> bool {
        while let Some(place) = self.place(self.before) {
            let next = match place.state.load(Acquire) {
                PASSED => 0,
                GONE => place.before.load(Relaxed),
                _ => return false,
            };
            // No other call knows that place.
            place.state.store(FREE, Release);
            self.before = next;
        }
        true
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let is_first = self.is_first();
        let Some(own) = self.place(self.own) else { return };
        if !is_first {
            own.before.store(self.before, Relaxed);
            own.state.store(GONE, Release);
        } else if self.queue.last.compare_exchange(self.own, 0, AcqRel, Relaxed).is_ok() {
            own.state.store(FREE, Release);
        } else {
            own.state.store(PASSED, Release);
        }
    }
}
