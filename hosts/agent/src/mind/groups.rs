//! Control groups: what the engine hears of the table that BPF keeps of them, and what their limits mean for decisions.

use std::sync::atomic::Ordering::{Relaxed, Release};

use ekiden::TaskId;
use ekiden_host::abi::{Event, EventKind, Status};

use crate::host::now_ns;
use crate::wire::{GROUPS_MOST, SeenGroup};

use super::Mind;

/// As control groups count.
const WEIGHT: u32 = 100;

/// The root has this slot.
const ROOT: u32 = 0;

/// What BPF gives a task where nothing is said.
const SLICE_DEFAULT_NS: u64 = 20_000_000;

/// A slice that ends at the next tick.
const UP_TO_THE_TICK_NS: u64 = 1;

/// What the engine knows of control groups, by their slots in the table.
#[derive(Debug)]
pub(super) struct Groups {
    known: Vec<SeenGroup>,
    limits: u32,
}

/// A change of the groups that the engine was just told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Nothing that anything else depends on.
    None,
    /// A group came, in which there is no task yet.
    Came,
    /// A weight.
    Weight,
    /// A limit: tasks of the group, and of those in it, may have to give way.
    Limit,
}

impl Groups {
    pub(super) fn new() -> Self {
        Self { known: vec![SeenGroup::default(); GROUPS_MOST as usize], limits: 0 }
    }

    /// The slot of a group, and of those that it is in, from one up to the root.
    fn from(&self, slot: u32) -> impl Iterator<Item = u32> {
        let next = |slot: &u32| (*slot != ROOT).then(|| self.known[*slot as usize].parent);
        // What stands in the table comes from different moments.
        std::iter::successors(Some(slot), next).take(self.known.len())
    }

    /// Whether the time of tasks in the group is limited, by itself or by one that it is in.
    fn is_limited(&self, slot: u32) -> bool {
        self.from(slot).any(|slot| self.known[slot as usize].period_us != 0)
    }

    /// Makes the engine know of a group what the table says. `tell` gives it an event, and says whether it knows the group that this names.
    fn look(
        &mut self,
        slot: u32,
        seen: SeenGroup,
        mut tell: impl FnMut(EventKind, u64, u64, [u64; 2]) -> bool,
    ) -> Change {
        let before = self.known[slot as usize];
        let mut known = before;
        if before.id != seen.id {
            if before.id != 0 {
                tell(EventKind::GroupDestroy, before.id, 0, [0; 2]);
            }
            known = SeenGroup { weight: WEIGHT, ..SeenGroup::default() };
            if seen.id != 0 && slot == ROOT {
                tell(EventKind::GroupCreate, seen.id, 0, [0; 2]);
            } else if seen.id != 0 {
                let mut above = self.from(seen.parent).map(|slot| self.known[slot as usize].id).filter(|id| *id != 0);
                above.any(|parent| tell(EventKind::GroupCreate, seen.id, parent, [seen.is_delegated.into(), 0]));
            }
        }
        if seen.id != 0 && slot != ROOT {
            if known.weight != seen.weight {
                tell(EventKind::GroupWeight, seen.id, seen.weight.into(), [0; 2]);
            }
            if known.is_idle != seen.is_idle {
                tell(EventKind::GroupIdle, seen.id, seen.is_idle.into(), [0; 2]);
            }
            if limit_of(&known) != limit_of(&seen) {
                let [quota_ns, period_ns, burst_ns] = limit_of(&seen);
                tell(EventKind::GroupLimit, seen.id, quota_ns, [period_ns, burst_ns]);
            }
        }
        self.known[slot as usize] = if seen.id == 0 { SeenGroup::default() } else { seen };
        let has_limit = |group: &SeenGroup| u32::from(group.period_us != 0);
        let after = &self.known[slot as usize];
        self.limits = self.limits + has_limit(after) - has_limit(&before);
        if limit_of(&before) != limit_of(after) {
            Change::Limit
        } else if before.id != after.id {
            Change::Came
        } else if before.weight != after.weight || before.is_idle != after.is_idle {
            Change::Weight
        } else {
            Change::None
        }
    }
}

