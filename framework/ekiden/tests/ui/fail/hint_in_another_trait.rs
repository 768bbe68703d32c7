//! A method of a trait beside `Scheduler` belongs into an implementation of that one.

use ekiden::{HintRefused, prelude::*};

struct Told;

#[policy]
impl Scheduler for Told {
    fn new(_: &Env) -> Self {
        Self
    }

    fn enqueue(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}

    fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
        None
    }

    fn parse_hint(&self, _: &Cx<'_>, _: Option<&Task>, _: ()) -> Result<(), HintRefused> { //~ error: `parse_hint` belongs to `impl HintQueues`: move it there, and name that here, as in `#[policy(HintQueues)]`
        Ok(())
    }
}

fn main() {}
