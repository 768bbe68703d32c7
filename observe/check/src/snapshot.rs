//! Run queues of a running kernel at one moment, and whether a CPU is wasted there: the first step of algorithm 2 of
//! papers/002, section 4.1.
//!
//! One look proves nothing, as balancing takes its time; a caller that finds something watches what happens next.
//!
//! Exempt: tasks whose affinity or cpuset forbids the idle CPU, that are bound to their CPU for a moment, or whose group
//! has used up its CPU time; CPUs that are isolated, offline, in another root domain, or kept idle by core scheduling.
//! A task that waits behind a real-time task is told apart, as it is not for its own scheduler to move that one away.

use std::collections::{HashMap, HashSet};

use ekiden::CpuMask;

use crate::{TaskName, wasted_cpus};

/// Real-time and deadline tasks have lower ones.
const MAX_RT_PRIO: i32 = 100;

/// A CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSeen {
    /// Its number.
    pub cpu: u32,
    /// How often it has switched tasks.
    pub nr_switches: u64,
    /// Tasks move only within one of these; the number means nothing else.
    pub root_domain: u64,
    /// What core scheduling lets its core run.
    pub core_cookie: u64,
    /// How many tasks run and wait there, as the kernel counts, without the task that looks.
    pub nr_running: u32,
    /// Whether it is part of the machine.
    pub is_online: bool,
    /// Whether it runs nothing, or only the task that looks.
    pub is_idle: bool,
    /// Whether it is outside of every scheduling domain.
    pub is_isolated: bool,
    /// Whether core scheduling keeps a CPU of its core idle.
    pub is_forced_idle: bool,
}

/// How much CPU time a control group may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuLimit {
    /// Which group: the inode of its directory.
    pub group: u64,
    /// CPU time of each period, in nanoseconds.
    pub quota_ns: u64,
    /// The length of a period, in nanoseconds.
    pub period_ns: u64,
}

/// A task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskSeen {
    /// When it was looked at, by the monotonic clock.
    pub time_ns: u64,
    /// Tells which tasks it may share a core with.
    pub core_cookie: u64,
    /// Its PID: that of the thread.
    pub pid: u32,
    /// The PID of its process.
    pub tgid: u32,
    /// The CPU whose run queue it is, or was, on.
    pub cpu: u32,
    /// Whether it runs.
    pub is_running: bool,
    /// Whether it waits for a CPU, and its group has CPU time left.
    pub is_waiting: bool,
    /// Whether it must not leave its CPU for a moment.
    pub is_bound: bool,
    /// The PID of the process that made it.
    pub parent: u32,
    /// Its priority as the kernel counts: less than 100 is real-time, less than 0 has a deadline.
    pub prio: i32,
    /// Its nice value.
    pub nice: i32,
    /// Its name.
    pub name: String,
    /// The CPUs that it may use now.
    pub allowed: CpuMask,
    /// The tightest limit of CPU time that its groups have.
    pub limit: Option<CpuLimit>,
    /// How long it has waited for a CPU since it was made, in nanoseconds.
    pub waited_ns: u64,
    /// How long of that is the current wait; 0 if it does not wait.
    pub waits_ns: u64,
}

/// A machine at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The CPUs, from 0.
    pub cpus: Vec<CpuSeen>,
    /// The tasks that run or wait, and maybe others.
    pub tasks: Vec<TaskSeen>,
}

/// CPUs that are idle while tasks wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waste {
    /// The idle CPUs.
    pub idle: CpuMask,
    /// The CPUs on which tasks wait that may use them.
    pub busy: CpuMask,
    /// These tasks.
    pub waiting: Vec<TaskName>,
    /// Real-time tasks behind which all of these wait; empty if some do not.
    pub behind: Vec<TaskName>,
}

impl CpuSeen {
    /// Whether schedulers move tasks to it and from it.
    pub fn is_usable(&self) -> bool {
        self.is_online && !self.is_isolated
    }
}

impl TaskSeen {
    /// As people call it.
    pub fn task_name(&self) -> TaskName {
        TaskName { pid: self.pid, name: self.name.clone() }
    }

    fn is_real_time(&self) -> bool {
        self.prio < MAX_RT_PRIO
    }

