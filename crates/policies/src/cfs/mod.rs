//! The completely fair scheduler as papers/002 describes it, with its four bugs as switches: virtual run time on each
//! CPU, and load balancing between CPUs through a hierarchy of scheduling domains.
//!
//! A CPU balances when it would go idle, and idle CPUs do so once in a while when others are overloaded. Busy CPUs do not take
//! tasks from each other.

mod balance;
mod domains;
mod wake;

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use alloc::vec::Vec;
use ekiden::{NICE_0_WEIGHT, prelude::*};

use domains::Domain;

/// What a task's utilisation is when it never sleeps.
const FULL: u64 = 1024;

/// Groups are told apart by this many different numbers; two with the same one count as one.
const GROUPS: u32 = 256;

/// How often idle CPUs look for work while others have too much: a tick of the kernel's.
const NOHZ_PERIOD_NS: u64 = 4_000_000;

/// The completely fair scheduler.
pub struct Cfs {
    queues: PerCpu<RunQueue>,
    tasks: PerTask<Account>,
    /// How many threads each group has, for the load of each.
    groups: Vec<AtomicU32>,
    /// The domains of each CPU, from the smallest to the whole machine.
    domains: PerCpu<Vec<Domain>>,
    /// The domains that span nodes are not there any more: section 3.4.
    domains_missing: AtomicBool,
    bugs: Bugs,
    /// Counts the times that a CPU went idle, to know which has been idle longest.
    idle_turns: AtomicU64,
    /// When idle CPUs look for work next, and whether they are doing so.
    nohz_next_ns: AtomicU64,
    nohz_pass: AtomicBool,
    period_ns: u64,
    slice_min_ns: u64,
    sleeper_credit_ns: u64,
}

/// Which of the bugs of papers/002, section 3 there are.
struct Bugs {
    group_imbalance: bool,
    overload_on_wakeup: bool,
    missing_domains: bool,
}

/// What waits and runs on one CPU.
#[derive(Default)]
struct RunQueue {
    waiting: SpinLock<TreeQueue<Cfs, u64>>,
    len: AtomicU32,
    /// No task of this CPU has had less virtual time than this; it only grows.
    min_vruntime: AtomicU64,
    /// The load of the tasks that wait, and of the one that runs.
    waiting_load: AtomicU64,
    running_load: AtomicU64,
    /// When it went idle the last time, as a number of [`Cfs::idle_turns`].
    idle_turn: AtomicU64,
    offline: AtomicBool,
}

impl RunQueue {
    fn load(&self) -> u64 {
        self.waiting_load.load(Relaxed) + self.running_load.load(Relaxed)
    }
}

/// What is known of one task. Changed only in calls about that task, which never overlap.
#[derive(Default)]
struct Account {
    charged_ns: AtomicU64,
    /// CPU time divided by weight, on the scale of `cpu`'s `min_vruntime`.
    vruntime: AtomicU64,
    cpu: AtomicU32,
    /// What it adds to the load of its CPU: weight × utilisation ÷ threads of its group, as it was when it was queued.
    load: AtomicU64,
    /// The part of the time that it uses the CPU, [`FULL`] at most.
    utilisation: AtomicU64,
    /// When it was woken up the last time, and its CPU time then.
    woken_ns: AtomicU64,
    woken_runtime_ns: AtomicU64,
    group: AtomicU32,
}

impl Cfs {
    /// Adds what the task has run since the last time to its virtual time.
    fn charge(&self, task: &Task) -> u64 {
        let account = &self.tasks[task.id];
        let ran_ns = task.runtime_ns.saturating_sub(account.charged_ns.swap(task.runtime_ns, Relaxed));
        let vruntime =
            account.vruntime.load(Relaxed) + ran_ns * u64::from(NICE_0_WEIGHT) / u64::from(task.weight.max(1));
        account.vruntime.store(vruntime, Relaxed);
        vruntime
    }

