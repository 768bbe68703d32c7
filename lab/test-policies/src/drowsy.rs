//! A FIFO with stealing whose CPUs look around before they say that they are idle, not after. A task that comes in between
//! waits on a busy CPU, and the idle one is not woken up: the race of every scheduler that keeps a set of idle CPUs. With
//! `order=1` it takes two locks in the order of the CPU that asks, and so can deadlock.

use ekiden::prelude::*;

/// See above.
pub struct Drowsy {
    queues: PerCpu<SpinLock<FifoQueue<Self>>>,
    idle: SpinLock<CpuMask>,
    careful: bool,
    disordered: bool,
}

impl Drowsy {
    fn anything_for(&self, cpu: CpuId) -> Option<TaskId> {
        let others = self.queues.iter().filter(|(other, _)| *other != cpu);
        others.filter_map(|(_, queue)| Some(queue.lock().front()?.task())).next()
    }
}

#[policy]
impl Scheduler for Drowsy {
    const PARAMS: &'static [Param] = &[
        Param { name: "careful", help: "look around again after having said so", default: 0, min: 0, max: 1 },
        Param { name: "order", help: "1: hold one's own queue while looking at others", default: 0, min: 0, max: 1 },
    ];

    type State = Self;

    fn new(env: &Env) -> Self {
        Self {
            queues: PerCpu::new(env, |_| SpinLock::default()),
            idle: SpinLock::default(),
            careful: env.param("careful") == 1,
            disordered: env.param("order") == 1,
        }
    }

    fn enqueue(&self, cx: &Cx, _: &Task, token: Schedulable<Self>) {
        self.queues[token.cpu()].lock().push_back(token);
        let idle = self.idle.lock().first();
        if let Some(cpu) = idle {
            cx.resched(cpu);
        }
    }

    fn pick_next_task(&self, _: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        self.queues[cpu].lock().pop_front()
    }

    fn migrate_task_rq(&self, _: &Cx, task: &Task, new: Schedulable<Self>) -> Option<Schedulable<Self>> {
        let old = self.queues.iter().find_map(|(_, queue)| queue.lock().remove(task.id));
        self.queues[new.cpu()].lock().push_back(new);
        old
    }

    fn balance(&self, _: &Cx, cpu: CpuId) -> Option<TaskId> {
        let held = self.disordered.then(|| self.queues[cpu].lock());
        let found = self.anything_for(cpu);
        drop(held);
        found
    }

    fn enter_idle(&self, cx: &Cx, cpu: CpuId) {
        self.idle.lock().set(cpu);
        if self.careful && self.anything_for(cpu).is_some() {
            cx.resched(cpu);
        }
    }

    fn exit_idle(&self, _: &Cx, cpu: CpuId) {
        self.idle.lock().clear(cpu);
    }

    fn reregister_prep(self) -> Self {
        self
    }

    fn reregister_init(_: &Env, state: Self) -> Self {
        state
    }

    fn pnt_err(&self, cx: &Cx, _: CpuId, task: &Task, reason: RefusalReason, token: Schedulable<Self>) {
        match reason {
            RefusalReason::Stale | RefusalReason::Gone | RefusalReason::NotReady => drop(token),
            _ => self.enqueue(cx, task, token),
        }
    }
}
