//! What a call does that a host may want to know of: an explorer lets another call go on where something happens to a
//! lock, a replayer lets calls take locks in the order in which they did before, and a simulator records which CPUs a
//! decision looked at. Both show what a policy says of itself in words.

use core::fmt::Arguments;
use core::panic::Location;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ekiden_abi::Message;

use crate::CpuId;

/// What a call has come to. Locks are named by their address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// It is about to look whether the lock is free, and does not wait if it is not. The lock was taken so often before.
    Tries(usize, u32),
    /// It will not go on without the lock; the place in the policy is where. The lock was taken so often before.
    Wants(usize, &'static Location<'static>, u32),
    /// It has the lock.
    Took(usize),
    /// It found the lock taken, and will look again.
    Waits(usize),
    /// It has let go of the lock.
    Released(usize),
}

/// How a call continues after a [`Point::Tries`] or [`Point::Wants`]; ignored at the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// As without an observer.
    GoOn,
    /// It asks again: something may have happened meanwhile.
    AskAgain,
    /// As if the lock were taken. Only for [`Point::Tries`].
    Fail,
}

static LOCKS: spin::Once<fn(Point) -> Answer> = spin::Once::new();
static LOOKS: spin::Once<fn(CpuId)> = spin::Once::new();
static TEXTS: spin::Once<fn(&Message, Arguments<'_>)> = spin::Once::new();
static SHOWS: AtomicBool = AtomicBool::new(false);

/// From here on `observer` is called at every point of every call in this program. The first one stays.
pub fn observe_locks(observer: fn(Point) -> Answer) {
    LOCKS.call_once(|| observer);
}

/// From here on `observer` is called when a call in this program looks at what a policy keeps for a CPU
/// ([`PerCpu`](crate::PerCpu)). The first one stays.
pub fn observe_looks(observer: fn(CpuId)) {
    LOOKS.call_once(|| observer);
}

/// From here on, while texts are [shown](show_texts), `observer` is given the text of every [`debug!`](crate::debug!) in this
/// program, with the message of the call. The first one stays.
pub fn observe_texts(observer: fn(&Message, Arguments<'_>)) {
    TEXTS.call_once(|| observer);
}

/// Whether texts are shown, for all calls in this program.
pub fn show_texts(on: bool) {
    SHOWS.store(on, Relaxed);
}

#[inline]
pub(crate) fn shows_text() -> bool {
    SHOWS.load(Relaxed)
}

pub(crate) fn show_text(message: &Message, text: Arguments<'_>) {
    if let Some(observer) = TEXTS.get() {
        observer(message, text);
    }
}

/// Cost without an observer: one load.
#[inline]
pub(crate) fn reach(point: Point) -> Answer {
    LOCKS.get().map_or(Answer::GoOn, |observer| observer(point))
}

/// Cost without an observer: one load.
#[inline]
pub(crate) fn look(cpu: CpuId) {
    if let Some(observer) = LOOKS.get() {
        observer(cpu);
    }
}
