//! A method that the trait does not have is an error, and not a call that never comes.

use ekiden::prelude::*;

struct Typo;

#[policy]
impl Scheduler for Typo {
    fn new(_: &Env) -> Self {
        Self
    }

    fn enqueue(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}

    fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
        None
    }

    fn task_woke_up(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {} //~ error[E0407]: method `task_woke_up` is not a member of trait `Scheduler`
}

fn main() {}