    /// Whether it would run on `idle` if it were moved there from `from`.
    fn could_use(&self, idle: &CpuSeen, from: &CpuSeen) -> bool {
        let core_takes_it = !idle.is_forced_idle || idle.core_cookie == self.core_cookie;
        idle.cpu != from.cpu
            && !self.is_bound
            && self.allowed.contains(idle.cpu)
            && core_takes_it
            && !from.is_isolated
            && idle.root_domain == from.root_domain
    }
}

impl Snapshot {
    /// This snapshot if the tasks of these groups have to wait because the groups have used up their CPU time.
    pub fn without(mut self, groups: &HashSet<u64>) -> Self {
        let has_to_wait = |task: &TaskSeen| task.limit.is_some_and(|limit| groups.contains(&limit.group));
        self.tasks.iter_mut().filter(|task| has_to_wait(task)).for_each(|task| task.is_waiting = false);
        self
    }

    /// How many idle CPUs could each run a task of its own that waits for another CPU, and has done so for `patience_ns` as far as the kernel
    /// tells; nothing where all of them wait behind real-time tasks. [`View::wasted_cpus`](crate::View::wasted_cpus) counts likewise.
    pub fn wasted_cpus(&self, patience_ns: u64) -> u32 {
        let Some(waste) = self.waste().filter(|waste| waste.behind.is_empty()) else { return 0 };
        let is_patient = |task: &&TaskSeen| task.is_waiting && (task.waits_ns >= patience_ns || task.waited_ns == 0);
        let usable = |task: &TaskSeen| -> Option<CpuMask> {
            let from = self.cpus.get(task.cpu as usize)?;
            let could_use = |cpu: &u32| task.could_use(&self.cpus[*cpu as usize], from);
            (!from.is_idle && from.nr_running >= 2).then(|| waste.idle.iter().filter(could_use).collect())
        };
        let waiting: Vec<CpuMask> = self.tasks.iter().filter(is_patient).filter_map(usable).collect();
        wasted_cpus(&waste.idle, 0, &waiting)
    }

