//! What a call lends cannot be kept beyond it.

use ekiden::prelude::*;

struct Keeper {
    last: SpinLock<Option<&'static Task>>,
}

#[policy]
impl Scheduler for Keeper {
    fn new(_: &Env) -> Self {
        Self { last: SpinLock::default() }
    }

    fn enqueue(&self, _: &Cx<'_>, task: &Task, _: Schedulable<Self>) {
        *self.last.lock() = Some(task); //~ error[E0521]: borrowed data escapes outside of method
    }

    fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
        None
    }
}

fn main() {}
