//! Groups of tasks: whose CPU time is shared out together, and limited together; control groups, on a kernel.
//!
//! sched_ext tells of control groups and enforces nothing: neither `cpu.weight` nor `cpu.max` nor `cpu.idle` has any effect on
//! tasks of its class, unless somebody sees to it (only a cpuset works by itself, as it narrows a task's affinity). Here it is
//! seen to between the host and the policy, so that no policy has to know:
//!
//! - **Weights** are flattened, as scx_flatcg does it: the weight that a policy is told of a task is that of the task, times
//!   the share that its group has of the group above, and so on up to the root. Shares are those among groups that have tasks
//!   that want to run. What is directly in the root keeps its weight, bit for bit.
//! - **Limits** hold a task back once its group, or one above, has used up the CPU time of the period: the task is *parked*,
//!   which to the policy looks as if it slept, until there is new time. As under the kernel's own scheduler, that is done on its way
//!   to user mode, where it has no lock that others wait for. What was used in excess is missing in the next
//!   period; what was not used is lost, but for the burst that is allowed.
//!
//! All memory is taken at the start. A group for which there is no room counts as part of the group above it.
//!
//! What groups cost a machine that has none: a look at [`Groups::is_active`] in each event of a task. What a task in a group costs: a few loads, one division, and an atomic addition when it begins or ceases to want to run;
//! with a limit also an atomic subtraction for each limit, and a timer per period in which it is used.

mod budget;
mod parking;

use alloc::vec::Vec;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

pub use budget::Limit;
use budget::{Budget, Spent};
use parking::Parking;

use crate::lock::Lock;

/// How many groups an engine has room for, with that of the root.
pub const MAX_GROUPS: u32 = 2048;

/// The weight of a group that nobody has given another one, as control groups count.
pub const DEFAULT_WEIGHT: u32 = 100;

/// What a group with [`DEFAULT_WEIGHT`] weighs among tasks: as much as one with nice 0.
const USUAL: u64 = ekiden::NICE_0_WEIGHT as u64;

/// The weight of a group, or of a task, that is to run when nothing else does: the kernel's `WEIGHT_IDLEPRIO`.
pub(crate) const IDLE_WEIGHT: u32 = 3;

/// The group of all that are in no other.
const ROOT: u32 = 0;

/// A share has so many binary places.
const PLACES: u32 = 16;

/// A task that has been parked for so long without a turn has one although there is no time: others of its group may have
/// been faster each time, under a policy that has it wait for long. The time is missing later, so that the limit holds.
/// A policy is taken out when a task has waited for eight seconds.
const OVERDUE_NS: u64 = 5_000_000_000;

/// Such a turn, in nanoseconds: sched_ext only wants to see the task run. Ten thousand tasks use a fiftieth of a CPU so, which a smaller
/// limit does not hold.
const OVERDUE_TURN_NS: u64 = 10_000;

/// A refill begins the periods of so many groups, and releases so many tasks that are overdue: it may be in an interrupt.
const REFILL_MOST: u32 = 32;

/// How long after that the next refill comes, in nanoseconds.
pub(crate) const GO_ON_AFTER_NS: u64 = 100_000;

/// So many bits of a kept share count the changes.
const VERSION_BITS: u32 = 31;

/// All groups of a machine, and which task is in which.
#[derive(Debug)]
pub struct Groups {
    /// There is one besides the root.
    active: AtomicBool,
    nodes: Vec<Node>,
    members: Vec<Member>,
    tree: Lock<Tree>,
    parking: Lock<Parking>,
    /// Counts what changes the shares of groups inside of others.
    version: AtomicU64,
    overflows: AtomicU64,
}

/// One group, as scheduling calls see it.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Node {
    parent: AtomicU32,
    /// How many groups are directly in it.
    children: AtomicU32,
    /// The nearest group with a limit, from this one up; the root has none.
    limiter: AtomicU32,
    /// Its weight among its siblings, on the scale of tasks.
    weight: AtomicU32,
    /// The weights of all directly in it that want to run, tasks and groups.
    load: AtomicU64,
    /// What it weighs in the whole, times 2^[`PLACES`], and the version for which that was worked out.
    share: AtomicU64,
    /// What it has added to the load of its parent.
    counted: Lock<u32>,
    budget: Budget,
}

