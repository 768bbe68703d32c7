//! Groups of tasks against models that are as simple as can be: shares of a tree of groups, and limits on a machine that does
//! nothing but run tasks in turn.

use std::{collections::VecDeque, time::Instant};

use ekiden_engine::groups::{Groups, Limit};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const NICE_0: u32 = ekiden::NICE_0_WEIGHT;

/// The root is called 1, as on a kernel.
const ROOT: u64 = 1;

fn groups(max_tasks: u32) -> Groups {
    let groups = Groups::new(16, max_tasks);
    assert!(groups.create(ROOT, None, false));
    groups
}

fn limit_ms(quota_ms: u64, period_ms: u64, burst_ms: u64) -> Option<Limit> {
    Some(Limit { quota_ns: quota_ms * MS, period_ns: period_ms * MS, burst_ns: burst_ms * MS })
}

// ---- shares ----

#[test]
fn a_task_in_the_root_keeps_its_weight_whatever_groups_there_are() {
    let groups = groups(4);
    assert!(groups.enter(0, ROOT, 0));
    groups.wake(0, 335);
    assert_eq!(groups.weight(0, 335), 335);
    assert!(groups.create(2, Some(ROOT), false));
    assert!(groups.enter(1, 2, NICE_0));
    assert_eq!(groups.weight(0, 335), 335);
}

#[test]
fn a_group_weighs_as_much_as_a_task_and_its_tasks_share_that() {
    let groups = groups(4);
    assert!(groups.create(2, Some(ROOT), false));
    assert!(groups.create(3, Some(ROOT), false));
    groups.set_weight(3, 300);
    assert!(groups.enter(0, 2, NICE_0));
    assert!(groups.enter(1, 3, NICE_0));
    assert!(groups.enter(2, 3, NICE_0));
    assert_eq!([0, 1, 2].map(|slot| groups.weight(slot, NICE_0)), [1024, 1536, 1536]);
    groups.sleep(2);
    assert_eq!(groups.weight(1, NICE_0), 3072);
    groups.set_idle(3, true);
    assert_eq!(groups.weight(1, NICE_0), 3);
    groups.set_idle(3, false);
    assert_eq!(groups.weight(1, NICE_0), 3072);
}

#[test]
fn a_group_that_nothing_in_it_wants_to_run_leaves_its_share_to_its_siblings() {
    let groups = groups(4);
    assert!(groups.create(2, Some(ROOT), false));
    assert!(groups.create(20, Some(2), false));
    assert!(groups.create(21, Some(2), false));
    assert!(groups.enter(0, 20, NICE_0));
    assert!(groups.enter(1, 21, NICE_0));
    assert_eq!(groups.weight(0, NICE_0), 512);
    groups.sleep(1);
    assert_eq!(groups.weight(0, NICE_0), 1024);
    groups.wake(1, NICE_0);
    assert_eq!(groups.weight(0, NICE_0), 512);
}

#[test]
fn a_group_without_room_is_part_of_the_one_above() {
    let groups = Groups::new(1, 4);
    assert!(groups.create(ROOT, None, false));
    assert!(groups.create(2, Some(ROOT), false));
    assert!(groups.create(3, Some(2), false));
    assert_eq!((groups.len(), groups.overflows()), (1, 1));
    groups.set_weight(3, 10_000);
    // The host asks for the group above then.
    assert!(!groups.enter(0, 3, NICE_0) && groups.enter(0, 2, NICE_0));
    assert!(groups.enter(1, 2, NICE_0));
    assert_eq!(groups.weight(0, NICE_0), 512);
    // And for a group in one that is not known.
    assert!(!groups.create(4, Some(3), false) && groups.create(4, Some(2), false));
    // The place is free once the group is gone, and the last task has left.
    groups.destroy(3);
    groups.destroy(2);
    groups.leave(0);
    assert_eq!(groups.len(), 1);
    groups.leave(1);
    assert_eq!(groups.len(), 0);
    assert!(groups.create(4, Some(ROOT), false));
    assert_eq!(groups.len(), 1);
}

