//! Locks are always taken in one order. Taken in two, calls can come to wait for each other, even if they did not in this
//! run; the kernel's lockdep looks for the same.
//!
//! Exempt: a lock that is only tried. Not seen: circles of three locks and more, unless they do come to a deadlock. As in
//! lockdep, two orders that a third lock keeps apart are reported although nothing can happen.

use std::collections::BTreeMap;
use std::panic::Location;

use ekiden::observe::Point;

/// In which order locks were taken so far.
#[derive(Debug, Default)]
pub(crate) struct LockOrder {
    cpu: usize,
    /// What each CPU holds.
    held: Vec<Vec<usize>>,
    /// Where the second was wanted while the first was held.
    after: BTreeMap<(usize, usize), &'static Location<'static>>,
    inversion: Option<String>,
}

impl LockOrder {
    pub(crate) fn new(nr_cpus: usize) -> Self {
        Self { held: vec![Vec::new(); nr_cpus], ..Self::default() }
    }

    /// What is reached from here on is reached by this CPU.
    pub(crate) fn goes_on(&mut self, cpu: usize) {
        self.cpu = cpu;
    }

    pub(crate) fn reach(&mut self, point: Point) {
        let held = &mut self.held[self.cpu];
        match point {
            Point::Took(lock) => held.push(lock),
            Point::Released(lock) => held.retain(|other| *other != lock),
            Point::Wants(lock, here) => {
                for first in held.iter().copied().filter(|first| *first != lock) {
                    self.after.entry((first, lock)).or_insert(here);
                    if let Some(there) = self.after.get(&(lock, first)) {
                        let place = |at: &Location<'_>| format!("{}:{}", at.file(), at.line());
                        let (here, there) = (place(here), place(there));
                        self.inversion.get_or_insert_with(|| {
                            format!("lock order: two locks are taken in one order at {there}, in the other at {here}")
                        });
                    }
                }
            }
            Point::Tries(_) | Point::Waits(_) => {}
        }
    }

    /// What was found, if anything.
    pub(crate) fn inversion(self) -> Option<String> {
        self.inversion
    }
}
