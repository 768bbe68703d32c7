//! `#[policy]` does not fill in what is required.

use ekiden::prelude::*;

struct Lazy;

#[policy]
impl Scheduler for Lazy { //~ error[E0046]: not all trait items implemented, missing: `pick_next_task`
    fn new(_: &Env) -> Self {
        Self
    }

    fn enqueue(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}
}

fn main() {}