    /// The waste now, if there is any.
    pub fn waste(&self) -> Option<Waste> {
        let idle: Vec<&CpuSeen> = self.cpus.iter().filter(|cpu| cpu.is_usable() && cpu.is_idle).collect();
        if idle.is_empty() {
            return None;
        }
        // It may be waiting itself, as the kernel leaves the others a part of the time.
        let is_in_the_way = |task: &&TaskSeen| task.is_real_time() && (task.is_running || task.is_waiting);
        let in_the_way: HashMap<u32, &TaskSeen> =
            self.tasks.iter().filter(is_in_the_way).map(|task| (task.cpu, task)).collect();
        let mut waste = Waste::default();
        let mut is_excused = true;
        for task in self.tasks.iter().filter(|task| task.is_waiting) {
            let Some(from) = self.cpus.get(task.cpu as usize) else { continue };
            let usable: Vec<u32> = idle.iter().filter(|idle| task.could_use(idle, from)).map(|idle| idle.cpu).collect();
            // One that waits only for the task that looks does not wait.
            if usable.is_empty() || from.is_idle || from.nr_running < 2 {
                continue;
            }
            usable.into_iter().for_each(|cpu| waste.idle.set(cpu));
            waste.busy.set(task.cpu);
            waste.waiting.push(task.task_name());
            match in_the_way.get(&task.cpu).filter(|_| !task.is_real_time()) {
                Some(first) => waste.behind.push(first.task_name()),
                None => is_excused = false,
            }
        }
        waste.waiting.sort();
        waste.behind.sort();
        waste.behind.dedup();
        if !is_excused {
            waste.behind.clear();
        }
        (!waste.waiting.is_empty()).then_some(waste)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Snapshot {
        let cpu =
            |cpu, is_idle, nr_running| CpuSeen { cpu, is_online: true, is_idle, nr_running, ..CpuSeen::default() };
        let task = |pid, is_running, is_waiting| TaskSeen {
            pid,
            is_running,
            is_waiting,
            prio: 120,
            allowed: CpuMask::first_n(2),
            ..TaskSeen::default()
        };
        Snapshot {
            cpus: vec![cpu(0, false, 2), cpu(1, true, 0)],
            tasks: vec![task(10, true, false), task(11, false, true)],
        }
    }

    /// The waste once something is different.
    fn with(change: impl FnOnce(&mut Snapshot)) -> Option<Waste> {
        let mut machine = machine();
        change(&mut machine);
        machine.waste()
    }

    #[test]
    fn a_cpu_is_wasted_while_another_has_a_task_too_many() {
        let waste = machine().waste().unwrap();
        assert_eq!((waste.idle, waste.busy), (CpuMask::single(1), CpuMask::single(0)));
        assert_eq!(waste.waiting.iter().map(|task| task.pid).collect::<Vec<_>>(), [11]);
        assert_eq!(waste.behind, []);
    }

    #[test]
    fn nothing_is_wasted_where_the_task_may_not_go() {
        assert_eq!(with(|machine| machine.tasks[1].allowed = CpuMask::single(0)), None);
        assert_eq!(with(|machine| machine.tasks[1].is_waiting = false), None);
        assert_eq!(with(|machine| machine.tasks[1].is_bound = true), None);
        assert_eq!(with(|machine| machine.cpus[1].is_online = false), None);
        assert_eq!(with(|machine| machine.cpus[1].is_isolated = true), None);
        assert_eq!(with(|machine| machine.cpus[0].is_isolated = true), None);
        assert_eq!(with(|machine| machine.cpus[1].root_domain = 1), None);
        assert_eq!(with(|machine| machine.cpus[1].is_forced_idle = true).map(|waste| waste.idle.count()), Some(1));
        let forced = |machine: &mut Snapshot| {
            machine.cpus[1].is_forced_idle = true;
            machine.cpus[1].core_cookie = 7;
        };
        assert_eq!(with(forced), None);
    }

    #[test]
    fn as_many_cpus_are_wasted_as_there_are_tasks_that_have_waited_for_long() {
        let mut machine = machine();
        assert_eq!(machine.wasted_cpus(0), 1);
        machine.cpus.push(CpuSeen { cpu: 2, ..machine.cpus[1].clone() });
        assert_eq!(machine.wasted_cpus(0), 1, "one task can use one of them");
        machine.tasks.push(TaskSeen { pid: 12, allowed: CpuMask::first_n(3), ..machine.tasks[1].clone() });
        assert_eq!(machine.wasted_cpus(0), 2);
        machine.tasks.iter_mut().for_each(|task| (task.waited_ns, task.waits_ns) = (5_000, 900));
        assert_eq!((machine.wasted_cpus(900), machine.wasted_cpus(901)), (2, 0));
        machine.tasks[0].prio = 50;
        assert_eq!(machine.wasted_cpus(0), 0, "a real-time task is in the way");
    }

    #[test]
    fn whoever_has_no_cpu_time_left_does_not_wait() {
        let mut machine = machine();
        machine.tasks[1].limit = Some(CpuLimit { group: 3, quota_ns: 1, period_ns: 2 });
        assert!(machine.clone().without(&HashSet::from([4])).waste().is_some());
        assert_eq!(machine.without(&HashSet::from([3])).waste(), None);
    }

    #[test]
    fn a_real_time_task_in_the_way_is_named() {
        let waste = with(|machine| machine.tasks[0].prio = 50).unwrap();
        assert_eq!(waste.behind.iter().map(|task| task.pid).collect::<Vec<_>>(), [10]);
        // So it is while the kernel has taken the CPU from it for a moment, for another that waits otherwise.
        let waste = with(|machine| {
            let real_time = TaskSeen { pid: 12, prio: 50, is_waiting: true, ..machine.tasks[0].clone() };
            machine.tasks.push(TaskSeen { is_running: false, allowed: CpuMask::single(0), ..real_time });
        });
        assert_eq!(waste.unwrap().behind.iter().map(|task| task.pid).collect::<Vec<_>>(), [12]);
        // One that has the same rights is no excuse.
        let waste = with(|machine| machine.tasks.iter_mut().for_each(|task| task.prio = 50)).unwrap();
        assert_eq!(waste.behind, []);
    }
}
