//! Which task a CPU takes from another: algorithm 1 of papers/002, section 2.2.1, run by the CPU that is about to be idle, and
//! by the idle ones on behalf of those that are overloaded.

use core::sync::atomic::Ordering::Relaxed;

use ekiden::prelude::*;

use super::Balancer;

/// How often idle CPUs look for work while others have too much: a tick of the kernel's.
const NOHZ_PERIOD_NS: u64 = 4_000_000;

/// A task that could be taken.
struct Candidate {
    task: TaskId,
    /// Where it may run.
    allowed: CpuMask,
    /// The load of its CPU.
    load: u64,
}

impl Balancer {
    /// The task that `cpu`, which has none, takes from the busiest group of the smallest domain that is out of balance.
    /// `find` names a task that waits on a CPU and may run on `cpu`.
    pub(crate) fn pull(&self, cx: &Cx, cpu: CpuId, find: impl Fn(CpuId) -> Option<TaskId>) -> Option<TaskId> {
        self.go_on_with_nohz_pass(cx, cpu);
        for domain in &self.domains[cpu] {
            if domain.spans_nodes && self.domains_missing.load(Relaxed) {
                break;
            }
            let Some(local) = domain.groups.iter().find(|group| group.contains(cpu)) else { continue };
            let others = domain.groups.iter().filter(|group| *group != local);
            let overloaded = others.filter_map(|group| {
                let candidate = self.candidate(cx, group, cpu, &find)?;
                Some((self.load_of(group, &candidate.allowed), candidate))
            });
            let Some((load, busiest)) = overloaded.max_by_key(|(load, _)| *load) else { continue };
            if load > self.load_of(local, &busiest.allowed) {
                return Some(busiest.task);
            }
        }
        None
    }

    /// The load by which groups are compared. The average hides CPUs that are idle beside one with a load that is very high,
    /// which is the bug of section 3.1; the fix compares the CPUs with the least, among those that the task may use.
    fn load_of(&self, group: &CpuMask, allowed: &CpuMask) -> u64 {
        let online = || group.iter().filter(|cpu| !self.cpus[*cpu].offline.load(Relaxed));
        if self.bugs.group_imbalance {
            let sum: u64 = online().map(|cpu| self.cpus[cpu].load()).sum();
            return sum / (online().count() as u64).max(1);
        }
        online().filter(|cpu| allowed.contains(*cpu)).map(|cpu| self.cpus[cpu].load()).min().unwrap_or(0)
    }

    /// A task of the busiest CPU of a group, among those where one waits that may run on `cpu`.
    fn candidate(
        &self,
        cx: &Cx,
        group: &CpuMask,
        cpu: CpuId,
        find: &impl Fn(CpuId) -> Option<TaskId>,
    ) -> Option<Candidate> {
        let mut best: Option<(TaskId, u64)> = None;
        for victim in group.iter().filter(|victim| *victim != cpu && self.len(*victim) > 0) {
            let load = self.cpus[victim].load();
            if best.is_none_or(|(_, most)| load > most) {
                best = find(victim).map(|task| (task, load)).or(best);
            }
        }
        best.map(|(task, load)| Candidate { task, allowed: cx.allowed_cpus(task), load }).filter(|best| best.load > 0)
    }

    /// A CPU where tasks wait makes the first idle one look for work. The kernel calls that one the NOHZ balancer.
    pub(crate) fn tick(&self, cx: &Cx) {
        let now_ns = cx.now_ns();
        if now_ns < self.nohz_next_ns.load(Relaxed) {
            return;
        }
        if let Some(idle) = cx.idle_cpus().first() {
            self.nohz_next_ns.store(now_ns + NOHZ_PERIOD_NS, Relaxed);
            self.nohz_pass.store(true, Relaxed);
            cx.resched(idle);
        }
    }

    /// Every idle CPU gets its turn in a pass. In the kernel the balancer works for all of them; here it wakes up the next.
    fn go_on_with_nohz_pass(&self, cx: &Cx, cpu: CpuId) {
        if self.nohz_pass.load(Relaxed) {
            match cx.idle_cpus().iter().find(|idle| *idle > cpu) {
                Some(next) => cx.resched(next),
                None => self.nohz_pass.store(false, Relaxed),
            }
        }
    }
}
