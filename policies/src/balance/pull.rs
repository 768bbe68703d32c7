//! Which task a CPU takes from another: algorithm 1 of papers/002, section 2.2.1, run by the CPU that is about to be idle, by
//! the idle ones on behalf of those that are overloaded, and once in a while by a busy one for its group.

use core::sync::atomic::Ordering::Relaxed;

use ekiden::prelude::*;

use super::{Balancer, Domain};

/// How often idle CPUs look for work while others have too much: a tick of the kernel's.
const NOHZ_PERIOD_NS: u64 = 4_000_000;

/// How much more load another group has before a busy CPU takes from it: the kernel's `imbalance_pct`.
const IMBALANCE_PERCENT: u64 = 125;

/// How long a task has waited, at least, before a busy CPU takes it away from its cache: the kernel's `migration_cost`.
const HOT_NS: u64 = 500_000;

/// Names a task that waits on a CPU, for which something holds.
pub(crate) trait Find: Fn(CpuId, &dyn Fn(TaskId) -> bool) -> Option<TaskId> {}
impl<F: Fn(CpuId, &dyn Fn(TaskId) -> bool) -> Option<TaskId>> Find for F {}

/// Why a CPU looks for a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Idle,
    Busy,
}

/// A task that could be taken.
struct Candidate {
    task: TaskId,
    /// Where it waits.
    cpu: CpuId,
    /// Where it may run.
    allowed: CpuMask,
    /// The load of its CPU.
    load: u64,
}

impl Balancer {
    /// The task that `cpu` takes from the busiest group of the smallest domain that is out of balance, if `cpu` has none; or
    /// in the domain that is [`due`](Self::is_due). `find` names a task that waits on a CPU and is wanted.
    pub(crate) fn pull(&self, cx: &Cx, cpu: CpuId, find: impl Find) -> Option<TaskId> {
        self.go_on_with_nohz_pass(cx, cpu);
        let mut domains = self.domains_of(cpu);
        match self.cpus[cpu].due.swap(0) {
            0 => domains
                .find_map(|domain| self.busiest(cx, cpu, domain, Why::Idle, &find))
                .map(|candidate| candidate.task),
            due => {
                let domain = domains.nth(due as usize - 1)?;
                let candidate = self
                    .busiest(cx, cpu, domain, Why::Busy, &find)
                    .filter(|found| self.is_worth(cx, cpu, domain, found));
                if candidate.is_none() {
                    self.pulled_nothing(cx, cpu);
                }
                candidate.map(|candidate| candidate.task)
            }
        }
    }

    /// Nothing came of a pull: if `cpu` has tasks of its own, it continues with those.
    pub(crate) fn pulled_nothing(&self, cx: &Cx, cpu: CpuId) {
        if self.len(cpu) > 0 {
            cx.resched(cpu);
        }
    }

    /// Whether `cpu` is to take a task although it is busy. It has to pick none then, so that it is asked which.
    pub(crate) fn is_due(&self, cpu: CpuId) -> bool {
        self.cpus[cpu].due.get() > 0
    }

    fn domains_of(&self, cpu: CpuId) -> impl Iterator<Item = &Domain> {
        self.domains[cpu].iter().take_while(|domain| !(domain.spans_nodes && self.domains_missing.get()))
    }

    /// A task of the busiest of the other groups, if that one has more load than the CPU's own.
    fn busiest(&self, cx: &Cx, cpu: CpuId, domain: &Domain, why: Why, find: &impl Find) -> Option<Candidate> {
        let local = domain.groups.iter().find(|group| group.contains(cpu))?;
        let others = domain.groups.iter().filter(|group| *group != local);
        let overloaded = others.filter_map(|group| {
            let candidate = self.candidate(cx, group, cpu, why, find)?;
            let allowed = Self::compared(cx, &candidate, local);
            Some((self.load_of(cx, domain, group, &allowed), candidate))
        });
        let (load, busiest) = overloaded.max_by_key(|(load, _)| *load)?;
        let percent = if why == Why::Busy { IMBALANCE_PERCENT } else { 100 };
        (load * 100 > percent * self.load_of(cx, domain, local, &busiest.allowed)).then_some(busiest)
    }

    /// The CPUs of another group that count when it is compared with `local`: those of the node that the task would leave, as not all nodes of a
    /// group need be linked, so that one may be idle beside a crowded one; and none that is in both, as groups of nodes overlap.
    fn compared(cx: &Cx, candidate: &Candidate, local: &CpuMask) -> CpuMask {
        let node = cx.topology().node(candidate.cpu);
        let outside = |cpu: &CpuId| !local.contains(*cpu);
        node.both(&candidate.allowed).filter(outside).collect()
    }

