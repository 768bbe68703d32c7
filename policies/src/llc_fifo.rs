//! First come, first served, from one queue per last-level cache, and from the others' when that is empty. It gives up fairness
//! between caches: while all have work, a task waits for the CPUs of its own, however long that queue is.

use ekiden::prelude::*;

/// A queue per last-level cache.
#[derive(Layout)]
pub struct LlcFifo {
    queues: PerLlc<SpinLock<FifoQueue<Self>>>,
}

#[policy]
impl Scheduler for LlcFifo {
    fn new(env: &Env) -> Self {
        Self { queues: PerLlc::new(env, |_| SpinLock::default()) }
    }

    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let cpu = token.cpu();
        self.queues[cpu].lock().push_back(token);
        cx.kick_idle_in(task.id, cx.topology().llc(cpu)).or_else(|| cx.kick_idle(task.id));
    }

    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        let own = self.queues[cpu].lock().claim_first(cx);
        own.or_else(|| self.queues.iter().find_map(|(_, queue)| queue.lock().claim_first(cx)))
    }

    /// It does not run after all, and keeps its place.
    fn pnt_err(&self, _: &Cx, _: CpuId, _: &Task, reason: RefusalReason, token: Schedulable<Self>) {
        if reason.token_is_good() {
            self.queues[token.cpu()].lock().push_front(token);
        }
    }
}
