//! Load balancing for the fair policies, as papers/002 describes it, with its four bugs as switches: what load each CPU has,
//! where a woken task goes, and which task a CPU takes from another.
//!
//! A policy says which of its tasks wait and run where, and asks. One task moves at a time, where the kernel moves as many as
//! are too many.

mod domains;
mod pull;
mod wake;

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use alloc::vec::Vec;
use ekiden::prelude::*;

use domains::Domain;

/// What a task's utilisation is when it never sleeps.
const FULL: u64 = 1024;

/// A tick, and how many missed ones change anything.
const TICK_NS: u64 = 4_000_000;
const MISSED_MAX: u64 = 16;

/// The loads of all CPUs, and which CPUs balance with which.
#[derive(Layout)]
pub(crate) struct Balancer {
    cpus: PerCpu<Cpu>,
    tasks: PerTask<Load>,
    /// The domains of each CPU, from the smallest to the whole machine.
    domains: PerCpu<Vec<Domain>>,
    /// The domains that span nodes are not there any more: section 3.4.
    domains_missing: Shared<bool>,
    /// Whether nodes are compared by the loads of the last ticks, as in the paper's kernel, or by those of the moment.
    by_last_ticks: bool,
    bugs: Bugs,
    /// Counts the times that a CPU went idle, to know which has been idle longest.
    idle_turns: Shared<u64>,
    /// When idle CPUs look for work next, and whether they are doing so.
    nohz_next_ns: Shared<u64>,
    nohz_pass: Shared<bool>,
}

/// Which of the bugs of papers/002, section 3 there are; by default none.
#[derive(Clone, Copy, Default, Layout)]
pub(crate) struct Bugs {
    pub(crate) group_imbalance: bool,
    pub(crate) group_construction: bool,
    pub(crate) overload_on_wakeup: bool,
    pub(crate) missing_domains: bool,
}

/// State of one CPU.
#[derive(Default, Layout)]
struct Cpu {
    /// How many tasks wait.
    len: Shared<u32>,
    /// The load of the tasks that wait, and of the one that runs.
    waiting_load: Shared<u64>,
    running_load: Shared<u64>,
    /// The load as it was at the last ticks, the older the less, and when that was noted: the kernel's `cpu_load[2]`.
    mean_load: Shared<u64>,
    mean_at_ns: Shared<u64>,
    /// When it went idle the last time, as a number of [`Balancer::idle_turns`].
    idle_turn: Shared<u64>,
    /// The domain in which it is to take a task although it is busy, counted from 1; 0 for none.
    due: Shared<u32>,
    offline: Shared<bool>,
}

impl Cpu {
    fn load(&self) -> u64 {
        self.waiting_load.get() + self.running_load.get()
    }

    /// The load at the last ticks. An idle CPU has no ticks; what it has missed counts as if they had been.
    fn mean_load(&self, now_ns: u64) -> u64 {
        let missed = now_ns.saturating_sub(self.mean_at_ns.get()) / TICK_NS;
        let load = self.load();
        (0..missed.min(MISSED_MAX)).fold(self.mean_load.get(), |mean, _| mean - mean / 4 + load / 4)
    }

    /// A tick.
    fn note_load(&self, now_ns: u64) {
        self.mean_load.set(self.mean_load(now_ns));
        self.mean_at_ns.set(now_ns);
    }
}

/// State of one task. Changed only in calls about that task, which never overlap; what other calls look at is shared.
#[derive(Default, Layout)]
struct Load {
    /// What it adds to the load of its CPU: weight × utilisation, as they were when it was queued. A group's weight is divided among those
    /// of its threads that want to run before a policy sees it, as that of an autogroup is in the paper.
    load: Shared<u64>,
    /// The part of the time that it uses the CPU, [`FULL`] at most.
    utilisation: AtomicU64,
    /// When it was woken up the last time, and its CPU time then.
    woken_ns: AtomicU64,
    woken_runtime_ns: AtomicU64,
    waits_since_ns: Shared<u64>,
}