    /// Whether a busy CPU is to take the task for its group: that has less load after it than the other CPU had before.
    /// Otherwise the two would go on taking it from each other.
    fn is_worth(&self, cx: &Cx, cpu: CpuId, domain: &Domain, candidate: &Candidate) -> bool {
        let local = domain.groups.iter().find(|group| group.contains(cpu));
        let load = local.map_or(u64::MAX, |group| self.load_of(cx, domain, group, &candidate.allowed));
        load.saturating_add(self.tasks[candidate.task].load.get()) < candidate.load
    }

    /// The load by which groups are compared. The average hides CPUs that are idle beside one with a load that is very high,
    /// which is the bug of section 3.1; the fix compares the CPUs with the least, among those that the task may use.
    ///
    /// Between nodes it is the load of the last ticks that counts, as in the kernel: tasks that sleep again and again, and briefly, leave
    /// some CPU of every node idle at any moment, which says nothing.
    fn load_of(&self, cx: &Cx, domain: &Domain, group: &CpuMask, allowed: &CpuMask) -> u64 {
        let load = |cpu| match domain.spans_nodes && self.by_last_ticks {
            true => self.cpus[cpu].mean_load(cx.now_ns()),
            false => self.cpus[cpu].load(),
        };
        if self.bugs.group_imbalance {
            // A loop, because the kernel's tools do not take symbols as long as that of a sum over all these iterators.
            let (mut sum, mut cpus) = (0, 0);
            for cpu in self.online(group) {
                sum += load(cpu);
                cpus += 1;
            }
            return sum / cpus.max(1);
        }
        let cpus = self.online(group).filter(|cpu| allowed.contains(*cpu));
        cpus.map(load).min().unwrap_or(0)
    }

    fn online(&self, group: &CpuMask) -> impl Iterator<Item = CpuId> {
        group.iter().filter(|cpu| !self.cpus[*cpu].offline.get())
    }

    /// A task of the busiest CPU of a group, among those where one waits that may run on `cpu`.
    fn candidate(&self, cx: &Cx, group: &CpuMask, cpu: CpuId, why: Why, find: &impl Find) -> Option<Candidate> {
        let is_hot = |task| cx.now_ns() < self.tasks[task].waits_since_ns.get() + HOT_NS;
        let wanted = |task| !(why == Why::Busy && is_hot(task)) && cx.may_run(task, cpu);
        let mut best: Option<(TaskId, CpuId, u64)> = None;
        for victim in group.iter().filter(|victim| *victim != cpu && self.len(*victim) > 0) {
            let load = self.cpus[victim].load();
            if best.is_none_or(|(.., most)| load > most) {
                best = find(victim, &wanted).map(|task| (task, victim, load)).or(best);
            }
        }
        let (task, cpu, load) = best.filter(|(.., load)| *load > 0)?;
        Some(Candidate { task, cpu, allowed: cx.allowed_cpus(task), load })
    }

    /// A busy CPU looks around: idle ones are woken up to take what waits here, and if it stands for its group in a domain,
    /// it takes from others itself.
    pub(crate) fn tick(&self, cx: &Cx, find: impl Find) {
        let (cpu, now_ns) = (cx.cpu(), cx.now_ns());
        self.cpus[cpu].note_load(now_ns);
        if self.len(cpu) > 0 {
            self.start_nohz_pass(cx);
        }
        for (domain, due) in self.domains_of(cpu).zip(1..) {
            let next_ns = domain.next_ns.load(Relaxed);
            if now_ns < next_ns {
                continue;
            }
            domain.next_ns.store(now_ns + domain.interval_ns, Relaxed);
            if next_ns == 0 {
                continue;
            }
            let stands_for_group = domain.groups.iter().find(|group| group.contains(cpu)).is_some_and(|group| {
                let idle = cx.idle_cpus();
                group.iter().find(|cpu| idle.contains(*cpu)).or(group.first()) == Some(cpu)
            });
            let found = || {
                self.busiest(cx, cpu, domain, Why::Busy, &find)
                    .is_some_and(|found| self.is_worth(cx, cpu, domain, &found))
            };
            if stands_for_group && found() {
                self.cpus[cpu].due.set(due);
                return cx.resched(cpu);
            }
        }
    }

    /// A CPU where tasks wait makes the first idle one look for work. The kernel calls that one the NOHZ balancer.
    fn start_nohz_pass(&self, cx: &Cx) {
        let now_ns = cx.now_ns();
        if now_ns < self.nohz_next_ns.get() {
            return;
        }
        if let Some(idle) = cx.idle_cpus().first() {
            self.nohz_next_ns.set(now_ns + NOHZ_PERIOD_NS);
            self.nohz_pass.set(true);
            cx.resched(idle);
        }
    }

    /// Every idle CPU gets its turn in a pass. In the kernel the balancer works for all of them; here it wakes up the next.
    fn go_on_with_nohz_pass(&self, cx: &Cx, cpu: CpuId) {
        if self.nohz_pass.get() {
            match cx.idle_cpus().iter().find(|idle| *idle > cpu) {
                Some(next) => cx.resched(next),
                None => self.nohz_pass.set(false),
            }
        }
    }
}