/// However many groups there were: names have no room of their own.
#[test]
fn no_number_of_groups_takes_a_task_out_of_the_limit_above() {
    let groups = Groups::new(4, 1);
    assert!(groups.create(ROOT, None, false) && groups.create(2, Some(ROOT), false));
    groups.set_limit(2, limit_ms(10, 100, 0), 0);
    for name in 3..100 {
        assert!(groups.create(name, Some(2), true));
    }
    assert!(!groups.enter(0, 99, NICE_0));
    assert!(groups.enter(0, 2, NICE_0) && groups.is_limited(0));
}

#[test]
fn somebody_who_makes_groups_without_end_leaves_room_for_others() {
    let groups = Groups::new(64, 1);
    assert!(groups.create(ROOT, None, false));
    assert!(groups.create(2, Some(ROOT), false) && groups.create(3, Some(ROOT), false));
    for name in 100..200 {
        assert!(groups.create(name, Some(if name % 2 == 0 { 2 } else { name - 1 }), true) || name % 2 == 1);
    }
    assert!((10..=16).contains(&groups.len()), "{} groups", groups.len());
    // Another user, and root.
    assert!(groups.create(300, Some(3), true) && groups.enter(0, 300, 0));
    assert!(groups.create(301, Some(ROOT), false) && groups.enter(0, 301, 0));
    // A user who destroys some may make others.
    let full = groups.len();
    (100..200).for_each(|name| groups.destroy(name));
    assert!(groups.len() < full);
    assert!(groups.create(400, Some(2), true) && groups.enter(0, 400, 0));
}

/// Groups 2..=8 by name, the parent of each, and its weight; which tasks want to run, in which group, with which weight.
#[derive(Clone, Debug)]
struct Tree {
    parents: Vec<u64>,
    weights: Vec<u32>,
    tasks: Vec<(u64, u32, bool)>,
}

const TREE_GROUPS: usize = 7;
const TREE_TASKS: usize = 10;

impl Tree {
    fn scaled(&self, group: u64) -> f64 {
        f64::from((self.weights[group as usize - 2] * NICE_0 + 50) / 100)
    }

    fn is_active(&self, group: u64) -> bool {
        self.tasks.iter().any(|(own, _, wants)| *own == group && *wants)
            || self.children(group).any(|child| self.is_active(child))
    }

    fn children(&self, group: u64) -> impl Iterator<Item = u64> {
        (2..).zip(&self.parents).filter(move |(_, parent)| **parent == group).map(|(child, _)| child)
    }

    /// What the group weighs in the whole, and what it is divided by.
    fn share(&self, group: u64) -> f64 {
        if group == ROOT {
            return 1.0;
        }
        let tasks = self.tasks.iter().filter(|(own, _, wants)| *own == group && *wants);
        let load = tasks.map(|(_, weight, _)| f64::from(*weight)).sum::<f64>()
            + self.children(group).filter(|child| self.is_active(*child)).map(|child| self.scaled(child)).sum::<f64>();
        self.scaled(group) * self.share(self.parents[group as usize - 2]) / load
    }

    fn weight(&self, task: usize) -> f64 {
        f64::from(self.tasks[task].1) * self.share(self.tasks[task].0)
    }
}

#[derive(Clone, Debug)]
enum Change {
    Sleep(u32),
    Wake(u32),
    Renice(u32, u32),
    Move(u32, u64),
    Reweigh(u64, u32),
}

