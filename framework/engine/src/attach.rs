//! Tasks that go from one policy to another, and versions that take over from each other.

use core::sync::atomic::Ordering::Relaxed;

use ekiden::{Call, TaskId};
use ekiden_host::Policy;

use crate::conditions::SEVERAL;
use crate::engine::{Engine, Handling};
use crate::state::{Attachment, Phase, State};
use crate::table::{How, TaskEntry};

impl<P: Policy> Engine<P> {
    /// Whether the policy of the task has heard of it.
    #[inline]
    pub(crate) fn is_attached<const CASE: u8>(&self, state: State) -> bool {
        state.attachment() == self.policy_slot_of::<CASE>(state).attachment()
    }

    /// Whether a task for which no policy was chosen is attached where it is not to stay. Its policy is not the default one any more.
    pub(crate) fn is_to_leave(&self, entry: &TaskEntry, state: State) -> bool {
        !entry.is_chosen()
            && state.policy_slot() != self.default_policy_slot()
            && entry.choice() != self.default_policy_slot()
    }

    /// Finds the task a policy that has heard of it; a panic there is followed by the next policy.
    #[cold]
    pub(crate) fn attach(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry) {
        if self.is_to_leave(entry, entry.state()) {
            entry.choose_for_all(task, self.default_policy_slot());
        }
        while !self.is_attached::<SEVERAL>(entry.state()) && self.introduce_one(handling, task, entry, entry.state()) {}
    }

    /// The policy hears of a task that is not attached to it, unless the state has changed since it was seen. False if there is no policy left.
    pub(crate) fn introduce_one(
        &self,
        handling: &mut Handling<'_>,
        task: TaskId,
        entry: &TaskEntry,
        seen: State,
    ) -> bool {
        if self.is_attached::<SEVERAL>(seen) {
            return true;
        }
        let mut policy_slot = &self.policy_slots[entry.choice()];
        if !policy_slot.is_taken() {
            policy_slot = &self.policy_slots[self.default_policy_slot()];
            entry.choose_for_all(task, policy_slot.index);
        }
        let attachment = policy_slot.attachment();
        if attachment == Attachment::NOWHERE {
            return false;
        }
        // Events of one task do not overlap, but one may come while the task is being introduced: the faster one does it.
        let is_waiting = seen.phase().is_waiting();
        let state = match seen.phase() {
            phase if phase.is_waiting() => seen.issue(phase, seen.cpu()),
            // It stays where it is, and is new to the policy when it is released.
            phase if phase.is_throttled() => seen.throttled(phase, seen.cpu(), true),
            _ => seen.in_phase(Phase::New),
        }
        .at(attachment);
        if entry.try_state(seen, state) {
            self.policy_slots[seen.policy_slot()].tasks.fetch_sub(1, Relaxed);
            policy_slot.tasks.fetch_add(1, Relaxed);
            if is_waiting {
                if self.groups.is_active() {
                    self.wants_to_run(task, entry);
                }
                self.hand_token(handling, Call::TaskNew, task, entry, state, 0);
            }
        }
        true
    }

    /// The task waits from now on, and another policy was chosen for it since it last did. It leaves the one that it
    /// has, and is new to the other.
    #[cold]
    pub(crate) fn change_policy(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry) {
        let seen = entry.state();
        let (old, new) = (&self.policy_slots[seen.policy_slot()], &self.policy_slots[entry.choice()]);
        let attachment = new.attachment();
        if attachment == Attachment::NOWHERE {
            entry.choose_for_all(task, old.index);
            return;
        }
        // Its token, if there is one, is worthless from here on.
        let state = if seen.phase().is_throttled() {
            seen.throttled(seen.phase(), seen.cpu(), true)
        } else {
            seen.issue(Phase::New, seen.cpu())
        };
        // One that is throttled may be released meanwhile.
        if !entry.try_state(seen, state.at(attachment)) {
            return;
        }
        old.tasks.fetch_sub(1, Relaxed);
        new.tasks.fetch_add(1, Relaxed);
        if old.is_taken() && seen.phase() != Phase::New && !seen.is_unheard() {
            self.take_back(handling, old, task, entry);
        }
    }

    /// A new task gets its policy: that of its parent if children inherit it.
    pub(crate) fn first_choice(&self, handling: &Handling<'_>, task: TaskId, entry: &TaskEntry) {
        let parent = handling.event.task;
        let inherited = self.tasks.get(parent).and_then(TaskEntry::for_children);
        let inherited = inherited.filter(|(policy_slot, _)| self.policy_slots[*policy_slot].is_taken());
        self.first_params(task, inherited.map(|_| parent));
        let (policy_slot, how) = inherited.unwrap_or_else(|| (self.default_policy_slot(), How::NOT));
        // The task is not known outside yet.
        let _ = entry.choose(task, policy_slot, how, |_| true);
        let attachment = self.policy_slots[policy_slot].attachment();
        let attachment =
            if attachment == Attachment::NOWHERE { Attachment::in_policy_slot(policy_slot) } else { attachment };
        entry.set_state(entry.state().at(attachment));
        self.policy_slots[policy_slot].tasks.fetch_add(1, Relaxed);
    }

    pub(crate) fn leaves(&self, entry: &TaskEntry) {
        self.policy_slots[entry.state().policy_slot()].tasks.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use crate::policy_slots::NotChosen;
    use crate::table::{How, TaskTable};

    /// The caller has found the entry before the task died, and the newest entry that is free is the next one in use.
    #[test]
    fn a_choice_for_a_task_that_has_died_does_not_fall_to_the_next_one_in_its_slot() {
        let table = TaskTable::new(2);
        let old = table.insert(1, 1).unwrap();
        let entry = table.get(old).unwrap();
        assert!(table.remove(old));
        table.free(old.slot);
        let new = table.insert(2, 2).unwrap();
        assert_eq!(new.slot, old.slot);
        let chosen = || (entry.choice(), entry.is_chosen(), entry.for_children());
        let before = chosen();
        let result = entry.choose(old, 1, How::CHOSEN.with(How::BY_ROOT, true), |_| true);
        assert_eq!((result, chosen()), (Err(NotChosen::NoTask), before));
        assert_eq!(entry.choose(new, 1, How::CHOSEN, |_| true), Ok(()));
    }
}
