//! The smallest policy: three methods.
#![forbid(unsafe_code)]

use ekiden::prelude::*;

struct Smallest {
    queue: SpinLock<FifoQueue<Self>>,
}

#[policy]
impl Scheduler for Smallest {
    fn new(_: &Env) -> Self {
        Self { queue: SpinLock::default() }
    }

    fn enqueue(&self, _: &Cx<'_>, _: &Task, token: Schedulable<Self>) {
        self.queue.lock().push_back(token);
    }

    fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
        self.queue.lock().pop_front()
    }
}

fn main() {
    assert_eq!(Smallest::NAME, "smallest");
}
