//! The order in which the locks of a policy are taken, told from the points that its calls reach.
//!
//! Exempt: a lock that is only tried. Circles of three locks and more are seen only if they do come to a deadlock.

use std::panic::Location;

use ekiden_check::LockOrder;
use ekiden_host::observe::Point;

/// The order of all locks so far, by address, and the first inversion of it.
#[derive(Debug, Default)]
pub(crate) struct PointOrder {
    cpu: usize,
    order: LockOrder<usize, &'static Location<'static>>,
    inversion: Option<String>,
}

impl PointOrder {
    pub(crate) fn new(nr_cpus: usize) -> Self {
        Self { order: LockOrder::new(nr_cpus), ..Self::default() }
    }

    /// This CPU reaches the points from here on.
    pub(crate) fn goes_on(&mut self, cpu: usize) {
        self.cpu = cpu;
    }

    pub(crate) fn reach(&mut self, point: Point) {
        match point {
            Point::Took(lock) => self.order.took(self.cpu, lock),
            Point::Released(lock) => self.order.released(self.cpu, lock),
            Point::Wants(lock, here, _) => {
                let Some((_, there)) = self.order.wants(self.cpu, lock, here) else { return };
                let place = |at: &Location<'_>| format!("{}:{}", at.file(), at.line());
                let (here, there) = (place(here), place(there));
                self.inversion.get_or_insert_with(|| {
                    format!("lock order: two locks are taken in one order at {there}, in the other at {here}")
                });
            }
            Point::Tries(..) | Point::Waits(_) => {}
        }
    }

    /// The inversion that was found, if there is one.
    pub(crate) fn inversion(self) -> Option<String> {
        self.inversion
    }
}
