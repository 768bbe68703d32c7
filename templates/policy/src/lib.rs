//! Round robin: the tasks of a CPU take turns, and a CPU that runs out of work takes a waiting task from another. It
//! gives up nice values: every task counts the same.
//!
//! # How to read it
//!
//! The kernel asks, the policy answers. A task *waits* when it could run but has no CPU. For as long as it waits, the
//! policy holds a [`Schedulable`]: the right to run that one task on one CPU. Such a token comes in with
//! [`enqueue`](Scheduler::enqueue) and goes out with [`pick_next_task`](Scheduler::pick_next_task). It can be neither
//! copied nor made, so that no task can run twice, and one that gets lost is noticed.
//!
//! Several CPUs ask at once. That is why every call takes `&self`, and why the queues have locks.
#![no_std]
#![forbid(unsafe_code)]

use ekiden::prelude::*;

// The types that are policies. `MyPolicy` is called my-policy on the command line.
ekiden::policies![MyPolicy];

/// What the policy remembers.
#[derive(Layout)]
pub struct MyPolicy {
    /// The waiting tasks of each CPU: in front the one that has waited longest.
    queues: PerCpu<SpinLock<FifoQueue<Self>>>,
    /// How long a turn lasts.
    slice_ns: u64,
}

/// `#[policy]` names the policy after its type and notes which calls it implements; the others are never made. All
/// calls, each with what it is for, are in the documentation of [`Scheduler`].
#[policy]
impl Scheduler for MyPolicy {
    /// What can be set from outside, as in `slice_us=500`.
    const PARAMS: &'static [Param] = &[Param {
        name: "slice_us",
        help: "how long a turn lasts",
        default: 3_000,
        min: 100,
        max: 100_000,
    }];

    /// Makes the policy for a machine. There are no tasks yet.
    fn new(env: &Env) -> Self {
        Self {
            queues: PerCpu::new(env, |_| SpinLock::default()),
            slice_ns: env.param("slice_us") * 1000,
        }
    }

    /// A task waits: it is new, or woke up, or its turn is over. It goes to the end of the queue of its CPU.
    fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
        self.queues[token.cpu()].lock().push_back(token);
    }

    /// A CPU is free: the first in its queue has the next turn.
    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        cx.set_slice_ns(self.slice_ns);
        self.queues[cpu].lock().pop_front()
    }

    /// The queue of `cpu` is empty, and it is about to go idle: it may have a task that waits elsewhere. Only a proposal:
    /// if the kernel can move the task, it comes back through `enqueue` with a token for its new CPU.
    fn balance(&self, cx: &Cx, cpu: CpuId) -> Option<TaskId> {
        self.queues.iter().find_map(|(_, queue)| {
            let queue = queue.lock();
            let mut waiting = queue.iter().map(|token| token.task());
            waiting.find(|task| cx.may_run(*task, cpu))
        })
    }

    /// The clock ticks while a task runs. If others wait behind it and some CPU is idle, that CPU is told to look for
    /// work; it would sleep on otherwise.
    fn task_tick(&self, cx: &Cx, _: &Task) {
        if !self.queues[cx.cpu()].lock().is_empty() {
            if let Some(idle) = cx.idle_cpus().first() {
                cx.resched(idle);
            }
        }
    }
}
