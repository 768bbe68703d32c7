//! `#[policy]` takes the names of traits that are implemented besides, and no other; this is the only error then.

use ekiden::prelude::*;

struct Fifo;

#[policy(name = "fifo")] //~ error: `#[policy]` takes the names of what is implemented besides: `HintQueues`, `TaskSettings`, `SavedState`
impl Scheduler for Fifo {
    fn new(_: &Env) -> Self {
        Self
    }

    fn enqueue(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}

    fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
        None
    }
}

fn main() {}