fn change() -> impl Strategy<Value = Change> {
    let task = 0..TREE_TASKS as u32;
    let group = 2..2 + TREE_GROUPS as u64;
    let weight = prop_oneof![Just(NICE_0), 15u32..80_000];
    prop_oneof![
        task.clone().prop_map(Change::Sleep),
        task.clone().prop_map(Change::Wake),
        (task.clone(), weight).prop_map(|(task, weight)| Change::Renice(task, weight)),
        (task, prop_oneof![Just(ROOT), group.clone()]).prop_map(|(task, group)| Change::Move(task, group)),
        (group, 1u32..10_000).prop_map(|(group, weight)| Change::Reweigh(group, weight)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn weights_are_those_of_the_whole_tree_after_every_change(
        above in prop::collection::vec(any::<prop::sample::Index>(), TREE_GROUPS),
        changes in prop::collection::vec(change(), 1..60),
    ) {
        let groups = groups(TREE_TASKS as u32);
        let mut tree = Tree {
            parents: (0..TREE_GROUPS).map(|group| above[group].index(group + 1) as u64 + 1).collect(),
            weights: vec![100; TREE_GROUPS],
            tasks: vec![(ROOT, NICE_0, false); TREE_TASKS],
        };
        for (group, parent) in (2..).zip(&tree.parents) {
            assert!(groups.create(group, Some(*parent), false));
        }
        for change in changes {
            match change {
                Change::Sleep(task) => {
                    tree.tasks[task as usize].2 = false;
                    groups.sleep(task);
                }
                Change::Wake(task) => {
                    tree.tasks[task as usize].2 = true;
                    groups.wake(task, tree.tasks[task as usize].1);
                }
                Change::Renice(task, weight) => {
                    tree.tasks[task as usize].1 = weight;
                    groups.set_task_weight(task, weight);
                }
                Change::Move(task, group) => {
                    let (own, weight, wants) = &mut tree.tasks[task as usize];
                    *own = group;
                    assert!(groups.enter(task, group, if *wants { *weight } else { 0 }));
                }
                Change::Reweigh(group, weight) => {
                    tree.weights[group as usize - 2] = weight;
                    groups.set_weight(group, weight);
                }
            }
            for (task, (_, own, wants)) in tree.tasks.iter().enumerate() {
                let expected = tree.weight(task);
                let weight = f64::from(groups.weight(task as u32, *own));
                if *wants {
                    // Whole numbers, and 16 binary places on the way.
                    prop_assert!((weight - expected).abs() <= 1.0 + expected / 500.0, "{weight} is not {expected}: {tree:?}");
                }
            }
        }
        for task in 0..TREE_TASKS as u32 {
            groups.leave(task);
        }
        for group in 2..2 + TREE_GROUPS as u64 {
            groups.destroy(group);
        }
        prop_assert!(groups.is_empty());
    }

    /// One CPU, run by the virtual time that the weights give, while groups come to want to run and cease to.
    #[test]
    fn shares_are_those_of_the_tree_within_5_percent(
        weights in prop::collection::vec(50u32..400, 5),
        phases in prop::collection::vec(prop::collection::vec(any::<bool>(), 6), 1..4),
    ) {
        // 2 and 3 in the root, 4 and 5 in 2, 6 in 3; tasks in 4, 4, 5, 6, 3 and in the root.
        let homes = [4, 4, 5, 6, 3, ROOT];
        let mut tree = Tree { parents: vec![ROOT, ROOT, 2, 2, 3], weights, tasks: homes.map(|home| (home, NICE_0, false)).into() };
        let groups = groups(6);
        for (group, parent) in (2..).zip(&tree.parents) {
            assert!(groups.create(group, Some(*parent), false));
            groups.set_weight(group, tree.weights[group as usize - 2]);
        }
        for (task, home) in (0..).zip(homes) {
            assert!(groups.enter(task, home, 0));
        }
        const SLICES: u32 = 4000;
        for wanting in phases {
            if !wanting.contains(&true) {
                continue;
            }
            for (task, wants) in wanting.iter().enumerate() {
                tree.tasks[task].2 = *wants;
                if *wants { groups.wake(task as u32, NICE_0) } else { groups.sleep(task as u32) }
            }
            let total: f64 = (0..6).filter(|task| wanting[*task]).map(|task| tree.weight(task)).sum();
            let mut vruntime = [0f64; 6];
            let mut ran = [0u32; 6];
            for _ in 0..SLICES {
                let next = (0..6).filter(|task| wanting[*task]).min_by(|a, b| vruntime[*a].total_cmp(&vruntime[*b])).unwrap();
                vruntime[next] += 1.0 / f64::from(groups.weight(next as u32, NICE_0));
                ran[next] += 1;
            }
            for task in (0..6).filter(|task| wanting[*task]) {
                let expected = tree.weight(task) / total;
                let share = f64::from(ran[task]) / f64::from(SLICES);
                prop_assert!((share - expected).abs() <= 0.05 * expected + 2.0 / f64::from(SLICES), "{share} is not {expected}");
            }
        }
    }
}

// ---- limits ----

#[test]
fn what_is_used_in_excess_is_missing_in_the_next_period() {
    let groups = groups(1);
    assert!(groups.create(2, Some(ROOT), false));
    assert!(groups.enter(0, 2, NICE_0));
    groups.set_limit(2, limit_ms(10, 100, 0), 0);
    assert_eq!(groups.allowance_ns(0, || 0), Some(10 * MS));
    let charge = groups.charge(0, 14 * MS, || 20 * MS);
    assert_eq!((charge.is_used_up, charge.refill_at_ns), (true, Some(100 * MS)));
    assert_eq!(groups.allowance_ns(0, || 0), None);
    assert!(groups.throttle(0, true, 0));
    // Another CPU finds out, too, and need not see to it again.
    assert_eq!(groups.charge(0, MS, || 21 * MS).refill_at_ns, None);
    assert_eq!(groups.refill(100 * MS), Some(200 * MS));
    assert_eq!(groups.next_released(), Some(0));
    assert_eq!(groups.allowance_ns(0, || 0), Some(5 * MS));
    // In the next period nothing is used, and after that no refill is due.
    assert_eq!((groups.refill(200 * MS), groups.refill(300 * MS)), (None, None));
    assert_eq!(groups.charge(0, MS, || 340 * MS).refill_at_ns, Some(400 * MS));
}

/// At each tick it is charged for four periods.
#[test]
fn periods_shorter_than_a_tick_give_all_of_their_time() {
    let groups = groups(1);
    assert!(groups.create(2, Some(ROOT), false));
    assert!(groups.enter(0, 2, NICE_0));
    groups.set_limit(2, limit_ms(1, 1, 0), 0);
    let (mut ran_ms, mut now_ms) = (0, 0);
    while now_ms < 1_000 {
        if groups.allowance_ns(0, || now_ms * MS).is_none() {
            groups.throttle(0, true, now_ms * MS);
            now_ms += 1;
            groups.refill(now_ms * MS);
            let _ = groups.next_released();
            continue;
        }
        for _ in 0..4 {
            now_ms += 1;
            groups.refill(now_ms * MS);
        }
        ran_ms += 4;
        let _ = groups.charge(0, 4 * MS, || now_ms * MS);
    }
    assert!((970..=1_010).contains(&ran_ms), "{ran_ms} ms of 1,000");
}

#[test]
fn a_group_that_owes_more_than_a_quota_waits_for_more_than_one_period() {
    let groups = groups(1);
    assert!(groups.create(2, Some(ROOT), false));
    assert!(groups.enter(0, 2, NICE_0));
    groups.set_limit(2, limit_ms(10, 100, 0), 0);
    assert!(groups.charge(0, 35 * MS, || 40 * MS).is_used_up);
    assert!(groups.throttle(0, true, 0));
    assert_eq!(groups.refill(100 * MS), Some(200 * MS));
    assert_eq!(groups.next_released(), None);
    assert_eq!(groups.refill(200 * MS), Some(300 * MS));
    assert_eq!(groups.refill(300 * MS), Some(400 * MS));
    assert_eq!(groups.next_released(), Some(0));
}

#[test]
fn the_limit_of_a_group_above_holds_too() {
    let groups = groups(2);
    assert!(groups.create(2, Some(ROOT), false));
    assert!(groups.create(3, Some(2), false));
    groups.set_limit(2, limit_ms(10, 100, 0), 0);
    groups.set_limit(3, limit_ms(10, 50, 0), 0);
    assert!(groups.enter(0, 3, NICE_0));
    assert!(groups.enter(1, 2, NICE_0));
    assert!(groups.charge(1, 10 * MS, || 10 * MS).is_used_up);
    assert_eq!(groups.allowance_ns(0, || 0), None);
    assert!(groups.throttle(0, false, 0));
    // The nearer limit is renewed; that is not what it waits for.
    assert_eq!(groups.refill(50 * MS), Some(100 * MS));
    assert_eq!(groups.next_released(), None);
    assert_eq!(groups.refill(100 * MS), Some(200 * MS));
    assert_eq!(groups.next_released(), Some(0));
}

/// A group inside of many others is not dearer: writing `cpu.max` had every group look for its limit all the way up.
#[test]
fn a_limit_is_set_in_time_proportional_to_the_groups() {
    const GROUPS: u32 = 2_000;
    let made = |parent: fn(u64) -> u64| {
        let groups = Groups::new(GROUPS, 1);
        assert!(groups.create(ROOT, None, false));
        (2..2 + u64::from(GROUPS)).for_each(|name| assert!(groups.create(name, Some(parent(name)), false)));
        assert!(groups.enter(0, 1 + u64::from(GROUPS), 0));
        groups
    };
    let (beside, inside) = (made(|_| ROOT), made(|name| name - 1));
    let set = |groups: &Groups| {
        let begun = Instant::now();
        for ms in 1..=50 {
            groups.set_limit(2, limit_ms(ms, 100, 0), 0);
        }
        begun.elapsed()
    };
    let (beside_took, inside_took) = (set(&beside), set(&inside));
    assert!(inside_took < 50 * beside_took, "{inside_took:?}, and {beside_took:?} where none is in another");
    assert!((beside.is_limited(0), inside.is_limited(0)) == (false, true));
    inside.set_limit(2, None, 0);
    assert!(!inside.is_limited(0));
}

#[test]
fn a_refill_gives_time_to_so_many_groups_and_the_next_one_to_others() {
    const GROUPS: u32 = 200;
    let groups = Groups::new(GROUPS, GROUPS);
    assert!(groups.create(ROOT, None, false));
    for (slot, name) in (0..GROUPS).zip(2..) {
        assert!(groups.create(name, Some(ROOT), false));
        groups.set_limit(name, limit_ms(10, 100, 0), 0);
        assert!(groups.enter(slot, name, 0));
        assert!(groups.charge(slot, 10 * MS, || MS).is_used_up && groups.throttle(slot, true, MS));
    }
    let (mut now_ns, mut released) = (100 * MS, 0);
    for _ in 0..GROUPS / 32 + 1 {
        let again_at_ns = groups.refill(now_ns).unwrap();
        let some = std::iter::from_fn(|| groups.next_released()).count();
        assert!(some <= 32, "{some} at once");
        released += some;
        assert!(again_at_ns <= now_ns + 100_000 || released == GROUPS as usize);
        now_ns = again_at_ns;
    }
    assert_eq!(released, GROUPS as usize);
}

#[test]
fn what_was_not_asked_for_while_there_was_time_stays_in_its_place() {
    let groups = groups(4);
    assert!(groups.create(2, Some(ROOT), false));
    groups.set_limit(2, limit_ms(10, 100, 0), 0);
    (0..4).for_each(|slot| assert!(groups.enter(slot, 2, 0)));
    assert!(groups.charge(0, 10 * MS, || MS).is_used_up);
    (0..4).for_each(|slot| assert!(groups.throttle(slot, true, MS)));
    assert_eq!(groups.refill(100 * MS), Some(200 * MS));
    assert_eq!((groups.next_released(), groups.next_released()), (Some(0), Some(1)));
    assert!(groups.charge(0, 10 * MS, || 101 * MS).is_used_up);
    assert_eq!((groups.next_released(), groups.releases()), (None, false));
    assert!(groups.throttle(0, true, 101 * MS) && groups.throttle(1, false, 101 * MS));
    assert_eq!(groups.refill(200 * MS), Some(300 * MS));
    let order: Vec<_> = std::iter::from_fn(|| groups.next_released()).collect();
    assert_eq!(order, [1, 2, 3, 0]);
}

#[test]
fn whoever_is_throttled_is_released_when_the_limit_goes() {
    let groups = groups(1);
    assert!(groups.create(2, Some(ROOT), false));
    assert!(groups.enter(0, 2, NICE_0));
    groups.set_limit(2, limit_ms(10, 100, 0), 0);
    assert!(groups.charge(0, 20 * MS, || 20 * MS).is_used_up);
    assert!(groups.throttle(0, true, 0));
    groups.set_limit(2, None, 30 * MS);
    assert_eq!(groups.next_released(), Some(0));
    assert_eq!((groups.is_limited(0), groups.allowance_ns(0, || 0)), (false, Some(u64::MAX)));
    assert!(!groups.throttle(0, true, 0));
}

#[test]
fn a_task_that_dies_while_it_is_throttled_is_not_released() {
    let groups = groups(2);
    assert!(groups.create(2, Some(ROOT), false));
    groups.set_limit(2, limit_ms(10, 100, 0), 0);
    assert!(groups.enter(0, 2, 0));
    assert!(groups.enter(1, 2, 0));
    assert!(groups.charge(0, 20 * MS, || 20 * MS).is_used_up);
    assert!(groups.throttle(0, true, 0) && groups.throttle(1, true, 0));
    groups.unthrottle(0);
    groups.leave(0);
    assert_eq!(groups.refill(300 * MS), Some(400 * MS));
    assert_eq!((groups.next_released(), groups.next_released()), (Some(1), None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// One task, which at any time runs for any time if its group has any left.
    #[test]
    fn what_is_left_over_is_kept_as_far_as_the_burst_goes(
        (quota_ms, period_ms, burst_ms) in (1u64..100, 10u64..100, 0u64..50),
        steps in prop::collection::vec((1u64..200, 1u64..60), 1..100),
    ) {
        let groups = groups(1);
        assert!(groups.create(2, Some(ROOT), false));
        assert!(groups.enter(0, 2, NICE_0));
        groups.set_limit(2, limit_ms(quota_ms, period_ms, burst_ms), 0);
        let (mut now_ms, mut periods, mut left_ms) = (0, 0, quota_ms as i64);
        for (later_ms, run_ms) in steps {
            now_ms += later_ms;
            // The model begins every period when it begins.
            while periods < now_ms / period_ms {
                periods += 1;
                left_ms = (left_ms + quota_ms as i64).min((quota_ms + burst_ms) as i64);
            }
            groups.refill(now_ms * MS);
            if groups.allowance_ns(0, || 0).is_some() {
                left_ms -= run_ms as i64;
                let charge = groups.charge(0, run_ms * MS, || now_ms * MS);
                prop_assert_eq!(charge.is_used_up, left_ms <= 0);
            } else {
                prop_assert!(left_ms <= 0);
            }
        }
    }
}

/// A machine whose CPUs run tasks in turn, look at what they run at every tick, and otherwise do as the engine does.
struct Machine {
    groups: Groups,
    now_ns: u64,
    /// The task that runs on each CPU, and until when.
    running: Vec<Option<(u32, u64)>>,
    queue: VecDeque<u32>,
    refill_at_ns: Option<u64>,
    ran_ns: Vec<u64>,
    ran_last_ns: Vec<u64>,
    wait_ns_max: u64,
}

const STEP_NS: u64 = 250_000;
const TICK_NS: u64 = 4 * MS;
const SLICE_NS: u64 = 20 * MS;

impl Machine {
    fn new(groups: Groups, cpus: usize, tasks: u32) -> Self {
        (0..tasks).for_each(|task| groups.wake(task, NICE_0));
        Self {
            groups,
            now_ns: 0,
            running: vec![None; cpus],
            queue: (0..tasks).collect(),
            refill_at_ns: None,
            ran_ns: vec![0; tasks as usize],
            ran_last_ns: vec![0; tasks as usize],
            wait_ns_max: 0,
        }
    }

    fn throttle(&mut self, task: u32, served: bool) {
        self.groups.sleep(task);
        if !self.groups.throttle(task, served, self.now_ns) {
            self.groups.wake(task, NICE_0);
            self.queue.push_back(task);
        }
    }

    fn pick(&mut self, cpu: usize) {
        while let Some(task) = self.queue.pop_front() {
            let Some(allowance_ns) = self.groups.allowance_ns(task, || self.now_ns) else {
                self.throttle(task, false);
                continue;
            };
            let waited_ns = self.now_ns - self.ran_last_ns[task as usize];
            self.wait_ns_max = self.wait_ns_max.max(waited_ns);
            self.running[cpu] = Some((task, self.now_ns + allowance_ns.min(SLICE_NS)));
            return;
        }
    }

    fn step(&mut self) {
        self.now_ns += STEP_NS;
        for cpu in 0..self.running.len() {
            let Some((task, until_ns)) = self.running[cpu] else { continue };
            self.ran_ns[task as usize] += STEP_NS;
            self.ran_last_ns[task as usize] = self.now_ns;
            let charge = self.groups.charge(task, STEP_NS, || self.now_ns);
            self.refill_at_ns = [self.refill_at_ns, charge.refill_at_ns].into_iter().flatten().min();
            // As in the kernel, CPUs are out of step with each other, and what happens elsewhere is seen at a tick.
            let is_tick = (self.now_ns + cpu as u64 * STEP_NS) % TICK_NS == 0;
            if is_tick && charge.is_used_up {
                self.running[cpu] = None;
                self.throttle(task, true);
            } else if self.now_ns >= until_ns {
                self.running[cpu] = None;
                self.queue.push_back(task);
            }
        }
        if self.refill_at_ns.is_some_and(|at_ns| at_ns <= self.now_ns) {
            self.refill_at_ns = self.groups.refill(self.now_ns);
            while let Some(task) = self.groups.next_released() {
                self.groups.wake(task, NICE_0);
                if self.groups.allowance_ns(task, || self.now_ns).is_none() {
                    self.throttle(task, false);
                } else {
                    self.queue.push_back(task);
                }
            }
        }
        for cpu in 0..self.running.len() {
            if self.running[cpu].is_none() {
                self.pick(cpu);
            }
        }
        let running = self.running.iter().flatten().count();
        assert_eq!(running + self.queue.len() + self.groups.throttled() as usize, self.ran_ns.len(), "a task is lost");
    }

    fn run(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        while self.now_ns < end_ns {
            self.step();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_limited_group_gets_its_quota_within_5_percent_and_all_its_tasks_go_on(
        shapes in prop::collection::vec((1u64..=150, 1u64..=10, 2u32..6), 1..4),
    ) {
        const RUN_NS: u64 = 6_000 * MS;
        let tasks: u32 = shapes.iter().map(|(_, _, tasks)| tasks).sum();
        let groups = groups(tasks);
        let mut homes = Vec::new();
        for (name, (percent, periods, tasks)) in (2..).zip(&shapes) {
            assert!(groups.create(name, Some(ROOT), false));
            let period_ms = periods * 10;
            groups.set_limit(name, Some(Limit { quota_ns: period_ms * MS * percent / 100, period_ns: period_ms * MS, burst_ns: 0 }), 0);
            for _ in 0..*tasks {
                assert!(groups.enter(homes.len() as u32, name, 0));
                homes.push(name);
            }
        }
        // Enough CPUs that nothing but the limits holds tasks back.
        let mut machine = Machine::new(groups, tasks as usize, tasks);
        machine.run(RUN_NS);
        for (name, (percent, _, _)) in (2..).zip(&shapes) {
            let used_ns: u64 = homes.iter().zip(&machine.ran_ns).filter(|(home, _)| **home == name).map(|(_, ran)| ran).sum();
            let ratio = used_ns as f64 / (RUN_NS as f64 * *percent as f64 / 100.0);
            // At the end, a group may be ahead or behind by a tick on each CPU.
            let slack = (tasks as u64 * TICK_NS) as f64 / (RUN_NS as f64 * *percent as f64 / 100.0);
            prop_assert!((ratio - 1.0).abs() <= 0.05 + slack, "group {name} used {ratio} of its quota");
        }
        for task in 0..tasks {
            prop_assert!(machine.ran_ns[task as usize] > 0, "task {task} never ran");
        }
        prop_assert!(machine.wait_ns_max < 4_500 * MS, "a task waited for {} ms", machine.wait_ns_max / MS);
    }
}

#[test]
fn many_tasks_with_little_time_all_have_their_turn() {
    let groups = Groups::new(4, 200);
    assert!(groups.create(ROOT, None, false));
    assert!(groups.create(2, Some(ROOT), false));
    assert!(groups.create(3, Some(2), false));
    groups.set_limit(2, limit_ms(5, 100, 0), 0);
    groups.set_limit(3, limit_ms(10, 100, 0), 0);
    (0..200).for_each(|task| assert!(groups.enter(task, if task % 2 == 0 { 2 } else { 3 }, 0)));
    let mut machine = Machine::new(groups, 2, 200);
    machine.run(20_000 * MS);
    let used_ns: u64 = machine.ran_ns.iter().sum();
    assert!((1_000 * MS).abs_diff(used_ns) <= 60 * MS, "used {} ms instead of 1,000", used_ns / MS);
    assert!(machine.ran_ns.iter().all(|ran_ns| *ran_ns > 0));
    assert!(machine.wait_ns_max < 9_000 * MS, "a task waited for {} ms", machine.wait_ns_max / MS);
}

#[test]
fn a_task_that_others_of_its_group_leave_no_time_has_a_turn_all_the_same() {
    let groups = groups(2);
    assert!(groups.create(2, Some(ROOT), false));
    groups.set_limit(2, limit_ms(10, 100, 0), 0);
    assert!(groups.enter(0, 2, 0));
    assert!(groups.enter(1, 2, 0));
    // One task uses up each period before the other is picked.
    for period in 0..60 {
        let now_ns = (1 + period) * 100 * MS;
        groups.refill(now_ns);
        while groups.next_released().is_some() {}
        let _ = groups.charge(0, 10 * MS, || now_ns);
        let turn = groups.allowance_ns(1, || now_ns);
        assert_eq!(turn.is_some(), period >= 50, "in period {period}");
        assert!(groups.throttle(1, false, now_ns));
    }
}

#[test]
fn one_group_takes_nothing_from_another_with_the_same_limit() {
    let groups = groups(6);
    for name in [2, 3] {
        assert!(groups.create(name, Some(ROOT), false));
        groups.set_limit(name, limit_ms(50, 100, 0), 0);
    }
    (0..6).for_each(|task| assert!(groups.enter(task, if task == 0 { 2 } else { 3 }, 0)));
    let mut machine = Machine::new(groups, 2, 6);
    machine.run(5_000 * MS);
    let alone_ms = machine.ran_ns[0] / MS;
    let others_ms = machine.ran_ns[1..].iter().sum::<u64>() / MS;
    assert!((2_375..=2_625).contains(&alone_ms) && (2_375..=2_625).contains(&others_ms), "{alone_ms} and {others_ms}");
}
