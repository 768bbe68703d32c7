//! The completely fair scheduler as papers/002 describes it, with its four bugs as switches: on each CPU the waiting task
//! with the least virtual run time runs next. It gives up deadlines: a task that has slept waits no less than its virtual time says.
//!
//! Between CPUs it balances as `balance` does.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use ekiden::{prelude::*, scaled_ns};

use crate::balance::{Balancer, Bugs};

/// How many of the tasks that wait on a CPU are looked at for one to move.
const LOOKED_AT: usize = 32;

/// The completely fair scheduler.
#[derive(Layout)]
pub struct Cfs {
    queues: PerCpu<RunQueue>,
    tasks: PerTask<Account>,
    balancer: Balancer,
    period_ns: u64,
    slice_min_ns: u64,
    sleeper_credit_ns: u64,
    wakeup_ns: u64,
}

/// What waits on one CPU.
#[derive(Default, Layout)]
struct RunQueue {
    waiting: SpinLock<TreeQueue<Cfs, u64>>,
    /// No task of this CPU has had less virtual time than this; it only grows.
    min_vruntime: Shared<u64>,
    /// The virtual time of the task that runs as it was picked or at the last tick; 0 if none of ours runs.
    running: Shared<u64>,
}

/// State of one task. Changed only in calls about that task, which never overlap.
#[derive(Default, Layout)]
struct Account {
    charged_ns: AtomicU64,
    /// CPU time divided by weight, on the scale of `cpu`'s `min_vruntime`.
    vruntime: AtomicU64,
    cpu: AtomicU32,
}

impl Cfs {
    /// Adds what the task has run since the last time to its virtual time.
    fn charge(&self, task: &Task) -> u64 {
        let account = &self.tasks[task.id];
        let ran_ns = task.runtime_ns.saturating_sub(account.charged_ns.swap(task.runtime_ns, Relaxed));
        let vruntime = account.vruntime.load(Relaxed) + scaled_ns(ran_ns, task.weight);
        account.vruntime.store(vruntime, Relaxed);
        vruntime
    }

    /// Queues the task with at least `floor` of virtual time, on the scale of the token's CPU.
    /// Returns its virtual time.
    fn queue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>, floor: impl Fn(u64) -> u64) -> u64 {
        let (cpu, account) = (token.cpu(), &self.tasks[task.id]);
        let queue = &self.queues[cpu];
        let min_vruntime = queue.min_vruntime.get();
        let old = account.cpu.swap(cpu, Relaxed);
        let mut vruntime = account.vruntime.load(Relaxed);
        if old != cpu {
            vruntime = min_vruntime + vruntime.saturating_sub(self.queues[old].min_vruntime.get());
        }
        let vruntime = vruntime.max(floor(min_vruntime));
        account.vruntime.store(vruntime, Relaxed);
        let mut waiting = queue.waiting.lock();
        waiting.insert(vruntime, token);
        self.balancer.waits(cx, task, cpu);
        vruntime
    }

    fn unqueue(&self, task: TaskId) -> Option<Schedulable<Self>> {
        let account = &self.tasks[task];
        let cpu = account.cpu.load(Relaxed);
        let mut waiting = self.queues[cpu].waiting.lock();
        let token = waiting.remove_at(&account.vruntime.load(Relaxed), task)?;
        self.balancer.leaves(task, cpu);
        Some(token)
    }

    /// The task that moves is the one on the busiest CPU that would wait longest.
    fn find(&self, busiest: CpuId, wanted: &dyn Fn(TaskId) -> bool) -> Option<TaskId> {
        let waiting = self.queues[busiest].waiting.lock();
        let mut tasks = waiting.iter().rev().map(|(_, token)| token.task()).take(LOOKED_AT);
        tasks.find(|task| wanted(*task))
    }
}

/// A switch for one of the bugs.
const fn bug(name: &'static str, help: &'static str) -> Param {
    Param { name, help, default: 0, min: 0, max: 1 }
}

