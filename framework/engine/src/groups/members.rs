//! Membership: which task is in which group.

use super::tree::Tree;
use super::{Groups, ROOT};
use crate::atomics::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// State of a task in one word, because it may be released on one CPU while it moves on another: its group, and what it
/// has added to the load of that, which is 0 if it does not want to run or is in the root. Besides, since when it has been
/// throttled without having run in between, 0 if it is not, or has; and whether it waits on its way to user mode, where it may be throttled.
#[derive(Debug, Default)]
pub(super) struct Member {
    pub(super) group: AtomicU64,
    pub(super) throttled_ns: AtomicU64,
    pub(super) is_at_user: AtomicBool,
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
    pub(super) fn count(&self, counted: impl Fn(u32) -> u32) -> (u32, u32, u32) {
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

impl Groups {
    /// The task with `index` is from now on in the group that the host calls `name`. False if there is none such: the caller asks
    /// again with the group above that. `counted` is its weight if it wants to run, and else 0. A task that was throttled is not any more.
    #[must_use]
    pub fn enter(&self, index: u32, name: u64, counted: u32) -> bool {
        let tree = &mut *self.tree.lock();
        let Some(group) = tree.find(name) else { return false };
        self.unthrottle(index);
        self.change_group(tree, index, group, counted);
        true
    }

    /// The task with `index` is no more.
    pub fn leave(&self, index: u32) {
        if self.group_of(index) != ROOT {
            self.change_group(&mut self.tree.lock(), index, ROOT, 0);
        }
    }

    fn change_group(&self, tree: &mut Tree, index: u32, group: u32, counted: u32) {
        let counted = if group == ROOT { 0 } else { counted };
        let (old, before) = self.members[index as usize].enter(group, counted);
        tree.entries[group as usize].members += u32::from(group != ROOT);
        tree.entries[old as usize].members -= u32::from(old != ROOT);
        self.members[index as usize].throttled_ns.store(0, Relaxed);
        self.members[index as usize].is_at_user.store(false, Relaxed);
        self.add_load(old, -i64::from(before));
        self.add_load(group, i64::from(counted));
        self.free_if_unused(tree, old);
    }

    /// The group of the task with `index`, with what it weighs among those beside it.
    pub fn group_of_task(&self, index: u32) -> ekiden::Group {
        match self.group_of(index) {
            ROOT => ekiden::Group::ROOT,
            id => ekiden::Group { id, weight: self.nodes[id as usize].weight.load(Relaxed) },
        }
    }

    #[inline]
    pub(super) fn group_of(&self, index: u32) -> u32 {
        self.members[index as usize].group()
    }
}