    /// Queues the task with at least `floor` of virtual time, on the scale of the token's CPU.
    fn queue(&self, task: &Task, token: Schedulable<Self>, floor: impl Fn(u64) -> u64) {
        let (cpu, account) = (token.cpu(), &self.tasks[task.id]);
        let queue = &self.queues[cpu];
        let min_vruntime = queue.min_vruntime.load(Relaxed);
        let old = account.cpu.swap(cpu, Relaxed);
        let mut vruntime = account.vruntime.load(Relaxed);
        if old != cpu {
            vruntime = min_vruntime + vruntime.saturating_sub(self.queues[old].min_vruntime.load(Relaxed));
        }
        let vruntime = vruntime.max(floor(min_vruntime));
        account.vruntime.store(vruntime, Relaxed);
        let threads = u64::from(self.groups[account.group.load(Relaxed) as usize].load(Relaxed)).max(1);
        let load = u64::from(task.weight) * account.utilisation.load(Relaxed).max(1) / threads;
        account.load.store(load, Relaxed);
        let mut waiting = queue.waiting.lock();
        waiting.insert(vruntime, token);
        queue.len.store(waiting.len() as u32, Relaxed);
        queue.waiting_load.store(queue.waiting_load.load(Relaxed) + load, Relaxed);
    }

    fn unqueue(&self, task: TaskId) -> Option<Schedulable<Self>> {
        let account = &self.tasks[task];
        let queue = &self.queues[account.cpu.load(Relaxed)];
        let mut waiting = queue.waiting.lock();
        let token = waiting.remove_at(&account.vruntime.load(Relaxed), task)?;
        queue.len.store(waiting.len() as u32, Relaxed);
        queue.waiting_load.store(queue.waiting_load.load(Relaxed) - account.load.load(Relaxed), Relaxed);
        Some(token)
    }

    /// The part of the time that the task used the CPU, from one wake-up to the next, half of it remembered.
    fn track_utilisation(&self, task: &Task, now_ns: u64) {
        let account = &self.tasks[task.id];
        let period_ns = now_ns.saturating_sub(account.woken_ns.swap(now_ns, Relaxed)).max(1);
        let ran_ns = task.runtime_ns.saturating_sub(account.woken_runtime_ns.swap(task.runtime_ns, Relaxed));
        let newest = (ran_ns * FULL / period_ns).min(FULL);
        account.utilisation.store((account.utilisation.load(Relaxed) + newest) / 2, Relaxed);
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
        bug("group_imbalance", "1: groups are compared by average load (papers/002, 3.1)"),
        bug("group_construction", "1: groups are those of CPU 0 (papers/002, 3.2)"),
        bug("overload_on_wakeup", "1: only the waker's node is looked at (papers/002, 3.3)"),
        bug("missing_domains", "1: hotplug loses the domains that span nodes (papers/002, 3.4)"),
    ];

    fn new(env: &Env) -> Self {
        let bugs = Bugs {
            group_imbalance: env.param("group_imbalance") == 1,
            overload_on_wakeup: env.param("overload_on_wakeup") == 1,
            missing_domains: env.param("missing_domains") == 1,
        };
        let of_cpu_0 = env.param("group_construction") == 1;
        Self {
            queues: PerCpu::new(env, |_| RunQueue::default()),
            tasks: PerTask::new(env, Account::default),
            groups: (0..GROUPS).map(|_| AtomicU32::new(0)).collect(),
            domains: PerCpu::new(env, |cpu| domains::of(env.topology(), cpu, of_cpu_0)),
            domains_missing: AtomicBool::new(false),
            bugs,
            idle_turns: AtomicU64::new(0),
            nohz_next_ns: AtomicU64::new(0),
            nohz_pass: AtomicBool::new(false),
            period_ns: env.param("period_us") * 1000,
            slice_min_ns: env.param("slice_min_us") * 1000,
            sleeper_credit_ns: env.param("sleeper_credit_us") * 1000,
        }
    }

    /// A new task starts where the others stand, and is taken for one that never sleeps.
    fn task_new(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let account = &self.tasks[task.id];
        // The group that a task is in by itself, and all that are in no other, are not divided.
        let group = cx.group(task.id).id % GROUPS;
        account.group.store(group, Relaxed);
        if group != 0 {
            self.groups[group as usize].fetch_add(1, Relaxed);
        }
        account.charged_ns.store(task.runtime_ns, Relaxed);
        account.woken_ns.store(cx.now_ns(), Relaxed);
        account.woken_runtime_ns.store(task.runtime_ns, Relaxed);
        account.utilisation.store(FULL, Relaxed);
        account.cpu.store(token.cpu(), Relaxed);
        account.vruntime.store(0, Relaxed);
        self.queue(task, token, |min_vruntime| min_vruntime);
    }

