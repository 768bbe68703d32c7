//! A type whose name is no name of a policy needs one; this is the only error then.

use ekiden::prelude::*;

struct Größe;

#[policy]
impl Scheduler for Größe { //~ error: no name of a policy can be made from this type: write `const NAME
    fn new(_: &Env) -> Self {
        Self
    }

    fn enqueue(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}

    fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
        None
    }
}

fn main() {}