/// What is kept of a task, in one word, because it may be released on one CPU while it moves on another: its group, and what it
/// has added to the load of that, which is 0 if it does not want to run or is in the root. Besides, since when it has been
/// parked without having run in between, 0 if it is not, or has; and whether it waits on its way to user mode, where it may be parked.
#[derive(Debug, Default)]
struct Member {
    group: AtomicU64,
    parked_ns: AtomicU64,
    is_at_user: AtomicBool,
}

impl Member {
    #[inline]
    fn group(&self) -> u32 {
        (self.group.load(Relaxed) >> 32) as u32
    }

    /// Puts it into a group, and returns where it was and what it had added there.
    fn enter(&self, group: u32, counted: u32) -> (u32, u32) {
        let old = self.group.swap(u64::from(group) << 32 | u64::from(counted), Relaxed);
        ((old >> 32) as u32, old as u32)
    }

    /// Has it add `counted` to its group, and returns the group and what it had added before.
    fn count(&self, counted: impl Fn(u32) -> u32) -> (u32, u32, u32) {
        let mut old = self.group.load(Relaxed);
        loop {
            let (group, before) = ((old >> 32) as u32, old as u32);
            let now = if group == ROOT { 0 } else { counted(before) };
            let new = u64::from(group) << 32 | u64::from(now);
            match self.group.compare_exchange_weak(old, new, Relaxed, Relaxed) {
                Ok(_) => return (group, before, now),
                Err(seen) => old = seen,
            }
        }
    }
}

/// What is looked at when groups come and go.
#[derive(Debug)]
struct Tree {
    /// The host's names, in order, and the group that each stands for.
    names: Vec<(u64, u32)>,
    free: Vec<u32>,
    entries: Vec<Entry>,
    /// No group from here on was ever used.
    untouched: u32,
    /// Counts passes of [`Groups::find_limiters`].
    pass: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    members: u32,
    children: u32,
    /// The highest group on the way up in which an ordinary user may make groups.
    delegation: u32,
    /// How many groups are somewhere in this one, if it is that.
    inside: u32,
    /// As control groups count.
    weight: u32,
    is_idle: bool,
    /// The host has destroyed it. It stays until its last task is gone.
    is_gone: bool,
    /// The pass in which its nearest limit was found.
    pass: u32,
}