/// Quota, period and burst, in nanoseconds; zeros for no limit.
fn limit_of(group: &SeenGroup) -> [u64; 3] {
    match group.period_us {
        0 => [0; 3],
        _ => [group.quota_us, group.period_us, group.burst_us].map(|us| us.saturating_mul(1_000)),
    }
}

impl Mind {
    /// Something about a control group is different.
    pub(super) fn look_at_group(&mut self, slot: u32, cpu: u32) {
        if slot >= GROUPS_MOST {
            return;
        }
        let seen = self.shared.group(slot);
        let mut groups = std::mem::replace(&mut self.groups, Groups { known: Vec::new(), limits: 0 });
        let change = groups.look(slot, seen, |kind, name, value, [flags, runtime_ns]| {
            let event = Event { args: [name, value], flags, runtime_ns, ..Event::new(kind, cpu) };
            self.deliver(&event, &[]).status != Status::Invalid as i32
        });
        self.groups = groups;
        match change {
            Change::None => {}
            Change::Weight => self.weights_changed(),
            Change::Came => self.shared.set_limited(slot, self.groups.is_limited(slot)),
            Change::Limit => self.limits_changed(),
        }
    }

    /// BPF hears which groups have limits, and every task gives way once: what it was decided to run for may be too long.
    fn limits_changed(&mut self) {
        for slot in 1..=self.shared.groups() {
            self.shared.set_limited(slot, self.groups.is_limited(slot));
        }
        self.shared.control().limits.store(self.groups.limits, Release);
        (0..self.nr_cpus).for_each(|cpu| self.kick_one(cpu));
    }

    /// Policies are told another weight of the group of some tasks from now on.
    fn weights_changed(&self) {
        for known in self.tasks.iter().filter(|known| !known.id.is_none()) {
            self.questions.set_group(known.id, self.engine.group_of(known.id));
        }
    }

    /// A task is in a group, or counts for the nearest one above it that the engine has room for.
    pub(super) fn joins(&mut self, event: Event, group: u32) {
        self.tell_group_of(event, group);
        self.questions.set_group(event.task, self.engine.group_of(event.task));
    }

    fn tell_group_of(&mut self, mut event: Event, group: u32) {
        let mut slot = group.min(GROUPS_MOST - 1);
        // What stands in the table comes from different moments: two groups may be in each other there.
        for _ in 0..GROUPS_MOST {
            let known = self.groups.known[slot as usize];
            event.args[0] = known.id;
            if known.id != 0 && self.deliver(&event, &[]).status != Status::Invalid as i32 {
                return;
            }
            if slot == ROOT {
                return;
            }
            slot = known.parent;
        }
    }

    /// Messages were lost. Groups are looked at from the root down, so that each is known before those in it.
    pub(super) fn take_stock_of_groups(&mut self) {
        let level = |slot: u32| match self.shared.group(slot) {
            SeenGroup { id: 0, .. } => 0,
            SeenGroup { level, .. } => level + 1,
        };
        let mut slots: Vec<(u32, u32)> = (0..=self.shared.groups()).map(|slot| (level(slot), slot)).collect();
        slots.sort_unstable();
        for (_, slot) in slots {
            self.look_at_group(slot, 0);
            self.shared.beats();
        }
    }

    /// How long a task with a limit is to run where it was to run for `slice_ns`, 0 for the usual time; `None` without a limit. Without time
    /// left, it runs until a tick finds it in user mode.
    pub(super) fn limited_slice_ns(&self, task: TaskId, slice_ns: u64) -> Option<u64> {
        let groups = self.engine.groups();
        if self.groups.limits == 0 || !groups.is_limited(task.slot) {
            return None;
        }
        let wanted_ns = if slice_ns == 0 { SLICE_DEFAULT_NS } else { slice_ns };
        Some(groups.allowance_ns(task.slot, now_ns).map_or(UP_TO_THE_TICK_NS, |most_ns| most_ns.min(wanted_ns)))
    }

