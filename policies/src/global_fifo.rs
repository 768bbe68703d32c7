//! First come, first served, by all CPUs from one queue. It gives up warm caches, and on machines with many CPUs the time that they
//! spend waiting for the lock.

use ekiden::prelude::*;

/// One queue for the machine.
#[derive(Layout)]
pub struct GlobalFifo {
    queue: SpinLock<FifoQueue<Self>>,
}

#[policy]
impl Scheduler for GlobalFifo {
    fn new(_: &Env) -> Self {
        Self { queue: SpinLock::default() }
    }

    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        self.queue.lock().push_back(token);
        cx.kick_idle(task.id);
    }

    fn pick_next_task(&self, cx: &Cx, _: CpuId) -> Option<Schedulable<Self>> {
        self.queue.lock().claim_first(cx)
    }

    /// It does not run after all, and keeps its place.
    fn pnt_err(&self, _: &Cx, _: CpuId, _: &Task, reason: RefusalReason, token: Schedulable<Self>) {
        if reason.token_is_good() {
            self.queue.lock().push_front(token);
        }
    }
}
