//! Locks of two classes are always taken in one order, all through the trace: otherwise two calls can come to wait for each
//! other without end.
//!
//! Exempt: two locks of one class, which need an order that the class does not tell. Not seen: circles of three classes and
//! more, locks that were only tried, and hosts that note no locks; the simulator notes none, and the explorer looks at each
//! lock by itself there.

use ekiden_trace::{Record, What};

use crate::{Check, LockOrder, View, Violation};

/// Locks are always taken in one order.
pub struct Locks {
    /// The order of classes; the places are moments and CPUs.
    order: LockOrder<u64, (u64, u32)>,
}

impl Locks {
    /// For a machine of this many CPUs.
    pub fn new(nr_cpus: usize) -> Self {
        Self { order: LockOrder::new(nr_cpus) }
    }
}

impl Check for Locks {
    fn name(&self) -> &'static str {
        "lock-order"
    }

    fn record(&mut self, view: &View, record: &Record, found: &mut Vec<Violation>) {
        let Record { cpu, what, value: class, .. } = *record;
        match what {
            What::Lock => {
                if let Some((first, (since_ns, other))) = self.order.wants(cpu as usize, class, (view.now_ns, cpu)) {
                    found.push(Violation {
                        check: self.name(),
                        since_ns,
                        at_ns: view.now_ns,
                        cpus: vec![other, cpu],
                        tasks: Vec::new(),
                        message: format!(
                            "CPU {other} took a lock of class {first} while it held one of class {class}, and CPU {cpu} \
                             takes them the other way round"
                        ),
                    });
                }
                self.order.took(cpu as usize, class);
            }
            What::Unlock => self.order.released(cpu as usize, class),
            _ => {}
        }
    }
}
