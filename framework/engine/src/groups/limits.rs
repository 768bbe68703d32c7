//! Limits of CPU time: what tasks use of it, when they are throttled for lack of it, and when they are released.

use super::budget::Spent;
use super::{GO_ON_AFTER_NS, Groups, ROOT};
use crate::atomics::Ordering::Relaxed;

/// A task that has been throttled for so long without a turn has one although there is no time: others of its group may have
/// been faster each time, under a policy that has it wait for long. The time is missing later, so that the limit holds.
/// A policy is taken out when a task has waited for eight seconds.
const OVERDUE_NS: u64 = 5_000_000_000;

/// The turn of an overdue task, in nanoseconds: sched_ext only wants to see the task run. Ten thousand tasks use a fiftieth of a CPU so, and what it costs to
/// end their turns, which a smaller limit does not hold.
const OVERDUE_TURN_NS: u64 = 10_000;

/// A refill begins the periods of this many groups, and releases this many tasks that are overdue: it may be in an interrupt.
const REFILL_MOST: u32 = 32;

/// What follows from CPU time that was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[must_use]
pub struct Charge {
    /// A group of the task has no time left: the task must give way.
    pub is_used_up: bool,
    /// [`Groups::refill`] is to be called then.
    pub refill_at_ns: Option<u64>,
}

impl Groups {
    /// Whether the CPU time of the task with `index` is limited.
    #[inline]
    pub fn is_limited(&self, index: u32) -> bool {
        let group = self.group_of(index);
        group != ROOT && self.nodes[group as usize].limiter.load(Relaxed) != ROOT
    }

    /// The groups that limit the task with `index`, from the nearest up.
    fn limiters(&self, index: u32) -> impl Iterator<Item = u32> {
        let limiter = |group: u32| match self.nodes[group as usize].limiter.load(Relaxed) {
            ROOT => None,
            limiter => Some(limiter),
        };
        core::iter::successors(limiter(self.group_of(index)), move |group| {
            limiter(self.nodes[*group as usize].parent.load(Relaxed))
        })
    }

    /// The task with `index` has used CPU time. The time is asked for only if that is limited, and nothing of it was used lately.
    #[inline]
    pub fn charge(&self, index: u32, ran_ns: u64, now_ns: impl FnOnce() -> u64) -> Charge {
        if ran_ns == 0 || !self.is_limited(index) {
            return Charge::default();
        }
        self.charge_limited(index, ran_ns, now_ns)
    }

    fn charge_limited(&self, index: u32, ran_ns: u64, now_ns: impl FnOnce() -> u64) -> Charge {
        let mut now_ns = Clock::NotAsked(now_ns);
        self.members[index as usize].throttled_ns.store(0, Relaxed);
        let mut charge = Charge::default();
        for group in self.limiters(index) {
            let Spent { is_used_up, refill_at_ns } = self.nodes[group as usize].budget.spend(ran_ns, || now_ns.ask());
            charge.is_used_up |= is_used_up;
            charge.refill_at_ns = earlier(charge.refill_at_ns, refill_at_ns);
        }
        charge
    }

    /// How long the task with `index` may run at a time; `None` if it has to be throttled. `u64::MAX` without a limit. The time is
    /// asked for only if the task has been throttled.
    #[inline]
    pub fn allowance_ns(&self, index: u32, now_ns: impl FnOnce() -> u64) -> Option<u64> {
        if !self.is_limited(index) {
            return Some(u64::MAX);
        }
        let mut allowance_ns = u64::MAX;
        for group in self.limiters(index) {
            match self.nodes[group as usize].budget.allowance_ns() {
                Some(of_group_ns) => allowance_ns = allowance_ns.min(of_group_ns),
                None => return self.is_overdue(index, now_ns).then_some(OVERDUE_TURN_NS),
            }
        }
        Some(allowance_ns)
    }

    /// Whether the task with `index` has been throttled for so long that it is to run although there is no time.
    fn is_overdue(&self, index: u32, now_ns: impl FnOnce() -> u64) -> bool {
        let since_ns = self.members[index as usize].throttled_ns.load(Relaxed);
        since_ns != 0 && now_ns().saturating_sub(since_ns) >= OVERDUE_NS
    }

    /// Notes whether the task with `index`, which waits for a CPU, may be throttled: it has nothing of the kernel's that others wait for.
    pub fn note_at_user(&self, index: u32, is_at_user: bool) {
        self.members[index as usize].is_at_user.store(is_at_user, Relaxed);
    }

