//! Shortest job first: the waiting task whose next run will be the shortest, by those that it had before, runs next, and no task that runs is
//! interrupted for it. It gives up fairness: a long task waits for all short ones that come within some hundred times its length.
//!
//! The expected length is the exponential average of the runs between two sleeps (Silberschatz et al., Operating System Concepts, 5.3.2).
//! papers/004 has it among its policies. Pure shortest job first starves long tasks; here those that wait grow shorter with time.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ekiden::prelude::*;

/// A run that is expected to be longer counts as this long, so that the wait of a task that never sleeps has an end.
const LONGEST_NS: u64 = 20_000_000;

/// One queue for the machine, by the length of runs.
#[derive(Layout)]
pub struct Sjf {
    queue: SpinLock<TreeQueue<Self, u64>>,
    /// How many wait, to look at without the lock.
    waiting: Shared<u32>,
    tasks: PerTask<Job>,
    runs: Histogram,
    ageing: u64,
}

/// State of one task. Changed only in calls about that task, which never overlap.
#[derive(Default, Layout)]
struct Job {
    /// CPU time that it had had when this run began, in nanoseconds.
    began_ns: AtomicU64,
    /// How long a run is, on average, in nanoseconds.
    expected_ns: AtomicU64,
}

impl Sjf {
    /// Where the task stands: a task that comes later passes it only if it is shorter by more than that time divided by `ageing`.
    fn rank(&self, cx: &Cx, task: &Task) -> u64 {
        let job = &self.tasks[task.id];
        let so_far_ns = task.runtime_ns.saturating_sub(job.began_ns.load(Relaxed));
        // A task that has run for longer than expected already is not short.
        let length_ns = job.expected_ns.load(Relaxed).max(so_far_ns).min(LONGEST_NS);
        cx.now_ns() + self.ageing * length_ns
    }
}

#[policy]
impl Scheduler for Sjf {
    const PARAMS: &'static [Param] = &[Param {
        name: "ageing",
        help: "for how many times its length a task waits for shorter ones",
        default: 100,
        min: 0,
        max: 200,
    }];

    fn new(env: &Env) -> Self {
        Self {
            queue: SpinLock::default(),
            waiting: Shared::default(),
            tasks: PerTask::new(env, Job::default),
            runs: env.histogram("run_ns", "CPU time of a task between two sleeps"),
            ageing: env.param("ageing"),
        }
    }

    /// A successor may have been given another parameter.
    fn reregister_init(env: &Env, state: Self) -> Self {
        Self { ageing: env.param("ageing"), ..state }
    }

    /// Nothing is known of a new task: it counts as short until it has shown otherwise.
    fn task_new(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let job = &self.tasks[task.id];
        job.began_ns.store(task.runtime_ns, Relaxed);
        job.expected_ns.store(0, Relaxed);
        self.enqueue(cx, task, token);
    }

    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let rank = self.rank(cx, task);
        let mut queue = self.queue.lock();
        queue.insert(rank, token);
        self.waiting.set(queue.len() as u32);
        drop(queue);
        cx.kick_idle(task.id);
    }

    fn pick_next_task(&self, cx: &Cx, _: CpuId) -> Option<Schedulable<Self>> {
        // A task that is queued after this look has an idle CPU look again.
        if self.waiting.get() == 0 {
            return None;
        }
        let mut queue = self.queue.lock();
        let first = queue.claim_first(cx);
        self.waiting.set(queue.len() as u32);
        first.map(|(_, token)| token)
    }

    /// A run ends where the task sleeps, however often it was interrupted before.
    fn task_blocked(&self, cx: &Cx, task: &Task) {
        let job = &self.tasks[task.id];
        let ran_ns = task.runtime_ns.saturating_sub(job.began_ns.load(Relaxed));
        self.runs.record(cx, ran_ns);
        job.began_ns.store(task.runtime_ns, Relaxed);
        job.expected_ns.store((job.expected_ns.load(Relaxed) + ran_ns) / 2, Relaxed);
    }
}
