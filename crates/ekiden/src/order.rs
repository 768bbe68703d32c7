//! In which order locks are taken, and who waits for whom. Calls are told apart by where their stacks are, which costs an
//! instruction and needs no help of a host.

use core::{
    panic::Location,
    sync::atomic::{
        AtomicU32, AtomicU64, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

/// Where this call's stack is.
#[inline]
pub(crate) fn stack() -> usize {
    let here = 0_u8;
    core::ptr::from_ref(&here).addr()
}

/// Whether two places are on the stack of one call, which has less than this (6 KiB in the kernel).
fn is_same(one: usize, other: usize) -> bool {
    one.abs_diff(other) < 8 << 10
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
static HELD_AT: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// The class of a lock after others were released in another order than that in which they were taken.
const UNKNOWN: u64 = (1 << 28) - 1;

const fn pack(block: u64, depth: u64, class: u64) -> u64 {
    block << 32 | depth << 28 | class & UNKNOWN
}

/// What a guard puts back.
#[derive(Debug)]
pub(crate) struct Nested {
    place: usize,
    own: u64,
    before: u64,
    before_at: usize,
}

/// Nothing is known any more, and nobody waits.
pub(crate) fn forget() {
    KNOWN.iter().for_each(|class| class.store(0, Relaxed));
    AFTER.iter().chain(&HELD).for_each(|word| word.store(0, Relaxed));
    WAITING.iter().for_each(|waiter| waiter.stack.store(0, Relaxed));
}

/// This call has taken a lock.
///
/// # Panics
/// If it has another one that is taken after this one elsewhere.
#[inline(never)]
#[track_caller]
pub(crate) fn take(class: Class, at: usize) -> Nested {
    let block = (stack() >> 14) as u64 & 0xffff_ffff;
    let place = block as usize % HELD.len();
    let (before, before_at) = (HELD[place].load(Relaxed), HELD_AT[place].load(Relaxed));
    // That of another stack is not ours to put back; whoever has it loses sight of it, and that is all.
    let before = if before >> 32 == block { before } else { 0 };
    let (depth, outer) = (before >> 28 & 0xf, before & UNKNOWN);
    if depth > 0 && outer != UNKNOWN {
        check(outer as u32, before_at, class, at);
    }
    let own = pack(block, (depth + 1).min(0xf), if depth > 0 && outer == UNKNOWN { UNKNOWN } else { class.0.into() });
    HELD[place].store(own, Relaxed);
    HELD_AT[place].store(at, Relaxed);
    Nested { place, own, before, before_at }
}

/// It lets go of it.
#[inline(never)]
pub(crate) fn release(nested: Nested) {
    let Nested { place, own, before, before_at } = nested;
    let now = HELD[place].load(Relaxed);
    if now == own {
        HELD[place].store(before, Relaxed);
        HELD_AT[place].store(before_at, Relaxed);
    } else if now >> 32 == own >> 32 {
        let depth = (now >> 28 & 0xf).saturating_sub(1);
        HELD[place].store(if depth == 0 { 0 } else { pack(now >> 32, depth, UNKNOWN) }, Relaxed);
    }
}

#[cold]
#[track_caller]
fn check(outer: u32, outer_at: usize, class: Class, at: usize) {
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

/// Calls that wait for a lock.
static WAITING: [Waiter; 64] = [const { Waiter::new() }; 64];

struct Waiter {
    /// Where its stack is; 0 for nobody.
    stack: AtomicUsize,
    /// That of the call which has the lock, as it was at the last look.
    holder: AtomicUsize,
    looks: AtomicU32,
}

impl Waiter {
    const fn new() -> Self {
        Self { stack: AtomicUsize::new(0), holder: AtomicUsize::new(0), looks: AtomicU32::new(0) }
    }
}

/// A call that waits for a lock.
pub(crate) struct Waiting {
    stack: usize,
    /// Its place, if there was room.
    own: Option<&'static Waiter>,
    /// Who waits for it, and how often that one had looked when that was first seen.
    other: Option<(&'static Waiter, u32)>,
}

impl Waiting {
    pub(crate) fn begin() -> Self {
        let stack = stack();
        let own = WAITING.iter().find(|place| place.stack.compare_exchange(0, stack, SeqCst, Relaxed).is_ok());
        own.inspect(|own| own.holder.store(0, SeqCst));
        Self { stack, own, other: None }
    }

    /// It looks once more; the call with the stack `holder` has the lock, or none of which it is known.
    ///
    /// # Panics
    /// If the holder is this call, or waits for this call.
    #[track_caller]
    pub(crate) fn look(&mut self, holder: usize) {
        if holder == 0 {
            self.other = None;
            return;
        }
        assert!(!is_same(holder, self.stack), "deadlock: this call has the lock already");
        if let Some(own) = self.own {
            own.holder.store(holder, SeqCst);
            own.looks.fetch_add(1, SeqCst);
        }
        let waits = |waiter: &&Waiter| {
            let stack = waiter.stack.load(SeqCst);
            stack != 0 && is_same(stack, holder) && is_same(waiter.holder.load(SeqCst), self.stack)
        };
        let other = WAITING.iter().find(waits).map(|other| (other, other.looks.load(SeqCst)));
        match (self.other, other) {
            // It has looked since this call waits, which lets go of nothing meanwhile.
            (Some((one, before)), Some((same, now))) if core::ptr::eq(one, same) => {
                assert!(now.wrapping_sub(before) < 2, "deadlock: two calls wait for each other's locks");
            }
            (_, other) => self.other = other,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(own) = self.own {
            own.stack.store(0, SeqCst);
        }
    }
}