impl Balancer {
    pub(crate) fn new(env: &Env, bugs: Bugs, by_last_ticks: bool) -> Self {
        Self {
            cpus: PerCpu::new(env, |_| Cpu::default()),
            tasks: PerTask::new(env, Load::default),
            domains: PerCpu::new(env, |cpu| domains::of(env.topology(), cpu, bugs.group_construction)),
            domains_missing: Shared::default(),
            by_last_ticks,
            bugs,
            idle_turns: Shared::default(),
            nohz_next_ns: Shared::default(),
            nohz_pass: Shared::default(),
        }
    }

    /// A new task is taken for one that never sleeps.
    pub(crate) fn begins(&self, cx: &Cx, task: &Task) {
        let entry = &self.tasks[task.id];
        entry.woken_ns.store(cx.now_ns(), Relaxed);
        entry.woken_runtime_ns.store(task.runtime_ns, Relaxed);
        entry.utilisation.store(FULL, Relaxed);
    }

    /// A task has slept. Its utilisation is the part of the time that it used the CPU, from one wake-up to the next, half of
    /// it remembered.
    pub(crate) fn wakes(&self, cx: &Cx, task: &Task) {
        let (entry, now_ns) = (&self.tasks[task.id], cx.now_ns());
        let period_ns = now_ns.saturating_sub(entry.woken_ns.swap(now_ns, Relaxed)).max(1);
        let ran_ns = task.runtime_ns.saturating_sub(entry.woken_runtime_ns.swap(task.runtime_ns, Relaxed));
        let newest = (ran_ns * FULL / period_ns).min(FULL);
        entry.utilisation.store((entry.utilisation.load(Relaxed) + newest) / 2, Relaxed);
    }

    /// A task waits on `cpu` from now on. The policy holds the lock of that queue, here and in the next two.
    pub(crate) fn waits(&self, cx: &Cx, task: &Task, cpu: CpuId) {
        let entry = &self.tasks[task.id];
        let load = u64::from(task.weight) * entry.utilisation.load(Relaxed).max(1);
        entry.load.set(load);
        entry.waits_since_ns.set(cx.now_ns());
        self.cpus[cpu].len.add(1);
        self.cpus[cpu].waiting_load.add(load);
    }

    /// A task that waited on `cpu` does not any more. Returns its load.
    pub(crate) fn leaves(&self, task: TaskId, cpu: CpuId) -> u64 {
        let (entry, load) = (&self.cpus[cpu], self.tasks[task].load.get());
        // A token that outlived its task is taken for another one's; the sum is right again when no task waits.
        let is_last = entry.len.fetch_sub(1) == 1;
        let left = if is_last { 0 } else { entry.waiting_load.get().saturating_sub(load) };
        entry.waiting_load.set(left);
        load
    }

    /// A task that waited on `cpu` runs, or none.
    pub(crate) fn runs(&self, task: Option<TaskId>, cpu: CpuId) {
        self.cpus[cpu].running_load.set(task.map_or(0, |task| self.leaves(task, cpu)));
    }

    /// How many tasks wait on `cpu`. For looking at other CPUs without their locks.
    pub(crate) fn len(&self, cpu: CpuId) -> u32 {
        self.cpus[cpu].len.get()
    }

    pub(crate) fn enter_idle(&self, cpu: CpuId) {
        let turn = self.idle_turns.fetch_add(1);
        self.cpus[cpu].idle_turn.set(turn);
    }

    pub(crate) fn cpu_online(&self, cpu: CpuId) {
        self.cpus[cpu].offline.set(false);
    }

    /// The kernel makes its domains anew here. With the bug it forgets those that span nodes: papers/002, section 3.4.
    pub(crate) fn cpu_offline(&self, cpu: CpuId) {
        self.cpus[cpu].offline.set(true);
        if self.bugs.missing_domains {
            self.domains_missing.set(true);
        }
    }
}
