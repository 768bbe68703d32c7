//! What a task weighs in the whole: its own weight, and the shares of its groups.

use super::{Groups, PLACES, ROOT};
use crate::atomics::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// How many bits of a kept share count the changes.
const VERSION_BITS: u32 = 31;

impl Groups {
    /// What a policy is to be told of the weight of a task that weighs `own` in its group.
    #[inline]
    pub fn weight(&self, index: u32, own: u32) -> u32 {
        let group = self.group_of(index);
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

    /// The task with `index` wants to run, with `weight` in its group. May be told again, also with another weight.
    #[inline]
    pub fn wake(&self, index: u32, weight: u32) {
        if self.group_of(index) != ROOT {
            self.count_member(index, |_| weight);
        }
    }

    /// The task with `index` does not want to run, or is throttled.
    #[inline]
    pub fn sleep(&self, index: u32) {
        if self.group_of(index) != ROOT {
            self.count_member(index, |_| 0);
        }
    }

    /// The task with `index`, which weighs `weight` in its group now, wants to run as much as before.
    pub fn set_task_weight(&self, index: u32, weight: u32) {
        self.count_member(index, |before| if before == 0 { 0 } else { weight });
    }

    fn count_member(&self, index: u32, weight: impl Fn(u32) -> u32) {
        let (group, before, now) = self.members[index as usize].count(weight);
        self.add_load(group, i64::from(now) - i64::from(before));
    }

    pub(super) fn add_load(&self, group: u32, more: i64) {
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
    pub(super) fn count_again(&self, mut group: u32) {
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
}