    /// Whether the task with `index` may be throttled, as was noted last.
    pub fn is_at_user(&self, index: u32) -> bool {
        self.members[index as usize].is_at_user.load(Relaxed)
    }

    /// Throttles the task with `index` until there is CPU time for it; false if there is some now. Tasks that are `served`, because
    /// they have run since they were released, come after others, and tasks behind them stay in order.
    ///
    /// The task must not be [waking](Self::wake): it counts for nothing while it is throttled.
    pub fn throttle(&self, index: u32, served: bool, now_ns: u64) -> bool {
        let mut throttled = self.throttled.lock();
        // Refills take this lock, too: either it is seen here that there is time, or the refill finds the task.
        let Some(group) = self.limiters(index).find(|group| self.nodes[*group as usize].budget.is_throttled()) else {
            return false;
        };
        let since_ns = &self.members[index as usize].throttled_ns;
        if served || since_ns.load(Relaxed) == 0 {
            since_ns.store(now_ns.max(1), Relaxed);
        }
        throttled.throttle(index, group, served);
        true
    }

    /// The task with `index` is not throttled any more, if it was.
    pub fn unthrottle(&self, index: u32) {
        self.throttled.lock().take_out(index);
    }

    /// Gives groups that have used CPU time that of a new period, if it is time. Tasks that waited for that are released:
    /// see [`next_released`](Self::next_released). Returns when it has to be called again; `None` if no group uses any.
    ///
    /// Cost: a look at each group, and a bounded number of them are given time; others are when it is called again, soon.
    pub fn refill(&self, now_ns: u64) -> Option<u64> {
        let untouched = self.tree.lock().untouched;
        let mut again_at_ns = None;
        let mut left = REFILL_MOST;
        for group in 1..untouched {
            let budget = &self.nodes[group as usize].budget;
            let Some(ends_ns) = budget.ends_ns() else { continue };
            let is_due = now_ns >= ends_ns;
            if left == 0 {
                again_at_ns = earlier(again_at_ns, Some(if is_due { now_ns + GO_ON_AFTER_NS } else { ends_ns }));
                continue;
            }
            left -= u32::from(is_due);
            // One that has lost its limit is due too.
            let (next_ns, has_time) = budget.refill(now_ns);
            again_at_ns = earlier(again_at_ns, next_ns);
            if !budget.is_throttled() {
                continue;
            }
            if has_time {
                self.let_go(group);
            } else if !self.let_overdue_go(group, now_ns, &mut left) {
                again_at_ns = earlier(again_at_ns, Some(now_ns + GO_ON_AFTER_NS));
            }
        }
        again_at_ns
    }

    /// Tasks that were throttled for the time of `group` are released.
    pub(super) fn let_go(&self, group: u32) {
        let mut throttled = self.throttled.lock();
        let budget = &self.nodes[group as usize].budget;
        budget.unthrottle();
        let released = throttled.release(group);
        budget.set_crowd(released);
    }

    /// Releases tasks that were throttled for the time of `group` and are overdue, no more than `left`. False if some stay.
    fn let_overdue_go(&self, group: u32, now_ns: u64, left: &mut u32) -> bool {
        let mut throttled = self.throttled.lock();
        while let Some(index) = throttled.first(group).filter(|index| self.is_overdue(*index, || now_ns)) {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            throttled.release_one(index);
        }
        true
    }

    /// The index of a task that was throttled and is not any more, in the order in which they are to have their turns. Its limits
    /// may keep it from running all the same: there can be several. When its group has no time left again, the rest stay.
    pub fn next_released(&self) -> Option<u32> {
        self.throttled.lock().next_released(|group| self.nodes[group as usize].budget.is_throttled())
    }

    /// Whether [`next_released`](Self::next_released) may have another one.
    pub fn releases(&self) -> bool {
        self.throttled.lock().releases()
    }

    /// How many tasks are throttled, or released and not asked for.
    pub fn throttled(&self) -> u32 {
        self.throttled.lock().len()
    }
}

/// The time, asked for at most once.
enum Clock<F> {
    NotAsked(F),
    Asked(u64),
}

impl<F: FnOnce() -> u64> Clock<F> {
    fn ask(&mut self) -> u64 {
        if let Clock::NotAsked(ask) = core::mem::replace(self, Clock::Asked(0)) {
            *self = Clock::Asked(ask());
        }
        match self {
            Clock::Asked(now_ns) => *now_ns,
            Clock::NotAsked(_) => 0,
        }
    }
}

/// The earlier of two moments, if there are any.
fn earlier(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        _ => a.or(b),
    }
}
