//! The tree of groups: which there are, which is in which, and what their weights and limits are.

use alloc::vec::Vec;

use super::{DEFAULT_WEIGHT, Groups, IDLE_WEIGHT, Limit, ROOT, USUAL};
use crate::atomics::Ordering::{Relaxed, Release};

/// The groups as they come and go.
#[derive(Debug)]
pub(super) struct Tree {
    /// The host's names, in order, and the group that each stands for.
    pub(super) names: Vec<(u64, u32)>,
    pub(super) free: Vec<u32>,
    pub(super) entries: Vec<Entry>,
    /// No group from here on was ever used.
    pub(super) untouched: u32,
    /// Counts passes of [`Groups::find_limiters`].
    pub(super) pass: u32,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    pub(super) members: u32,
    pub(super) children: u32,
    /// The highest group on the way up in which an ordinary user may make groups.
    pub(super) delegation: u32,
    /// How many groups are somewhere in this one, if it is that.
    pub(super) inside: u32,
    /// As control groups count.
    pub(super) weight: u32,
    pub(super) is_idle: bool,
    /// The host has destroyed it. It stays until its last task is gone.
    pub(super) is_gone: bool,
    /// The pass in which its nearest limit was found.
    pub(super) pass: u32,
}

impl Tree {
    pub(super) fn find(&self, name: u64) -> Option<u32> {
        self.names.binary_search_by_key(&name, |(name, _)| *name).ok().map(|index| self.names[index].1)
    }
}

impl Groups {
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

    /// Frees groups that the host has destroyed and that have no tasks, from `group` up.
    pub(super) fn free_if_unused(&self, tree: &mut Tree, mut group: u32) {
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
    /// tasks that were throttled for the old one are released: see [`next_released`](Self::next_released).
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
}
