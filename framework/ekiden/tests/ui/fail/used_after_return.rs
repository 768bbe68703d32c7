//! A token that is returned cannot be queued as well.

use ekiden::prelude::*;

struct Keeper {
    queue: SpinLock<FifoQueue<Self>>,
}

#[policy]
impl Scheduler for Keeper {
    fn new(_: &Env) -> Self {
        Self { queue: SpinLock::default() }
    }

    fn enqueue(&self, _: &Cx<'_>, _: &Task, token: Schedulable<Self>) {
        self.queue.lock().push_back(token);
    }

    fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
        let token = self.queue.lock().pop_front()?;
        let picked = Some(token);
        self.queue.lock().push_back(token); //~ error[E0382]: use of moved value: `token`
        picked
    }
}

fn main() {}
