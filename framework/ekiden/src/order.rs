//! The order in which locks are taken, and which call waits for which. The address of its stack identifies a call, which costs an
//! instruction and needs no help of a host.

use core::{
    panic::Location,
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use crate::call_log::{learn_here, learn_on_call_log};
use crate::waiters::{Waiter, Waiters, Waiting, is_same};

/// Where this call's stack is.
#[inline]
pub(crate) fn stack() -> usize {
    let here = 0_u8;
    core::ptr::from_ref(&here).addr()
}

/// Whether a lock is held by the call that asks, by the number that is in the lock. For hosts.
pub fn is_of_this_call(holder: usize) -> bool {
    is_same(holder, stack())
}

/// Where locks were made: their line, and something of column and file. Plain data, so that it outlives the program that made
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Class(u32);

impl Class {
    #[track_caller]
    pub(crate) const fn of_caller() -> Self {
        let place = Location::caller();
        let file = place.file().as_bytes();
        let last = if file.len() > 3 { file[file.len() - 4] as u32 } else { 0 };
        Self(place.line() << 12 | ((place.column() * 31) ^ (file.len() as u32 * 7) ^ last) & 0xfff)
    }

    fn line(self) -> u32 {
        self.0 >> 12
    }
}

/// How many kinds of locks a policy may have before some are not looked at.
const CLASSES: usize = 64;
static KNOWN: [AtomicU32; CLASSES] = [const { AtomicU32::new(0) }; CLASSES];
/// For each class those that were taken while one of it was held.
static AFTER: [AtomicU64; CLASSES] = [const { AtomicU64::new(0) }; CLASSES];

/// The innermost lock that is held, for each stack that falls here: part of where the stack is (32 bits), how many are held (4),
/// and the class (28, which all are but for lines beyond 65,535).
static HELD: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// Where that lock is, and part of where the stack is (16 bits): another stack that falls here at the same time may be the last to write
/// the one and not the other.
static HELD_AT: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// The class of a lock after others were released in another order than that in which they were taken.
const UNKNOWN: u64 = (1 << 28) - 1;

const fn pack(block: u64, depth: u64, class: u64) -> u64 {
    block << 32 | depth << 28 | class & UNKNOWN
}

/// How many locks are held of which note was taken.
static NOTED: AtomicU32 = AtomicU32::new(0);

/// Note is taken of two times in a row out of 64 that a lock is taken, the first among them, and of every lock inside of such a
/// one: an order is wrong again and again, and to look each time costs one per cent of a round trip through a pipe.
const SELDOM: u32 = 62;

/// What a lock knows of itself and of the call that has it. Written by that call.
#[derive(Debug)]
pub(crate) struct Holder {
    /// How often it was taken.
    taken: AtomicU32,
    class: Class,
    /// What stands in [`HELD`] for this lock; 0 if no note was taken.
    noted: AtomicU64,
    /// What stood there before.
    before: AtomicU64,
    before_at: AtomicU64,
}

impl Holder {
    #[track_caller]
    pub(crate) const fn none() -> Self {
        Self {
            taken: AtomicU32::new(0),
            class: Class::of_caller(),
            noted: AtomicU64::new(0),
            before: AtomicU64::new(0),
            before_at: AtomicU64::new(0),
        }
    }

    /// How often it was taken.
    #[cfg(feature = "observe")]
    pub(crate) fn taken(&self) -> u32 {
        self.taken.load(Relaxed)
    }

    /// It is taken once more: how often it was by now. By the call that has it.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        let taken = self.taken.load(Relaxed).wrapping_add(1);
        self.taken.store(taken, Relaxed);
        taken
    }

    /// This call has it, after it has waited or would have, and is in the call log. By itself, so that what takes a lock is small enough to be
    /// part of what it is called by.
    #[inline(never)]
    #[track_caller]
    pub(crate) fn begun_on_call_log(&self) {
        let taken = self.count();
        if taken & SELDOM == 0 || NOTED.load(Relaxed) != 0 {
            self.note();
        }
        learn_here(taken.into());
    }

    /// This call has the lock, for which it would not have waited, and is in the call log.
    #[inline]
    pub(crate) fn begun_at_once(&self) {
        learn_on_call_log(self.count().into());
    }

    /// It is about to let go of it.
    #[inline]
    pub(crate) fn end(&self) {
        if self.noted.load(Relaxed) != 0 {
            self.forget();
        }
    }

    /// Takes note that this call has taken a lock.
    ///
    /// # Panics
    /// If it has another one that is taken after this one elsewhere.
    #[cold]
    #[track_caller]
    fn note(&self) {
        let block = block_of(stack());
        let (class, at) = (self.class, place_on(block, core::ptr::from_ref(self).addr()));
        let place = block as usize % HELD.len();
        let (before, before_at) = (HELD[place].load(Relaxed), HELD_AT[place].load(Relaxed));
        // An entry of another stack is not put back: that call is then not checked against this lock, and nothing else is lost.
        let before = if before >> 32 == block { before } else { 0 };
        let (depth, outer) = (before >> 28 & 0xf, before & UNKNOWN);
        if depth > 0 && outer != UNKNOWN && before_at >> 48 == at >> 48 {
            check(outer as u32, before_at, class, at);
        }
        let own = if depth > 0 && outer == UNKNOWN { UNKNOWN } else { class.0.into() };
        // Never 0: the depth is not.
        let own = pack(block, (depth + 1).min(0xf), own);
        self.noted.store(own, Relaxed);
        self.before.store(before, Relaxed);
        self.before_at.store(before_at, Relaxed);
        HELD[place].store(own, Relaxed);
        HELD_AT[place].store(at, Relaxed);
        NOTED.fetch_add(1, Relaxed);
    }

    #[cold]
    fn forget(&self) {
        let own = self.noted.swap(0, Relaxed);
        let place = (own >> 32) as usize % HELD.len();
        let now = HELD[place].load(Relaxed);
        if now == own {
            HELD[place].store(self.before.load(Relaxed), Relaxed);
            HELD_AT[place].store(self.before_at.load(Relaxed), Relaxed);
        } else if now >> 32 == own >> 32 {
            let depth = (now >> 28 & 0xf).saturating_sub(1);
            HELD[place].store(if depth == 0 { 0 } else { pack(now >> 32, depth, UNKNOWN) }, Relaxed);
        }
        NOTED.fetch_sub(1, Relaxed);
    }
}

