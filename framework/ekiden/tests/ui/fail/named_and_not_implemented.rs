//! What `#[policy(…)]` names has to be there.

use ekiden::prelude::*;

struct Told;

#[policy(HintQueues)]
impl Scheduler for Told { //~ error[E0277]: the trait bound `Told: HintQueues` is not satisfied
    fn new(_: &Env) -> Self {
        Self
    }

    fn enqueue(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}

    fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
        None
    }
}

fn main() {}