#[policy]
impl Scheduler for Cfs {
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
        bug("group_imbalance", "1: groups are compared by average load (papers/002, 3.1)"),
        bug("group_construction", "1: groups are those of CPU 0 (papers/002, 3.2)"),
        bug("overload_on_wakeup", "1: only the waker's node is looked at (papers/002, 3.3)"),
        bug("missing_domains", "1: hotplug loses the domains that span nodes (papers/002, 3.4)"),
    ];

    fn new(env: &Env) -> Self {
        let bugs = Bugs {
            group_imbalance: env.param("group_imbalance") == 1,
            group_construction: env.param("group_construction") == 1,
            overload_on_wakeup: env.param("overload_on_wakeup") == 1,
            missing_domains: env.param("missing_domains") == 1,
        };
        Self {
            queues: PerCpu::new(env, |_| RunQueue::default()),
            tasks: PerTask::new(env, Account::default),
            balancer: Balancer::new(env, bugs, true),
            period_ns: env.param("period_us") * 1000,
            slice_min_ns: env.param("slice_min_us") * 1000,
            sleeper_credit_ns: env.param("sleeper_credit_us") * 1000,
            wakeup_ns: env.param("wakeup_us") * 1000,
        }
    }

    /// A new task starts a slice behind where the others stand: a task that continues in new ones all the time, each of which
    /// has had nothing yet, would leave them nothing. The kernel calls it START_DEBIT.
    fn task_new(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        self.balancer.begins(cx, task);
        let account = &self.tasks[task.id];
        account.charged_ns.store(task.runtime_ns, Relaxed);
        account.cpu.store(token.cpu(), Relaxed);
        account.vruntime.store(0, Relaxed);
        let debit_ns = scaled_ns(self.slice_min_ns, task.weight);
        self.queue(cx, task, token, |min_vruntime| min_vruntime + debit_ns);
    }

    fn task_departed(&self, _: &Cx, task: &Task) -> Option<Schedulable<Self>> {
        self.unqueue(task.id)
    }

    /// Sleeping earns a small head start, not all the time that was slept. A task that has had clearly less than the task that runs does not
    /// wait for its slice to end: the kernel's `check_preempt_wakeup`.
    fn task_wakeup(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        self.charge(task);
        self.balancer.wakes(cx, task);
        let cpu = token.cpu();
        let floor = |min_vruntime: u64| min_vruntime.saturating_sub(self.sleeper_credit_ns);
        let vruntime = self.queue(cx, task, token, floor);
        if self.queues[cpu].running.get() > vruntime + scaled_ns(self.wakeup_ns, task.weight) {
            cx.resched(cpu);
        }
    }

    /// Preempted, yielding and handed back tasks stand where their virtual time puts them.
    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        self.charge(task);
        self.queue(cx, task, token, |_| 0);
    }

    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        let queue = &self.queues[cpu];
        let mut waiting = queue.waiting.lock();
        let first = if self.balancer.is_due(cpu) { None } else { waiting.pop_first() };
        self.balancer.runs(first.as_ref().map(|(_, token)| token.task()), cpu);
        queue.running.set(first.as_ref().map_or(0, |(vruntime, _)| *vruntime));
        let (vruntime, token) = first?;
        queue.min_vruntime.raise(vruntime);
        let left = waiting.len() as u64;
        if left > 0 {
            cx.set_slice_ns((self.period_ns / (left + 1)).max(self.slice_min_ns));
        }
        Some(token)
    }

    /// A waiting task that is owed time gets it at the tick. A task that runs alone takes the CPU's virtual time along: what it
    /// has while no task waits is not held against it when one comes.
    fn task_tick(&self, cx: &Cx, task: &Task) {
        let vruntime = self.charge(task);
        self.balancer.tick(cx, |busiest, wanted| self.find(busiest, wanted));
        let queue = &self.queues[cx.cpu()];
        queue.running.set(vruntime);
        let first = queue.waiting.lock().first_key().copied();
        match first {
            None => queue.min_vruntime.raise(vruntime),
            Some(first) if first + self.slice_min_ns < vruntime => cx.resched(cx.cpu()),
            Some(_) => {}
        }
    }

    fn migrate_task_rq(&self, cx: &Cx, task: &Task, new: Schedulable<Self>) -> Option<Schedulable<Self>> {
        let old = self.unqueue(task.id);
        self.queue(cx, task, new, |_| 0);
        old
    }

    fn select_task_rq(&self, cx: &Cx, task: &Task, previous: CpuId, suggested: CpuId, flags: WakeFlags) -> CpuId {
        self.balancer.place(cx, task.id, previous, flags).unwrap_or(suggested)
    }

    fn balance(&self, cx: &Cx, cpu: CpuId) -> Option<TaskId> {
        self.balancer.pull(cx, cpu, |busiest, wanted| self.find(busiest, wanted))
    }

    fn balance_err(&self, cx: &Cx, cpu: CpuId, _: TaskId, _: RefusalReason) {
        self.balancer.pulled_nothing(cx, cpu);
    }

    fn enter_idle(&self, _: &Cx, cpu: CpuId) {
        self.balancer.enter_idle(cpu);
    }

    fn cpu_online(&self, _: &Cx, cpu: CpuId) {
        self.balancer.cpu_online(cpu);
    }

    fn cpu_offline(&self, _: &Cx, cpu: CpuId) {
        self.balancer.cpu_offline(cpu);
    }
}
