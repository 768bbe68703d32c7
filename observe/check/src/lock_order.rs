//! Locks are always taken in one order. Taken in two, calls can come to wait for each other, even if they did not yet; the
//! kernel's lockdep looks for the same. The explorer uses it on locks by address, the check of traces on classes.
//!
//! Not seen: circles of three locks and more. As in lockdep, two orders that a third lock keeps apart are found although
//! nothing can happen.

use std::collections::BTreeMap;

/// The order in which locks were taken so far. `L` names a lock, and `P` the place where one was wanted.
#[derive(Clone, Debug)]
pub struct LockOrder<L, P> {
    /// What each CPU holds.
    held: Vec<Vec<L>>,
    /// Where the second was wanted while the first was held.
    after: BTreeMap<(L, L), P>,
}

impl<L, P> Default for LockOrder<L, P> {
    fn default() -> Self {
        Self { held: Vec::new(), after: BTreeMap::new() }
    }
}

impl<L: Copy + Ord, P: Copy> LockOrder<L, P> {
    /// Nothing has been taken yet, by any of this many CPUs.
    pub fn new(nr_cpus: usize) -> Self {
        Self { held: (0..nr_cpus).map(|_| Vec::new()).collect(), after: BTreeMap::new() }
    }

    /// A CPU has a lock.
    pub fn took(&mut self, cpu: usize, lock: L) {
        self.held[cpu].push(lock);
    }

    /// A CPU has let go of a lock.
    pub fn released(&mut self, cpu: usize, lock: L) {
        if let Some(at) = self.held[cpu].iter().rposition(|held| *held == lock) {
            self.held[cpu].remove(at);
        }
    }

    /// A CPU will not go on without a lock. Returns a lock that it holds already and that was once wanted while this one was
    /// held, and where that was.
    pub fn wants(&mut self, cpu: usize, lock: L, here: P) -> Option<(L, P)> {
        let mut inversion = None;
        for first in self.held[cpu].iter().copied().filter(|first| *first != lock) {
            self.after.entry((first, lock)).or_insert(here);
            inversion = inversion.or(self.after.get(&(lock, first)).map(|there| (first, *there)));
        }
        inversion
    }
}
