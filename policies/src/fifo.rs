//! First come, first served, on each CPU by itself. It gives up fairness between tasks and balance between CPUs.
//! Checks that find it: `work-conservation`, `wasted-time`.

use ekiden::prelude::*;

/// A queue per CPU.
#[derive(Layout)]
pub struct Fifo {
    queues: PerCpu<SpinLock<FifoQueue<Self>>>,
}

#[policy]
impl Scheduler for Fifo {
    fn new(env: &Env) -> Self {
        Self { queues: PerCpu::new(env, |_| SpinLock::default()) }
    }

    fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
        self.queues[token.cpu()].lock().push_back(token);
    }

    fn pick_next_task(&self, _: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        self.queues[cpu].lock().pop_front()
    }
}