    /// BPF hears how many tasks are held back: where no others wait, nothing does.
    pub(super) fn say_held(&self) {
        let held = &self.shared.control().held;
        let throttled = if self.groups.limits == 0 { 0 } else { self.engine.groups().throttled() };
        if held.load(Relaxed) != throttled {
            held.store(throttled, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT_ID: u64 = 1;

    fn group(id: u64, parent: u32) -> SeenGroup {
        SeenGroup { id, parent, weight: WEIGHT, ..SeenGroup::default() }
    }

    /// Looks at a slot, and says what the engine was told, and what is different; the engine has no room for the group `unknown`.
    fn look(groups: &mut Groups, slot: u32, seen: SeenGroup, unknown: u64) -> (Vec<String>, Change) {
        let mut told = Vec::new();
        let change = groups.look(slot, seen, |kind, name, value, [flags, runtime_ns]| {
            told.push(format!("{kind:?} {name} {value} {flags} {runtime_ns}"));
            kind != EventKind::GroupCreate || value != unknown
        });
        (told, change)
    }

    fn with_root() -> Groups {
        let mut groups = Groups::new();
        assert_eq!(look(&mut groups, ROOT, group(ROOT_ID, ROOT), 0).0, ["GroupCreate 1 0 0 0"]);
        groups
    }

    #[test]
    fn the_engine_hears_of_a_group_what_is_different() {
        let mut groups = with_root();
        let seen = SeenGroup { is_delegated: true, weight: 300, ..group(7, ROOT) };
        let told = look(&mut groups, 3, seen, 0);
        assert_eq!(told, (vec!["GroupCreate 7 1 1 0".into(), "GroupWeight 7 300 0 0".into()], Change::Came));
        assert_eq!(look(&mut groups, 3, seen, 0), (vec![], Change::None));
        let seen = SeenGroup { is_idle: true, ..seen };
        assert_eq!(look(&mut groups, 3, seen, 0), (vec!["GroupIdle 7 1 0 0".into()], Change::Weight));
        let limited = SeenGroup { quota_us: 50, period_us: 100, burst_us: 5, ..seen };
        let told = look(&mut groups, 3, limited, 0);
        assert_eq!(told, (vec!["GroupLimit 7 50000 100000 5000".into()], Change::Limit));
        assert_eq!((groups.limits, groups.is_limited(3)), (1, true));
        // Without a quota, period and burst are ignored.
        let lifted = SeenGroup { quota_us: u64::MAX, period_us: 0, ..limited };
        assert_eq!(look(&mut groups, 3, lifted, 0), (vec!["GroupLimit 7 0 0 0".into()], Change::Limit));
        assert_eq!((groups.limits, groups.is_limited(3)), (0, false));
        assert_eq!(look(&mut groups, 3, SeenGroup { quota_us: 3, ..lifted }, 0), (vec![], Change::None));
    }

    #[test]
    fn the_limit_of_a_group_is_that_of_all_groups_in_it() {
        let mut groups = with_root();
        look(&mut groups, 5, group(8, ROOT), 0);
        look(&mut groups, 2, group(9, 5), 0);
        look(&mut groups, 3, group(10, ROOT), 0);
        look(&mut groups, 5, SeenGroup { quota_us: 50, period_us: 100, ..group(8, ROOT) }, 0);
        assert_eq!([5, 2, 3, ROOT].map(|slot| groups.is_limited(slot)), [true, true, false, false]);
    }

    #[test]
    fn a_group_counts_as_part_of_the_nearest_one_that_there_is_room_for() {
        let mut groups = with_root();
        look(&mut groups, 1, group(8, ROOT), 0);
        let (told, _) = look(&mut groups, 2, group(9, 1), 8);
        assert_eq!(told, ["GroupCreate 9 8 0 0", "GroupCreate 9 1 0 0"]);
    }

    #[test]
    fn a_slot_that_has_another_group_by_now_is_that_group_s_alone() {
        let mut groups = with_root();
        look(&mut groups, 1, SeenGroup { quota_us: 50, period_us: 100, ..group(8, ROOT) }, 0);
        let told = look(&mut groups, 1, group(9, ROOT), 0);
        assert_eq!(told, (vec!["GroupDestroy 8 0 0 0".into(), "GroupCreate 9 1 0 0".into()], Change::Limit));
        assert_eq!((groups.limits, groups.is_limited(1)), (0, false));
        let told = look(&mut groups, 1, SeenGroup::default(), 0);
        assert_eq!(told, (vec!["GroupDestroy 9 0 0 0".into()], Change::Came));
        assert_eq!(look(&mut groups, 1, SeenGroup::default(), 0), (vec![], Change::None));
    }
}
