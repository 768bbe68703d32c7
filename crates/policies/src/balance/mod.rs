//! Load balancing for the fair policies, as papers/002 describes it, with its four bugs as switches: what load each CPU has,
//! where a woken task goes, and which task a CPU takes from another.
//!
//! A policy says which of its tasks wait and run where, and asks. One task moves at a time, where the kernel moves as many as
//! are too many.

mod domains;
mod pull;
mod wake;

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use alloc::vec::Vec;
use ekiden::prelude::*;

use domains::Domain;

/// What a task's utilisation is when it never sleeps.
const FULL: u64 = 1024;

/// Groups are told apart by this many different numbers; two with the same one count as one.
const GROUPS: u32 = 256;

/// The loads of all CPUs, and who balances with whom.
pub(crate) struct Balancer {
    cpus: PerCpu<Cpu>,
    tasks: PerTask<Load>,
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
}

/// Which of the bugs of papers/002, section 3 there are; by default none.
#[derive(Clone, Copy, Default)]
pub(crate) struct Bugs {
    pub(crate) group_imbalance: bool,
    pub(crate) group_construction: bool,
    pub(crate) overload_on_wakeup: bool,
    pub(crate) missing_domains: bool,
}

/// What is known of one CPU.
#[derive(Default)]
struct Cpu {
    /// How many tasks wait.
    len: AtomicU32,
    /// The load of the tasks that wait, and of the one that runs.
    waiting_load: AtomicU64,
    running_load: AtomicU64,
    /// When it went idle the last time, as a number of [`Balancer::idle_turns`].
    idle_turn: AtomicU64,
    /// The domain in which it is to take a task although it is busy, counted from 1; 0 for none.
    due: AtomicU32,
    offline: AtomicBool,
}

impl Cpu {
    fn load(&self) -> u64 {
        self.waiting_load.load(Relaxed) + self.running_load.load(Relaxed)
    }
}

/// What is known of one task. Changed only in calls about that task, which never overlap.
#[derive(Default)]
struct Load {
    /// What it adds to the load of its CPU: weight × utilisation ÷ threads of its group, as it was when it was queued.
    load: AtomicU64,
    /// The part of the time that it uses the CPU, [`FULL`] at most.
    utilisation: AtomicU64,
    /// When it was woken up the last time, and its CPU time then.
    woken_ns: AtomicU64,
    woken_runtime_ns: AtomicU64,
    group: AtomicU32,
    waits_since_ns: AtomicU64,
}

impl Balancer {
    pub(crate) fn new(env: &Env, bugs: Bugs) -> Self {
        Self {
            cpus: PerCpu::new(env, |_| Cpu::default()),
            tasks: PerTask::new(env, Load::default),
            groups: (0..GROUPS).map(|_| AtomicU32::new(0)).collect(),
            domains: PerCpu::new(env, |cpu| domains::of(env.topology(), cpu, bugs.group_construction)),
            domains_missing: AtomicBool::new(false),
            bugs,
            idle_turns: AtomicU64::new(0),
            nohz_next_ns: AtomicU64::new(0),
            nohz_pass: AtomicBool::new(false),
        }
    }

    /// A new task is taken for one that never sleeps.
    pub(crate) fn begins(&self, cx: &Cx, task: &Task) {
        let entry = &self.tasks[task.id];
        // The group that a task is in by itself, and all that are in no other, are not divided.
        let group = cx.group(task.id).id % GROUPS;
        entry.group.store(group, Relaxed);
        if group != 0 {
            self.groups[group as usize].fetch_add(1, Relaxed);
        }
        entry.woken_ns.store(cx.now_ns(), Relaxed);
        entry.woken_runtime_ns.store(task.runtime_ns, Relaxed);
        entry.utilisation.store(FULL, Relaxed);
    }

    /// A task is gone, or another scheduler's.
    pub(crate) fn ends(&self, task: TaskId) {
        let group = self.tasks[task].group.swap(0, Relaxed);
        if group != 0 {
            self.groups[group as usize].fetch_sub(1, Relaxed);
        }
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
        let threads = u64::from(self.groups[entry.group.load(Relaxed) as usize].load(Relaxed)).max(1);
        let load = u64::from(task.weight) * entry.utilisation.load(Relaxed).max(1) / threads;
        entry.load.store(load, Relaxed);
        entry.waits_since_ns.store(cx.now_ns(), Relaxed);
        self.cpus[cpu].len.fetch_add(1, Relaxed);
        self.cpus[cpu].waiting_load.fetch_add(load, Relaxed);
    }

    /// A task that waited on `cpu` does not any more. Returns its load.
    pub(crate) fn leaves(&self, task: TaskId, cpu: CpuId) -> u64 {
        let (entry, load) = (&self.cpus[cpu], self.tasks[task].load.load(Relaxed));
        // A token that outlived its task is taken for another one's; the sum is right again when nobody waits.
        let is_last = entry.len.fetch_sub(1, Relaxed) == 1;
        let left = if is_last { 0 } else { entry.waiting_load.load(Relaxed).saturating_sub(load) };
        entry.waiting_load.store(left, Relaxed);
        load
    }

    /// A task that waited on `cpu` runs, or none.
    pub(crate) fn runs(&self, task: Option<TaskId>, cpu: CpuId) {
        self.cpus[cpu].running_load.store(task.map_or(0, |task| self.leaves(task, cpu)), Relaxed);
    }

    /// How many tasks wait on `cpu`. For looking at other CPUs without their locks.
    pub(crate) fn len(&self, cpu: CpuId) -> u32 {
        self.cpus[cpu].len.load(Relaxed)
    }

    pub(crate) fn enter_idle(&self, cpu: CpuId) {
        let turn = self.idle_turns.fetch_add(1, Relaxed);
        self.cpus[cpu].idle_turn.store(turn, Relaxed);
    }

    pub(crate) fn cpu_online(&self, cpu: CpuId) {
        self.cpus[cpu].offline.store(false, Relaxed);
    }

    /// The kernel makes its domains anew here. With the bug it forgets those that span nodes: papers/002, section 3.4.
    pub(crate) fn cpu_offline(&self, cpu: CpuId) {
        self.cpus[cpu].offline.store(true, Relaxed);
        if self.bugs.missing_domains {
            self.domains_missing.store(true, Relaxed);
        }
    }
}