    fn task_dead(&self, _: &Cx, task: TaskId) {
        self.leave_group(task);
    }

    fn task_departed(&self, _: &Cx, task: &Task) -> Option<Schedulable<Self>> {
        self.leave_group(task.id);
        self.unqueue(task.id)
    }

    /// Sleeping earns a small head start, not all the time that was slept.
    fn task_wakeup(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        self.charge(task);
        self.track_utilisation(task, cx.now_ns());
        self.queue(task, token, |min_vruntime| min_vruntime.saturating_sub(self.sleeper_credit_ns));
    }

    /// Preempted, yielding and handed back tasks stand where their virtual time puts them.
    fn enqueue(&self, _: &Cx, task: &Task, token: Schedulable<Self>) {
        self.charge(task);
        self.queue(task, token, |_| 0);
    }

    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        let queue = &self.queues[cpu];
        let mut waiting = queue.waiting.lock();
        let Some((vruntime, token)) = waiting.pop_first() else {
            queue.running_load.store(0, Relaxed);
            return None;
        };
        let left = waiting.len() as u32;
        queue.len.store(left, Relaxed);
        let load = self.tasks[token.task()].load.load(Relaxed);
        queue.waiting_load.store(queue.waiting_load.load(Relaxed) - load, Relaxed);
        queue.running_load.store(load, Relaxed);
        queue.min_vruntime.fetch_max(vruntime, Relaxed);
        if left > 0 {
            cx.set_slice_ns((self.period_ns / u64::from(left + 1)).max(self.slice_min_ns));
        }
        Some(token)
    }

    /// A waiting task that is owed time gets it at the tick; and an overloaded CPU has the idle ones look for work.
    fn task_tick(&self, cx: &Cx, task: &Task) {
        let vruntime = self.charge(task);
        let queue = &self.queues[cx.cpu()];
        if queue.len.load(Relaxed) == 0 {
            return;
        }
        self.start_nohz_pass(cx);
        let first = queue.waiting.lock().first_key().copied();
        if first.is_some_and(|first| first + self.slice_min_ns < vruntime) {
            cx.resched(cx.cpu());
        }
    }

    fn migrate_task_rq(&self, _: &Cx, task: &Task, new: Schedulable<Self>) -> Option<Schedulable<Self>> {
        let old = self.unqueue(task.id);
        self.queue(task, new, |_| 0);
        old
    }

    fn select_task_rq(&self, cx: &Cx, task: &Task, previous: CpuId, suggested: CpuId, flags: WakeFlags) -> CpuId {
        self.place(cx, task.id, previous, flags).unwrap_or(suggested)
    }

    fn balance(&self, cx: &Cx, cpu: CpuId) -> Option<TaskId> {
        self.go_on_with_nohz_pass(cx, cpu);
        self.steal(cx, cpu)
    }

    fn enter_idle(&self, _: &Cx, cpu: CpuId) {
        let turn = self.idle_turns.fetch_add(1, Relaxed);
        self.queues[cpu].idle_turn.store(turn, Relaxed);
    }

    fn cpu_online(&self, _: &Cx, cpu: CpuId) {
        self.queues[cpu].offline.store(false, Relaxed);
    }

    /// The kernel makes its domains anew here. With the bug it forgets those that span nodes: papers/002, section 3.4.
    fn cpu_offline(&self, _: &Cx, cpu: CpuId) {
        self.queues[cpu].offline.store(true, Relaxed);
        if self.bugs.missing_domains {
            self.domains_missing.store(true, Relaxed);
        }
    }
}

impl Cfs {
    fn leave_group(&self, task: TaskId) {
        let group = self.tasks[task].group.swap(0, Relaxed);
        if group != 0 {
            self.groups[group as usize].fetch_sub(1, Relaxed);
        }
    }
}
