//! Points at which an explorer may let another call go on: what happens to locks.

use core::panic::Location;

/// What a call has come to. Locks are named by their address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// It is about to look whether the lock is free, and does not wait if it is not.
    Tries(usize),
    /// It will not go on without the lock; the place in the policy is where.
    Wants(usize, &'static Location<'static>),
    /// It has the lock.
    Took(usize),
    /// It found the lock taken, and will look again.
    Waits(usize),
    /// It has let go of the lock.
    Released(usize),
}

static EXPLORER: spin::Once<fn(Point)> = spin::Once::new();

/// From here on `explorer` is called at every point of every call in this program. The first one stays.
pub fn explore_with(explorer: fn(Point)) {
    EXPLORER.call_once(|| explorer);
}

/// Cost without an explorer: one load.
#[inline]
pub(crate) fn reach(point: Point) {
    if let Some(explorer) = EXPLORER.get() {
        explorer(point);
    }
}
