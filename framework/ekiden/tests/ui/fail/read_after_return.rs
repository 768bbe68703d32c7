//! A token that was given away cannot even be looked at.

use ekiden::prelude::*;

struct Reader {
    queue: SpinLock<FifoQueue<Self>>,
}

#[policy]
impl Scheduler for Reader {
    fn new(_: &Env) -> Self {
        Self { queue: SpinLock::default() }
    }

    fn enqueue(&self, cx: &Cx<'_>, _: &Task, token: Schedulable<Self>) {
        self.queue.lock().push_back(token);
        cx.resched(token.cpu()); //~ error[E0382]: borrow of moved value: `token`
    }

    fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
        self.queue.lock().pop_front()
    }
}

fn main() {}
