//! The run queue of one CPU, in virtual time: what each task has had, what it is owed, and which slice is due first.

use ekiden::{NICE_0_WEIGHT, prelude::*, scaled_ns};

use super::Eevdf;

/// What passes between two ticks of the slowest kernel.
const TICK_NS: u64 = 10_000_000;

/// Where a task stands in the virtual time of its CPU, which is CPU time in nanoseconds at nice 0. In order of deadlines.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Layout)]
pub(super) struct Entity {
    /// When it should have had its slice.
    pub(super) deadline: i64,
    /// Its virtual time.
    pub(super) vruntime: i64,
    pub(super) slice_ns: u64,
    pub(super) weight: u32,
}

impl Entity {
    pub(super) fn scaled(&self, ns: u64) -> i64 {
        scaled_ns(ns, self.weight) as i64
    }

    /// Adds CPU time. True if that was the rest of the slice; the next one has a deadline of its own.
    pub(super) fn run(&mut self, ns: u64) -> bool {
        self.vruntime += self.scaled(ns);
        let used_up = self.vruntime >= self.deadline;
        if used_up {
            self.deadline = self.vruntime + self.scaled(self.slice_ns);
        }
        used_up
    }

    /// How far away its deadline is.
    pub(super) fn ahead(&self) -> i64 {
        self.deadline - self.vruntime
    }

    /// How much CPU time is left until then.
    pub(super) fn left_ns(&self) -> u64 {
        self.ahead().max(0) as u64 * u64::from(self.weight) / u64::from(NICE_0_WEIGHT)
    }

    /// What it is owed, if the average of all has had so much. No task owes more, or is owed more, than two slices or a tick.
    pub(super) fn lag(&self, average: i64) -> i64 {
        let most = self.scaled(TICK_NS.max(2 * self.slice_ns));
        (average - self.vruntime).clamp(-most, most)
    }
}

/// The tasks of one CPU.
#[derive(Default, Layout)]
pub(super) struct RunQueue {
    pub(super) waiting: TreeQueue<Eevdf, Entity>,
    pub(super) running: Option<Running>,
    /// The average virtual time of all, as it was the last time; it lives on when the CPU is idle.
    zero: i64,
    /// Weight × distance from `zero`, and weight, of those that wait.
    moment: i64,
    pub(super) weight: i64,
}

#[derive(Layout)]
pub(super) struct Running {
    pub(super) task: TaskId,
    /// How it stood at `since_ns`.
    pub(super) entity: Entity,
    pub(super) since_ns: u64,
    /// Up to this virtual time those that wake up do not preempt it, unless their slices are shorter.
    pub(super) protected_until: i64,
}

impl RunQueue {
    pub(super) fn insert(&mut self, entity: Entity, token: Schedulable<Eevdf>) {
        self.moment += i64::from(entity.weight) * (entity.vruntime - self.zero);
        self.weight += i64::from(entity.weight);
        self.waiting.insert(entity, token);
    }

    pub(super) fn remove(&mut self, entity: &Entity, task: TaskId) -> Option<Schedulable<Eevdf>> {
        let token = self.waiting.remove_at(entity, task)?;
        self.moment -= i64::from(entity.weight) * (entity.vruntime - self.zero);
        self.weight -= i64::from(entity.weight);
        Some(token)
    }

    /// The average of those that wait and the one that runs. They count from there afterwards, so that numbers stay small.
    pub(super) fn average(&mut self, running: Option<Entity>) -> i64 {
        let (mut moment, mut weight) = (self.moment, self.weight);
        if let Some(running) = running {
            moment += i64::from(running.weight) * (running.vruntime - self.zero);
            weight += i64::from(running.weight);
        }
        if weight > 0 {
            let step = moment.div_euclid(weight);
            self.zero += step;
            self.moment -= self.weight * step;
        }
        self.zero
    }

    /// The task that runs, as it stands now: its run time is accounted at ticks only.
    pub(super) fn running(&self, cx: &Cx) -> Option<Entity> {
        self.running.as_ref().map(|running| {
            let mut entity = running.entity;
            entity.run(cx.now_ns().saturating_sub(running.since_ns));
            entity
        })
    }

    pub(super) fn is_running(&self, task: TaskId) -> bool {
        self.running.as_ref().is_some_and(|running| running.task == task)
    }

    /// If it is this task that runs, it stands here by now.
    pub(super) fn go_on(&mut self, task: TaskId, entity: Entity, now_ns: u64) {
        if let Some(running) = self.running.as_mut().filter(|running| running.task == task) {
            (running.entity, running.since_ns) = (entity, now_ns);
        }
    }

    /// If it is this task that runs, it does not any more.
    pub(super) fn stop(&mut self, task: TaskId) {
        if self.is_running(task) {
            self.running = None;
        }
    }

    /// The task with the first deadline among those that have had no more than the average. Linear in the number of those with
    /// earlier deadlines that have had more.
    pub(super) fn best(&self, average: i64) -> Option<(Entity, TaskId)> {
        let mut eligible = self.waiting.iter().filter(|(entity, _)| entity.vruntime <= average);
        eligible.next().or_else(|| self.waiting.iter().next()).map(|(entity, token)| (*entity, token.task()))
    }

    /// Whether a task that came just now runs before the one that runs, which stands where `running` says.
    pub(super) fn preempts(&mut self, task: TaskId, entity: &Entity, running: &Entity) -> bool {
        let average = self.average(Some(*running));
        let protected = self.running.as_ref().is_some_and(|state| running.vruntime < state.protected_until);
        let is_due = entity.deadline < running.deadline && (entity.slice_ns < running.slice_ns || !protected);
        (is_due || running.vruntime > average) && self.best(average).is_some_and(|(_, best)| best == task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn entity(vruntime: i64, weight: u32) -> Entity {
        Entity { deadline: vruntime + 3_000_000, vruntime, slice_ns: 3 * MS, weight }
    }

    #[test]
    fn a_slice_is_used_up_when_its_deadline_is_reached() {
        let mut light = entity(0, 512);
        assert!(!light.run(MS), "a millisecond at half the weight is two");
        assert_eq!((light.vruntime, light.ahead(), light.left_ns()), (2_000_000, 1_000_000, MS / 2));
        assert!(light.run(MS));
        assert_eq!(light.ahead(), 6_000_000, "the next slice is three milliseconds at half the weight");
    }

    #[test]
    fn the_average_counts_by_weight_and_outlives_the_tasks() {
        let mut queue = RunQueue { weight: 3072, moment: 3072 * 1_000_000, ..RunQueue::default() };
        assert_eq!(queue.average(Some(entity(5_000_000, 1024))), 2_000_000);
        // The average of the waiting tasks is still one.
        assert_eq!(queue.moment, 3072 * -1_000_000);
        assert_eq!(queue.average(None), 1_000_000);
        (queue.weight, queue.moment) = (0, 0);
        assert_eq!(queue.average(None), 1_000_000);
    }

    #[test]
    fn nobody_is_owed_more_than_two_slices_or_a_tick() {
        let entity = entity(0, 1024);
        assert_eq!((entity.lag(2_000), entity.lag(-2_000)), (2_000, -2_000));
        assert_eq!((entity.lag(i64::MAX / 2), entity.lag(i64::MIN / 2)), (10_000_000, -10_000_000));
        let long = Entity { slice_ns: 50 * MS, ..entity };
        assert_eq!(long.lag(i64::MAX / 2), 100_000_000);
    }
}
