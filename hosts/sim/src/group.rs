//! Groups of tasks, and their limits: a group that has used up its CPU time of a period sleeps until the next.
//!
//! What their weights mean is the engine's affair, which is told of groups as a kernel tells it of control groups. Limits are kept
//! here. As in the kernel, that is noticed at ticks and where a task comes to its next step, so that a group may use more than
//! it has; the next period is then shorter by as much.

use ekiden_host::abi::{Event, EventKind};
use ekiden_workload::{Limit, Workload};

use crate::alarm::Alarm;
use crate::kernel::Kernel;
use crate::task::{State, TaskIndex};
use crate::trace::{Record, What};

/// The weight that policies see, for a group whose own is [`GROUP_WEIGHT`](ekiden_workload::spec::GROUP_WEIGHT).
const USUAL_WEIGHT: u32 = ekiden::Group::ROOT.weight;

/// Every group of the load; number 0 is for tasks that are in none.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// The group of each of the load's own tasks, and of all that descend from it.
    pub(crate) of_root: Vec<u32>,
    budgets: Vec<Option<Budget>>,
}

/// A group's CPU time that is left in the period.
#[derive(Debug)]
struct Budget {
    limit: Limit,
    /// Negative if it used more than it had.
    left_ns: i64,
    /// The period that this is about.
    period: u64,
    throttled: Vec<TaskIndex>,
}

impl Budget {
    /// Begins a new period, if it is time.
    fn renew(&mut self, now_ns: u64) {
        let period = now_ns / self.limit.period_ns;
        let quota_ns = i64::try_from(self.limit.quota_ns).unwrap_or(i64::MAX);
        let periods = i64::try_from(period - self.period).unwrap_or(i64::MAX);
        self.left_ns = self.left_ns.saturating_add(quota_ns.saturating_mul(periods)).min(quota_ns);
        self.period = period;
    }
}

impl Groups {
    pub(crate) fn new(workload: &Workload) -> Self {
        let number = |name: &Option<String>| {
            let group = name.as_ref().and_then(|name| workload.group_number(name));
            group.map_or(0, |group| group as u32 + 1)
        };
        let budget = |limit: Limit| {
            let left_ns = i64::try_from(limit.quota_ns).unwrap_or(i64::MAX);
            Budget { limit, left_ns, period: 0, throttled: Vec::new() }
        };
        let budgets = workload.groups.iter().map(|group| group.limit.map(budget));
        Self {
            of_root: workload.instances().map(|(_, task)| number(&task.group)).collect(),
            budgets: std::iter::once(None).chain(budgets).collect(),
        }
    }

    /// The groups as policies see them.
    pub(crate) fn for_policies(workload: &Workload) -> Vec<ekiden::Group> {
        let usual = u64::from(ekiden_workload::spec::GROUP_WEIGHT);
        let scaled = |weight: u32| (u64::from(weight) * u64::from(USUAL_WEIGHT) / usual).max(1) as u32;
        let groups = (1..).zip(&workload.groups);
        let groups = groups.map(|(id, group)| ekiden::Group { id, weight: scaled(group.weight) });
        std::iter::once(ekiden::Group::ROOT).chain(groups).collect()
    }

    #[inline]
    pub(crate) fn spend(&mut self, group: u32, ran_ns: u64, now_ns: u64) {
        if let Some(budget) = &mut self.budgets[group as usize] {
            budget.renew(now_ns);
            budget.left_ns = budget.left_ns.saturating_sub_unsigned(ran_ns);
        }
    }

    /// Whether the tasks of the group must not run now.
    #[inline]
    pub(crate) fn used_up(&mut self, group: u32, now_ns: u64) -> bool {
        let Some(budget) = &mut self.budgets[group as usize] else { return false };
        budget.renew(now_ns);
        budget.left_ns <= 0
    }
}

/// What the engine calls the root, and the first of the load's groups.
const ROOT_NAME: u64 = 1;

impl Kernel {
    /// Tells the engine which groups there are, and what they weigh.
    pub(crate) fn tell_groups(&mut self, workload: &Workload) {
        if workload.groups.is_empty() {
            return;
        }
        let event = |kind, name, value| Event { args: [name, value], ..Event::new(kind, 0) };
        self.deliver(&event(EventKind::GroupCreate, ROOT_NAME, 0), &[]);
        for (name, group) in (ROOT_NAME + 1..).zip(&workload.groups) {
            self.deliver(&event(EventKind::GroupCreate, name, ROOT_NAME), &[]);
            self.deliver(&event(EventKind::GroupWeight, name, group.weight.into()), &[]);
        }
    }

    /// Tells the engine which group a task is in, if it is in one.
    pub(crate) fn tell_group(&mut self, task: TaskIndex) {
        let (cpu, group) = (self.task(task).cpu, u64::from(self.task(task).group));
        if group != 0 {
            // A group that the engine has no room for is part of the root.
            let event = Event { args: [ROOT_NAME + group, 0], ..self.event(EventKind::TaskMove, cpu, task) };
            self.deliver(&event, &[]);
        }
    }

    /// Which groups have limits.
    pub(crate) fn push_limits(&mut self, workload: &Workload) {
        for (pid, group) in (1..).zip(&workload.groups) {
            let Some(Limit { quota_ns, period_ns }) = group.limit else { continue };
            for (cpu, value) in [(0, quota_ns), (1, period_ns)] {
                self.sink.push(Record { time_ns: self.now_ns, cpu, what: What::Limit, pid, value });
            }
        }
    }

    /// Puts the running task to sleep if its group has used up its time.
    pub(crate) fn throttle(&mut self, task: TaskIndex, cpu: ekiden::CpuId) -> bool {
        let group = self.task(task).group;
        if !self.groups.used_up(group, self.now_ns) {
            return false;
        }
        if let Some(budget) = &mut self.groups.budgets[group as usize] {
            budget.throttled.push(task);
            let next_ns = (budget.period + 1).saturating_mul(budget.limit.period_ns);
            self.alarms.set_if_earlier(Alarm::Refill, next_ns);
        }
        self.block(task, cpu, State::Throttled);
        true
    }

    /// A period of some group has come to its end.
    pub(crate) fn refill(&mut self) {
        let mut woken = Vec::new();
        for budget in self.groups.budgets.iter_mut().flatten() {
            budget.renew(self.now_ns);
            if budget.left_ns > 0 {
                woken.append(&mut budget.throttled);
            } else if !budget.throttled.is_empty() {
                let next_ns = (budget.period + 1).saturating_mul(budget.limit.period_ns);
                self.alarms.set_if_earlier(Alarm::Refill, next_ns);
            }
        }
        // The task that has had least goes first. Otherwise one that spins could use up every
        // period, under a policy that is first come, first served.
        woken.sort_by_key(|task| self.task(*task).cpu_ns);
        for task in woken {
            self.wake(task, None, 0);
        }
    }
}
