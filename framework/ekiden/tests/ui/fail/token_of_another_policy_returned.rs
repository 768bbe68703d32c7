//! A token of another policy cannot be returned.

use ekiden::prelude::*;

struct Theirs;

struct Mine {
    theirs: SpinLock<FifoQueue<Theirs>>,
}

#[policy]
impl Scheduler for Mine {
    fn new(_: &Env) -> Self {
        Self { theirs: SpinLock::default() }
    }

    fn enqueue(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}

    fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
        self.theirs.lock().pop_front() //~ error[E0308]: mismatched types
    }
}

fn main() {}