impl Tree {
    fn find(&self, name: u64) -> Option<u32> {
        self.names.binary_search_by_key(&name, |(name, _)| *name).ok().map(|index| self.names[index].1)
    }
}

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
    /// Room for `max_groups` groups besides the root, and the tasks in `max_tasks` slots.
    pub fn new(max_groups: u32, max_tasks: u32) -> Self {
        let count = max_groups as usize + 1;
        let mut nodes = Vec::with_capacity(count);
        nodes.resize_with(count, Node::default);
        let mut members = Vec::with_capacity(max_tasks as usize);
        members.resize_with(max_tasks as usize, Member::default);
        let tree = Tree {
            names: Vec::with_capacity(count),
            free: (1..=max_groups).rev().collect(),
            entries: alloc::vec![Entry::default(); count],
            untouched: 1,
            pass: 0,
        };
        Self {
            active: AtomicBool::new(false),
            nodes,
            members,
            tree: Lock::new(tree),
            parking: Lock::new(Parking::new(max_groups + 1, max_tasks)),
            version: AtomicU64::new(1),
            overflows: AtomicU64::new(0),
        }
    }

    /// How many groups there was no room for since the start. They count as part of the one above them.
    pub fn overflows(&self) -> u64 {
        self.overflows.load(Relaxed)
    }

    /// How many groups there are besides the root.
    pub fn len(&self) -> u32 {
        self.nodes.len() as u32 - 1 - self.tree.lock().free.len() as u32
    }

    /// Whether there is one besides the root: all that groups cost a machine without any is to look at this.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.active.load(Relaxed)
    }

    /// Whether there is none besides the root.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    // ---- groups come, change and go ----

    /// A group exists from now on, in the group `parent`; one without is the root itself. False if the parent is unknown: the
    /// caller asks again with the one above that. Groups below a parent that `is_delegated`, which an ordinary user may
    /// make, get no more than a quarter of the room that is left.
    ///
    /// One for which there is no room stays unknown, so that its tasks and the groups in it count for the one above it.
    #[must_use]
    pub fn create(&self, name: u64, parent: Option<u64>, is_delegated: bool) -> bool {
        let tree = &mut *self.tree.lock();
        let Err(place) = tree.names.binary_search_by_key(&name, |(name, _)| *name) else { return true };
        let Some(parent) = parent else {
            tree.names.insert(place, (name, ROOT));
            return true;
        };
        let Some(parent) = tree.find(parent) else { return false };
        let delegation = match tree.entries[parent as usize].delegation {
            ROOT if is_delegated => parent,
            known => known,
        };
        let is_greedy = delegation != ROOT && 4 * tree.entries[delegation as usize].inside >= tree.free.len() as u32;
        let room = if is_greedy { None } else { tree.free.pop() };
        let Some(group) = room else {
            self.overflows.fetch_add(1, Relaxed);
            return true;
        };
        self.active.store(true, Relaxed);
        tree.names.insert(place, (name, group));
        tree.untouched = tree.untouched.max(group + 1);
        tree.entries[group as usize] = Entry { weight: DEFAULT_WEIGHT, delegation, ..Entry::default() };
        tree.entries[parent as usize].children += 1;
        tree.entries[delegation as usize].inside += 1;
        let node = &self.nodes[group as usize];
        node.parent.store(parent, Relaxed);
        node.weight.store(USUAL as u32, Relaxed);
        node.limiter.store(self.nodes[parent as usize].limiter.load(Relaxed), Relaxed);
        node.budget.set(None, 0);
        self.nodes[parent as usize].children.fetch_add(1, Relaxed);
        self.version.fetch_add(1, Release);
        true
    }

    /// A group is no more. Tasks that are still in it count as before until they leave.
    pub fn destroy(&self, name: u64) {
        let tree = &mut *self.tree.lock();
        let Ok(place) = tree.names.binary_search_by_key(&name, |(name, _)| *name) else { return };
        let (_, group) = tree.names.remove(place);
        if group != ROOT {
            tree.entries[group as usize].is_gone = true;
            self.free_if_unused(tree, group);
        }
    }

    /// Frees groups that the host has destroyed and nobody is in, from `group` up.
    fn free_if_unused(&self, tree: &mut Tree, mut group: u32) {
        loop {
            let entry = tree.entries[group as usize];
            if group == ROOT || !entry.is_gone || entry.members != 0 || entry.children != 0 {
                return;
            }
            let node = &self.nodes[group as usize];
            let parent = node.parent.load(Relaxed);
            tree.entries[entry.delegation as usize].inside -= 1;
            tree.entries[group as usize] = Entry::default();
            tree.entries[parent as usize].children -= 1;
            self.nodes[parent as usize].children.fetch_sub(1, Relaxed);
            tree.free.push(group);
            self.active.store(tree.free.len() < self.nodes.len() - 1, Relaxed);
            group = parent;
        }
    }

    /// Sets a group's weight among its siblings, from 1 to 10,000.
    pub fn set_weight(&self, name: u64, weight: u32) {
        self.reweigh(name, |entry| entry.weight = weight);
    }

    /// Has a group run only when its siblings do not want to, or no longer so.
    pub fn set_idle(&self, name: u64, is_idle: bool) {
        self.reweigh(name, |entry| entry.is_idle = is_idle);
    }

    fn reweigh(&self, name: u64, change: impl FnOnce(&mut Entry)) {
        let tree = &mut *self.tree.lock();
        // The root weighs nothing.
        let Some(group) = tree.find(name).filter(|group| *group != ROOT) else { return };
        let entry = &mut tree.entries[group as usize];
        change(entry);
        let scaled = (u64::from(entry.weight) * USUAL + u64::from(DEFAULT_WEIGHT) / 2) / u64::from(DEFAULT_WEIGHT);
        let weight = if entry.is_idle { IDLE_WEIGHT } else { scaled.clamp(1, 100 * USUAL) as u32 };
        self.nodes[group as usize].weight.store(weight, Relaxed);
        self.version.fetch_add(1, Release);
        self.count_again(group);
    }

    /// Sets how much CPU time a group may use, or that it may use all there is. A new limit begins with a whole quota, and
    /// tasks that were parked for the old one are released: see [`next_released`](Self::next_released).
    pub fn set_limit(&self, name: u64, limit: Option<Limit>, now_ns: u64) {
        let tree = &mut *self.tree.lock();
        let Some(group) = tree.find(name).filter(|group| *group != ROOT) else { return };
        self.nodes[group as usize].budget.set(limit, now_ns);
        self.find_limiters(tree);
        self.let_go(group);
    }

    /// Works out anew which limit is the nearest of each group.
    ///
    /// Cost: two steps for each group, however deep they are inside of each other.
    fn find_limiters(&self, tree: &mut Tree) {
        tree.pass = tree.pass.wrapping_add(1);
        for index in 1..tree.untouched {
            let is_found = |group: u32| group == ROOT || tree.entries[group as usize].pass == tree.pass;
            let above = |group: u32| self.nodes[group as usize].parent.load(Relaxed);
            let mut end = index;
            while !is_found(end) && !self.nodes[end as usize].budget.is_limited() {
                end = above(end);
            }
            // The root is limited by itself: by nothing.
            let limiter = if is_found(end) { self.nodes[end as usize].limiter.load(Relaxed) } else { end };
            let mut group = index;
            while !(group == ROOT || tree.entries[group as usize].pass == tree.pass) {
                tree.entries[group as usize].pass = tree.pass;
                self.nodes[group as usize].limiter.store(limiter, Relaxed);
                if group == end {
                    break;
                }
                group = above(group);
            }
        }
    }

    // ---- tasks come, move and go ----

    /// The task in `slot` is from now on in the group that the host calls `name`. False if there is none such: the caller asks
    /// again with the group above that. `counted` is its weight if it wants to run, and else 0. A task that was parked is not any more.
    #[must_use]
    pub fn enter(&self, slot: u32, name: u64, counted: u32) -> bool {
        let tree = &mut *self.tree.lock();
        let Some(group) = tree.find(name) else { return false };
        self.unpark(slot);
        self.change_group(tree, slot, group, counted);
        true
    }

    /// The task in `slot` is no more.
    pub fn leave(&self, slot: u32) {
        if self.group_of(slot) != ROOT {
            self.change_group(&mut self.tree.lock(), slot, ROOT, 0);
        }
    }

    fn change_group(&self, tree: &mut Tree, slot: u32, group: u32, counted: u32) {
        let counted = if group == ROOT { 0 } else { counted };
        let (old, before) = self.members[slot as usize].enter(group, counted);
        tree.entries[group as usize].members += u32::from(group != ROOT);
        tree.entries[old as usize].members -= u32::from(old != ROOT);
        self.members[slot as usize].parked_ns.store(0, Relaxed);
        self.members[slot as usize].is_at_user.store(false, Relaxed);
        self.add_load(old, -i64::from(before));
        self.add_load(group, i64::from(counted));
        self.free_if_unused(tree, old);
    }

    #[inline]
    fn group_of(&self, slot: u32) -> u32 {
        self.members[slot as usize].group()
    }

    // ---- weights ----

    /// What a policy is to be told of the weight of a task that weighs `own` in its group.
    #[inline]
    pub fn weight(&self, slot: u32, own: u32) -> u32 {
        let group = self.group_of(slot);
        if group == ROOT { own } else { self.flat_weight(group, own) }
    }

    /// Rounded, but not to nothing.
    fn flat_weight(&self, group: u32, own: u32) -> u32 {
        let node = &self.nodes[group as usize];
        let version = self.version.load(Acquire) & ((1 << VERSION_BITS) - 1);
        let kept = node.share.load(Relaxed);
        let share = if kept & ((1 << VERSION_BITS) - 1) == version {
            kept >> VERSION_BITS
        } else {
            let share = self.work_out_share(group);
            node.share.store(share << VERSION_BITS | version, Relaxed);
            share
        };
        let own = u64::from(own);
        let load = node.load.load(Relaxed).max(own).max(1);
        ((own * share + (load << PLACES >> 1)) / (load << PLACES)).clamp(1, u64::from(u32::MAX)) as u32
    }

    /// What the group weighs in the whole, times 2^[`PLACES`]: its weight, times the part of the whole that one unit of
    /// weight has inside of each group above. At most that of the heaviest group, which takes 33 bits.
    #[cold]
    fn work_out_share(&self, group: u32) -> u64 {
        let node = &self.nodes[group as usize];
        let mut weight = u64::from(node.weight.load(Relaxed));
        let mut share = weight << PLACES;
        let mut above = node.parent.load(Relaxed);
        while above != ROOT {
            let node = &self.nodes[above as usize];
            // A group that does not want to run is not in the load of the one above it.
            let load = node.load.load(Relaxed).max(weight).max(1);
            weight = u64::from(node.weight.load(Relaxed));
            share = share * weight / load;
            above = node.parent.load(Relaxed);
        }
        share
    }

    /// The task in `slot` wants to run, with `weight` in its group. May be told again, also with another weight.
    #[inline]
    pub fn wake(&self, slot: u32, weight: u32) {
        if self.group_of(slot) != ROOT {
            self.count_member(slot, |_| weight);
        }
    }

    /// The task in `slot` does not want to run, or is parked.
    #[inline]
    pub fn sleep(&self, slot: u32) {
        if self.group_of(slot) != ROOT {
            self.count_member(slot, |_| 0);
        }
    }

    /// The task in `slot`, which weighs `weight` in its group now, wants to run as much as before.
    pub fn set_task_weight(&self, slot: u32, weight: u32) {
        self.count_member(slot, |before| if before == 0 { 0 } else { weight });
    }

    fn count_member(&self, slot: u32, weight: impl Fn(u32) -> u32) {
        let (group, before, now) = self.members[slot as usize].count(weight);
        self.add_load(group, i64::from(now) - i64::from(before));
    }

    fn add_load(&self, group: u32, more: i64) {
        if more == 0 {
            return;
        }
        let node = &self.nodes[group as usize];
        let before = node.load.fetch_add(more as u64, AcqRel);
        if node.children.load(Relaxed) != 0 {
            self.version.fetch_add(1, Release);
        }
        if (before == 0) != (before.wrapping_add(more as u64) == 0) {
            self.count_again(group);
        }
    }

    /// Adds a group to the load of the one above if it has become active, and takes it out if it is no more. When several
    /// CPUs do so at once, the last one sees how it ends.
    fn count_again(&self, mut group: u32) {
        loop {
            let node = &self.nodes[group as usize];
            let parent = node.parent.load(Relaxed);
            // The root has no load: what is directly in it keeps its weight.
            if group == ROOT || parent == ROOT {
                return;
            }
            let mut counted = node.counted.lock();
            let due = if node.load.load(Acquire) == 0 { 0 } else { node.weight.load(Relaxed) };
            let more = i64::from(due) - i64::from(core::mem::replace(&mut *counted, due));
            if more == 0 {
                return;
            }
            let before = self.nodes[parent as usize].load.fetch_add(more as u64, AcqRel);
            drop(counted);
            self.version.fetch_add(1, Release);
            if (before == 0) == (before.wrapping_add(more as u64) == 0) {
                return;
            }
            group = parent;
        }
    }

    // ---- limits ----

    /// Whether the CPU time of the task in `slot` is limited.
    #[inline]
    pub fn is_limited(&self, slot: u32) -> bool {
        let group = self.group_of(slot);
        group != ROOT && self.nodes[group as usize].limiter.load(Relaxed) != ROOT
    }

    /// The groups that limit the task in `slot`, from the nearest up.
    fn limiters(&self, slot: u32) -> impl Iterator<Item = u32> {
        let limiter = |group: u32| match self.nodes[group as usize].limiter.load(Relaxed) {
            ROOT => None,
            limiter => Some(limiter),
        };
        core::iter::successors(limiter(self.group_of(slot)), move |group| {
            limiter(self.nodes[*group as usize].parent.load(Relaxed))
        })
    }

    /// The task in `slot` has used CPU time. The time is asked for only if that is limited, and nothing of it was used lately.
    #[inline]
    pub fn charge(&self, slot: u32, ran_ns: u64, now_ns: impl FnOnce() -> u64) -> Charge {
        if ran_ns == 0 || !self.is_limited(slot) {
            return Charge::default();
        }
        self.charge_limited(slot, ran_ns, now_ns)
    }

    fn charge_limited(&self, slot: u32, ran_ns: u64, now_ns: impl FnOnce() -> u64) -> Charge {
        let mut now_ns = Clock::NotAsked(now_ns);
        self.members[slot as usize].parked_ns.store(0, Relaxed);
        let mut charge = Charge::default();
        for group in self.limiters(slot) {
            let Spent { is_used_up, refill_at_ns } = self.nodes[group as usize].budget.spend(ran_ns, || now_ns.ask());
            charge.is_used_up |= is_used_up;
            charge.refill_at_ns = earlier(charge.refill_at_ns, refill_at_ns);
        }
        charge
    }

    /// How long the task in `slot` may run at a time; `None` if it has to be parked. `u64::MAX` without a limit. The time is
    /// asked for only if the task has been parked.
    #[inline]
    pub fn allowance_ns(&self, slot: u32, now_ns: impl FnOnce() -> u64) -> Option<u64> {
        if !self.is_limited(slot) {
            return Some(u64::MAX);
        }
        let mut allowance_ns = u64::MAX;
        for group in self.limiters(slot) {
            match self.nodes[group as usize].budget.allowance_ns() {
                Some(of_group_ns) => allowance_ns = allowance_ns.min(of_group_ns),
                None => return self.is_overdue(slot, now_ns).then_some(OVERDUE_TURN_NS),
            }
        }
        Some(allowance_ns)
    }

    /// Whether the task in `slot` has been parked for so long that it is to run although there is no time.
    fn is_overdue(&self, slot: u32, now_ns: impl FnOnce() -> u64) -> bool {
        let since_ns = self.members[slot as usize].parked_ns.load(Relaxed);
        since_ns != 0 && now_ns().saturating_sub(since_ns) >= OVERDUE_NS
    }

    /// Notes whether the task in `slot`, which waits for a CPU, may be parked: it has nothing of the kernel's that others wait for.
    pub fn note_at_user(&self, slot: u32, is_at_user: bool) {
        self.members[slot as usize].is_at_user.store(is_at_user, Relaxed);
    }

    /// What was noted last.
    pub fn is_at_user(&self, slot: u32) -> bool {
        self.members[slot as usize].is_at_user.load(Relaxed)
    }

    /// Parks the task in `slot` until there is CPU time for it; false if there is some now. Those that are `served`, because
    /// they have run since they were released, come after those that are not, and those behind them stay in order.
    ///
    /// The task must not be [waking](Self::wake): it counts for nothing while it is parked.
    pub fn park(&self, slot: u32, served: bool, now_ns: u64) -> bool {
        let mut parking = self.parking.lock();
        // Refills take this lock, too: either it is seen here that there is time, or the refill finds the task.
        let Some(group) = self.limiters(slot).find(|group| self.nodes[*group as usize].budget.is_throttled()) else {
            return false;
        };
        let since_ns = &self.members[slot as usize].parked_ns;
        if served || since_ns.load(Relaxed) == 0 {
            since_ns.store(now_ns.max(1), Relaxed);
        }
        parking.park(slot, group, served);
        true
    }

    /// The task in `slot` is not parked any more, if it was.
    pub fn unpark(&self, slot: u32) {
        self.parking.lock().take_out(slot);
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

    /// Whoever was parked for the time of `group` is released.
    fn let_go(&self, group: u32) {
        let mut parking = self.parking.lock();
        let budget = &self.nodes[group as usize].budget;
        budget.unthrottle();
        let released = parking.release(group);
        budget.set_crowd(released);
    }

    /// Releases tasks that were parked for the time of `group` and are overdue, no more than `left`. False if some stay.
    fn let_overdue_go(&self, group: u32, now_ns: u64, left: &mut u32) -> bool {
        let mut parking = self.parking.lock();
        while let Some(slot) = parking.first(group).filter(|slot| self.is_overdue(*slot, || now_ns)) {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            parking.release_one(slot);
        }
        true
    }

    /// The slot of a task that was parked and is not any more, in the order in which they are to have their turns. Its limits
    /// may keep it from running all the same: there can be several. When its group has no time left again, the rest stay.
    pub fn next_released(&self) -> Option<u32> {
        self.parking.lock().next_released(|group| self.nodes[group as usize].budget.is_throttled())
    }

    /// Whether [`next_released`](Self::next_released) may have another one.
    pub fn releases(&self) -> bool {
        self.parking.lock().releases()
    }

    /// How many tasks are parked, or released and not asked for.
    pub fn parked(&self) -> u32 {
        self.parking.lock().len()
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