/// Which stack that is: they are as large as this, and aligned to it.
fn block_of(stack: usize) -> u64 {
    (stack >> 14) as u64 & 0xffff_ffff
}

/// An address, of which the upper bits are the same for all, with part of the stack that it is noted for.
fn place_on(block: u64, address: usize) -> u64 {
    block << 48 | address as u64 & ((1 << 48) - 1)
}

/// Forgets all orders, and all calls that wait.
pub(crate) fn forget(host: ekiden_lock::OfHost) {
    KNOWN.iter().for_each(|class| class.store(0, Relaxed));
    AFTER.iter().chain(&HELD).for_each(|word| word.store(0, Relaxed));
    WAITING.places.iter().for_each(|waiter| waiter.since.store(0, Relaxed));
    NOTED.store(0, Relaxed);
    ekiden_lock::forget_waiters(host);
}

#[cold]
#[track_caller]
fn check(outer: u32, outer_at: u64, class: Class, at: u64) {
    let outer = Class(outer);
    if outer == class {
        assert!(
            outer_at < at,
            "lock order: two locks that were made at line {} are taken in the reverse order of their addresses",
            class.line(),
        );
        return;
    }
    let (Some(first), Some(second)) = (known(outer), known(class)) else { return };
    if AFTER[first].load(Relaxed) >> second & 1 != 0 {
        return;
    }
    assert!(
        !leads_to(second, first),
        "lock order: a lock that was made at line {} is taken while one of line {} is held, elsewhere the other way round",
        class.line(),
        outer.line(),
    );
    AFTER[first].fetch_or(1 << second, Relaxed);
}

/// The number of a class; none if there are too many.
fn known(class: Class) -> Option<usize> {
    let is_it = |known: &AtomicU32| {
        let seen = known.compare_exchange(0, class.0, Relaxed, Relaxed);
        seen.map_or_else(|there| there == class.0, |_| true)
    };
    KNOWN.iter().position(is_it)
}

/// Whether locks of one class are taken, by whatever detours, before those of another.
fn leads_to(from: usize, to: usize) -> bool {
    let mut seen = 1_u64 << from;
    for _ in 0..CLASSES {
        let next = |all: u64, class: usize| all | if seen >> class & 1 != 0 { AFTER[class].load(Relaxed) } else { 0 };
        let reached = (0..CLASSES).fold(seen, next);
        if reached == seen {
            break;
        }
        seen = reached;
    }
    seen >> to & 1 != 0
}

/// More calls at once than most machines have CPUs.
static WAITING: Waiters<256> = Waiters {
    places: [const {
        Waiter {
            since: AtomicU64::new(0),
            stack: AtomicUsize::new(0),
            holder: AtomicUsize::new(0),
            looked: AtomicU64::new(0),
        }
    }; 256],
    taken: AtomicUsize::new(0),
    moment: AtomicU64::new(1),
};

/// This call begins to wait for a lock.
pub(crate) fn wait() -> Waiting<'static, 256> {
    WAITING.begin(stack())
}

/// The call looks once more at the holder of the lock: the stack of its call, or 0 if there is none.
///
/// # Panics
/// If the holder is this call, or waits for this call.
#[track_caller]
pub(crate) fn look(waiting: &mut Waiting<'_, 256>, holder: impl FnOnce() -> usize) {
    match waiting.look(holder) {
        None => {}
        Some(1) => panic!("deadlock: this call has the lock already"),
        Some(2) => panic!("deadlock: two calls wait for each other's locks"),
        Some(calls) => panic!("deadlock: {calls} calls wait for each other's locks"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two stacks fall on one place: one was the last to say which lock it has, and the other where that is.
    #[test]
    fn where_the_lock_of_another_stack_is_says_nothing_of_our_order() {
        let locks = [(); 2].map(|()| Holder::none());
        locks[0].note();
        let block = block_of(stack());
        HELD_AT[block as usize % HELD_AT.len()].store(place_on(block + 64, usize::MAX), Relaxed);
        locks[1].note();
        locks.iter().rev().for_each(Holder::forget);
    }
}
