//! Weighted fair queueing: the waiting task that has had the least CPU time for its weight runs next, at once if it wakes up and
//! has had clearly less than the one that runs. A CPU that would go idle takes a task from the longest queue, and so does one
//! that has two tasks less than another. It gives up everything else that balances load: three equal tasks on two CPUs
//! have 100, 50 and 50 per cent of one.
//!
//! papers/000, section 4.2.1; there, only a CPU that would go idle takes tasks, and nothing preempts on wake-up.

use core::{
    mem,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use ekiden::{prelude::*, scaled_ns};

mod times;

use times::Times;

/// How often a CPU compares its queue with another's: the kernel's interval of a busy CPU. Queues are long for a moment when tasks
/// wake up, and each move costs a task its cache.
const COMPARED_EVERY_NS: u64 = 32_000_000;

/// When a CPU takes a task from another one, it asks about this many of those that wait there: the kernel looks at no more at a time (`sysctl_sched_nr_migrate`).
const LOOKED_AT: usize = 32;

/// Weighted fair queueing.
#[derive(Layout)]
pub struct Wfq {
    queues: PerCpu<RunQueue>,
    tasks: PerTask<Account>,
    times: Times,
}

/// What waits on one CPU.
#[derive(Default, Layout)]
struct RunQueue {
    waiting: SpinLock<Waiting>,
    /// How many wait, for other CPUs to look at without the lock.
    len: Shared<u32>,
    /// No task of this CPU has had less virtual time than this; it only grows.
    min_vruntime: Shared<u64>,
    /// The virtual time of the task that runs as it was picked or at the last tick; 0 if none of ours runs.
    running: Shared<u64>,
    /// The period in which this CPU has compared its length with another's; only this CPU looks at it.
    compared_in: AtomicU64,
}

#[derive(Default, Layout)]
struct Waiting {
    tasks: TreeQueue<Wfq, u64>,
    /// Their weight together.
    load: u64,
    /// The CPU from which this one takes a task when it picks the next time.
    takes_from: Option<CpuId>,
}

impl Waiting {
    /// A task waits no more. Returns its weight, or 0 if it was the last.
    fn left(&mut self, tasks: &PerTask<Account>, task: TaskId) -> u64 {
        // A token that was worth nothing by then was dropped, with its weight.
        let weight = if self.tasks.is_empty() { 0 } else { tasks[task].weight.load(Relaxed).into() };
        self.load = if weight == 0 { 0 } else { self.load.saturating_sub(weight) };
        weight
    }
}

/// State of one task. Changed only in calls about that task, which never overlap.
#[derive(Default, Layout)]
struct Account {
    /// CPU time that is already in `vruntime`, in nanoseconds.
    charged_ns: AtomicU64,
    /// CPU time divided by weight, in nanoseconds at nice 0, on the scale of `cpu`'s `min_vruntime`.
    vruntime: AtomicU64,
    /// The CPU whose scale `vruntime` is on.
    cpu: AtomicU32,
    /// Its weight when it was queued.
    weight: AtomicU32,
}

impl Wfq {
    /// Adds what the task has run since the last time to its virtual time.
    fn charge(&self, task: &Task) -> u64 {
        let account = &self.tasks[task.id];
        let ran_ns = task.runtime_ns.saturating_sub(account.charged_ns.load(Relaxed));
        account.charged_ns.store(task.runtime_ns, Relaxed);
        let vruntime = account.vruntime.load(Relaxed) + scaled_ns(ran_ns, task.weight);
        account.vruntime.store(vruntime, Relaxed);
        vruntime
    }

    /// Moves the task's virtual time to the scale of `cpu`, keeping its distance from the others.
    fn rescale(&self, task: TaskId, cpu: CpuId) -> u64 {
        let account = &self.tasks[task];
        let mut vruntime = account.vruntime.load(Relaxed);
        let old = account.cpu.load(Relaxed);
        if old != cpu {
            let lead = vruntime.saturating_sub(self.queues[old].min_vruntime.get());
            vruntime = self.queues[cpu].min_vruntime.get() + lead;
            account.cpu.store(cpu, Relaxed);
        }
        vruntime
    }

    /// Queues the task with at least `floor` of virtual time, given the least there and the tasks that wait, and with no more debt than is
    /// bearable. Returns its virtual time.
    fn queue(&self, task: &Task, token: Schedulable<Self>, floor: impl Fn(u64, &Waiting) -> u64) -> u64 {
        let queue = &self.queues[token.cpu()];
        let min = queue.min_vruntime.get();
        let mut vruntime = self.rescale(task.id, token.cpu());
        let waiting = &mut *queue.waiting.lock();
        vruntime = vruntime.max(floor(min, waiting));
        if Times::owes_much(vruntime.saturating_sub(min), waiting.load) {
            vruntime = vruntime.min(min + self.times.bearable_debt_ns(task.weight, waiting.tasks.len(), waiting.load));
        }
        let account = &self.tasks[task.id];
        account.vruntime.store(vruntime, Relaxed);
        account.weight.store(task.weight, Relaxed);
        waiting.load += u64::from(task.weight);
        waiting.tasks.insert(vruntime, token);
        queue.len.set(waiting.tasks.len() as u32);
        vruntime
    }

    fn unqueue(&self, task: TaskId) -> Option<Schedulable<Self>> {
        let account = &self.tasks[task];
        let queue = &self.queues[account.cpu.load(Relaxed)];
        let waiting = &mut *queue.waiting.lock();
        let token = waiting.tasks.remove_at(&account.vruntime.load(Relaxed), task)?;
        waiting.left(&self.tasks, task);
        queue.len.set(waiting.tasks.len() as u32);
        Some(token)
    }

    /// Compares the queue of a CPU with that of another, each time the next one's. With two tasks less than there, it takes one when it
    /// picks again.
    fn compare(&self, cx: &Cx, cpu: CpuId) {
        let (queue, cpus) = (&self.queues[cpu], cx.topology().nr_cpus());
        let period = cx.now_ns() / COMPARED_EVERY_NS;
        if queue.compared_in.swap(period, Relaxed) == period || cpus == 1 {
            return;
        }
        let other = (cpu + 1 + (period % u64::from(cpus - 1)) as u32) % cpus;
        if self.queues[other].len.get() >= queue.len.get() + 2 {
            queue.waiting.lock().takes_from = Some(other);
            cx.resched(cpu);
        }
    }

    /// Takes a task from a CPU where more wait than the `own` of this one, of which one ran until now.
    fn take(&self, cx: &Cx, cpu: CpuId, from: CpuId, own: u32) -> Option<Schedulable<Self>> {
        let longer = &self.queues[from];
        let mut waiting = longer.waiting.lock();
        let claimed = (waiting.tasks.len() as u32 > own).then(|| waiting.tasks.claim_first_of(LOOKED_AT, cx));
        longer.len.set(waiting.tasks.len() as u32);
        let (_, token) = claimed??;
        waiting.left(&self.tasks, token.task());
        let vruntime = self.rescale(token.task(), cpu);
        self.tasks[token.task()].vruntime.store(vruntime, Relaxed);
        self.queues[cpu].running.set(vruntime);
        cx.set_slice_ns(self.times.slice_ns(own));
        Some(token)
    }
}

#[policy]
impl Scheduler for Wfq {
    const PARAMS: &'static [Param] = &[
        Param {
            name: "period_us",
            help: "time in which each waiting task runs once",
            default: 24_000,
            min: 100,
            max: 1_000_000,
        },
        Param { name: "slice_min_us", help: "shortest slice", default: 3_000, min: 10, max: 100_000 },
        Param {
            name: "sleeper_credit_us",
            help: "head start of a task that has slept",
            default: 3_000,
            min: 0,
            max: 100_000,
        },
        Param {
            name: "wakeup_us",
            help: "lead with which a woken task preempts",
            default: 2_000,
            min: 0,
            max: 1_000_000,
        },
    ];

    fn new(env: &Env) -> Self {
        Self {
            queues: PerCpu::new(env, |_| RunQueue::default()),
            tasks: PerTask::new(env, Account::default),
            times: Times::of(env),
        }
    }

    /// A successor may have been given other parameters.
    fn reregister_init(env: &Env, state: Self) -> Self {
        Self { times: Times::of(env), ..state }
    }

    /// A new task starts a turn behind where the others stand, as in the kernel before EEVDF: a task that continues in new ones
    /// all the time, each of which has had nothing yet, would leave them nothing.
    fn task_new(&self, _: &Cx, task: &Task, token: Schedulable<Self>) {
        let account = &self.tasks[task.id];
        account.charged_ns.store(task.runtime_ns, Relaxed);
        account.cpu.store(token.cpu(), Relaxed);
        account.vruntime.store(0, Relaxed);
        self.queue(task, token, |min, waiting| {
            min + self.times.newcomers_debt_ns(task.weight, waiting.tasks.len(), waiting.load)
        });
    }

    /// Sleeping earns a small head start, not all the time that was slept. A task that has had clearly less than the task that runs does not
    /// wait for its slice to end.
    fn task_wakeup(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        self.charge(task);
        let cpu = token.cpu();
        let vruntime =
            self.queue(task, token, |min, waiting| min.saturating_sub(self.times.credit_ns(waiting.tasks.len())));
        if self.queues[cpu].running.get() > vruntime + scaled_ns(self.times.wakeup_ns, task.weight) {
            cx.resched(cpu);
        }
    }

    /// Preempted, yielding and handed back tasks stand where their virtual time puts them.
    fn enqueue(&self, _: &Cx, task: &Task, token: Schedulable<Self>) {
        self.charge(task);
        self.queue(task, token, |_, _| 0);
    }

    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        let queue = &self.queues[cpu];
        // A task that is queued after this look has the CPU look again.
        if queue.len.get() == 0 {
            queue.running.set(0);
            return None;
        }
        let mut waiting = queue.waiting.lock();
        if let Some(from) = mem::take(&mut waiting.takes_from) {
            let own = waiting.tasks.len() as u32;
            drop(waiting);
            if let Some(token) = self.take(cx, cpu, from, own) {
                return Some(token);
            }
            waiting = queue.waiting.lock();
        }
        let (vruntime, token) = waiting.tasks.pop_first()?;
        let weight = waiting.left(&self.tasks, token.task());
        let left = waiting.tasks.len() as u32;
        queue.len.set(left);
        queue.running.set(vruntime);
        queue.min_vruntime.raise(vruntime);
        if left > 0 {
            cx.set_slice_ns(self.times.slice_ns(left));
            if let Some(turn_ns) = self.times.turn_ns(weight, left, waiting.load) {
                cx.arm_timer(turn_ns);
            }
        }
        Some(token)
    }

    /// A waiting task that is owed time gets it at the tick, or another CPU's if that one has nothing to do. The CPU's
    /// virtual time advances with the task that runs, up to the first that waits. So what it has while no task waits
    /// is not held against it when one comes, and a task that wakes up is not placed where the others have long been.
    fn task_tick(&self, cx: &Cx, task: &Task) {
        let vruntime = self.charge(task);
        let queue = &self.queues[cx.cpu()];
        queue.running.set(vruntime);
        self.compare(cx, cx.cpu());
        if queue.len.get() == 0 {
            queue.min_vruntime.raise(vruntime);
            return;
        }
        if let Some(idle) = cx.idle_cpus().first() {
            cx.resched(idle);
        }
        let Some(first) = queue.waiting.lock().tasks.first_key().copied() else { return };
        queue.min_vruntime.raise(vruntime.min(first));
        if first + self.times.slice_min_ns < vruntime {
            cx.resched(cx.cpu());
        }
    }

    /// The turn of a task of little weight is over. If it has slept before, the one that runs is looked at a little early.
    fn timer(&self, cx: &Cx, cpu: CpuId) {
        if self.queues[cpu].len.get() > 0 {
            cx.resched(cpu);
        }
    }

    fn task_departed(&self, _: &Cx, task: &Task) -> Option<Schedulable<Self>> {
        self.unqueue(task.id)
    }

    fn migrate_task_rq(&self, _: &Cx, task: &Task, new: Schedulable<Self>) -> Option<Schedulable<Self>> {
        let old = self.unqueue(task.id);
        self.queue(task, new, |_, _| 0);
        old
    }

    /// Takes the task that would wait longest on the longest queue, among those that may come here.
    fn balance(&self, cx: &Cx, cpu: CpuId) -> Option<TaskId> {
        let (longest, len) = self
            .queues
            .iter()
            .map(|(cpu, queue)| (cpu, queue.len.get()))
            .fold((cpu, 0), |longest, next| if next.1 > longest.1 { next } else { longest });
        if len == 0 || longest == cpu {
            return None;
        }
        let waiting = self.queues[longest].waiting.lock();
        waiting.tasks.iter().rev().map(|(_, token)| token.task()).take(8).find(|task| cx.may_run(*task, cpu))
    }
}
