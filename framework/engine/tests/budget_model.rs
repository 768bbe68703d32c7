//! The CPU time of a group, which tasks use up on some CPUs while another one gives new time: in every order that memory and CPUs
//! allow (loom). No task is left throttled that no refill would look for.
//!
//! What the models hold: the full fences in `spend` and `refill`, between what each says (`throttled`, `active`) and what it looks at (the
//! other of the two); both looks; and that `throttle` looks, and `let_go` changes what it looks at, with the lock of the throttled tasks. The
//! numbers need no order of their own: with all other orderings relaxed the models hold as well.

extern crate alloc;

#[path = "../src/groups/mod.rs"]
pub mod groups;

mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};
}

#[path = "model/lock.rs"]
mod lock;

use groups::{Groups, Limit};
use loom::{sync::Arc, thread};

const GROUP: u64 = 2;
const QUOTA_NS: u64 = 1_000_000;
const PERIOD_NS: u64 = 10_000_000;

/// Tasks in one group with a limit, of which the first has used `used_ns`.
fn groups(tasks: u32, used_ns: u64) -> Arc<Groups> {
    let groups = Groups::new(1, tasks);
    assert!(groups.create(1, None, false) && groups.create(GROUP, Some(1), false));
    groups.set_limit(GROUP, Some(Limit { quota_ns: QUOTA_NS, period_ns: PERIOD_NS, burst_ns: 0 }), 0);
    assert!((0..tasks).all(|slot| groups.enter(slot, GROUP, 0)));
    let _ = groups.charge(0, used_ns, || 0);
    Arc::new(groups)
}

/// A task has run, as its CPU finds at `now_ns`; it is throttled if there is no time. When there is to be a refill, for all that this
/// CPU knows.
fn runs(groups: &Groups, slot: u32, ran_ns: u64, now_ns: u64) -> Option<u64> {
    let charge = groups.charge(slot, ran_ns, || now_ns);
    if groups.allowance_ns(slot, || now_ns).is_none() {
        groups.throttle(slot, true, now_ns);
    }
    charge.refill_at_ns
}

/// A refill, and all that it releases.
fn refill(groups: &Groups, now_ns: u64) -> Option<u64> {
    let again_ns = groups.refill(now_ns);
    while groups.next_released().is_some() {}
    again_ns
}

/// Refills go on as they were asked for, until none is; then no task is throttled any more.
fn all_come_back(groups: &Groups, asked_ns: impl IntoIterator<Item = Option<u64>>) {
    let mut due_ns = asked_ns.into_iter().flatten().min();
    for _ in 0..8 {
        let Some(now_ns) = due_ns else { break };
        due_ns = refill(groups, now_ns);
    }
    assert_eq!(groups.throttled(), 0, "a task is throttled, and no refill comes for it");
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// The last time is used up, and the task throttled, just when the next period begins.
#[test]
fn a_task_that_is_throttled_while_time_comes_is_released() {
    check(3, || {
        let groups = groups(1, QUOTA_NS / 2);
        let other = thread::spawn({
            let groups = groups.clone();
            move || refill(&groups, PERIOD_NS)
        });
        let asked_ns = runs(&groups, 0, QUOTA_NS, PERIOD_NS - 1);
        let again_ns = other.join().unwrap();
        all_come_back(&groups, [asked_ns, again_ns]);
    });
}

/// A third CPU looks for tasks that are released, just when the group is.
#[test]
fn a_cpu_that_looks_for_released_tasks_meanwhile_takes_none_away() {
    check(2, || {
        let groups = groups(2, QUOTA_NS);
        assert!(groups.throttle(0, true, 1));
        let looks = thread::spawn({
            let groups = groups.clone();
            move || groups.next_released()
        });
        let other = thread::spawn({
            let groups = groups.clone();
            move || refill(&groups, PERIOD_NS)
        });
        groups.throttle(1, true, 1);
        looks.join().unwrap();
        let again_ns = other.join().unwrap();
        all_come_back(&groups, [again_ns]);
    });
}

/// A processor is away for two periods between using up the time and saying so.
#[test]
fn a_task_that_says_late_that_time_is_used_up_is_released() {
    check(3, || {
        let groups = groups(1, QUOTA_NS / 2);
        let other = thread::spawn({
            let groups = groups.clone();
            move || [1, 2].map(|period| refill(&groups, period * PERIOD_NS))
        });
        let asked_ns = runs(&groups, 0, QUOTA_NS, PERIOD_NS - 1);
        let [_, again_ns] = other.join().unwrap();
        all_come_back(&groups, [asked_ns, again_ns]);
    });
}

/// Nothing was used for a period, and the refill that finds this out is the last one unless a CPU spends meanwhile: all that
/// there is, or so much that the next period's time does not make up for it.
#[test]
fn the_last_refill_misses_no_task_that_uses_up_all_time_at_once() {
    for quotas in [1, 3] {
        check(3, move || {
            let groups = groups(1, 1);
            // From here on there is all the time of a period that begins.
            assert_eq!(refill(&groups, PERIOD_NS), Some(2 * PERIOD_NS));
            let other = thread::spawn({
                let groups = groups.clone();
                move || refill(&groups, 2 * PERIOD_NS)
            });
            let asked_ns = runs(&groups, 0, quotas * QUOTA_NS, 2 * PERIOD_NS - 1);
            let again_ns = other.join().unwrap();
            all_come_back(&groups, [asked_ns, again_ns]);
        });
    }
}

#[test]
fn two_tasks_that_are_throttled_while_time_comes_are_released() {
    check(1, || {
        let groups = groups(2, QUOTA_NS / 2);
        let refill = thread::spawn({
            let groups = groups.clone();
            move || refill(&groups, PERIOD_NS)
        });
        let other = thread::spawn({
            let groups = groups.clone();
            move || runs(&groups, 1, QUOTA_NS, PERIOD_NS - 1)
        });
        let asked_ns = runs(&groups, 0, QUOTA_NS, PERIOD_NS - 1);
        all_come_back(&groups, [asked_ns, other.join().unwrap(), refill.join().unwrap()]);
    });
}
