//! Tasks that go from one policy to another, and versions that take over from each other.

use core::sync::atomic::Ordering::Relaxed;

use ekiden::{Call, TaskId};
use ekiden_host::Policy;

use crate::engine::{Engine, Handling};
use crate::state::{Home, Phase, State};
use crate::table::{How, Slot};

impl<P: Policy> Engine<P> {
    /// Whether the policy of the task has heard of it.
    #[inline]
    pub(crate) fn is_home<const LONE: bool>(&self, state: State) -> bool {
        state.home() == self.seat_of::<LONE>(state).home()
    }

    /// Whether a task for which no policy was chosen is at home where it is not to stay. Its policy is not the default one any more.
    pub(crate) fn is_to_leave(&self, slot: &Slot, state: State) -> bool {
        !slot.is_chosen() && state.seat() != self.default_seat() && slot.choice() != self.default_seat()
    }

    /// Finds the task a policy that has heard of it; a panic there is followed by the next policy.
    #[cold]
    pub(crate) fn settle(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) {
        if self.is_to_leave(slot, slot.state()) {
            slot.choose_for_all(task, self.default_seat());
        }
        while !self.is_home::<false>(slot.state()) && self.meet(handling, task, slot) {}
    }

    /// The policy hears of a task that is a stranger to it. False if there is no policy left.
    pub(crate) fn meet(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) -> bool {
        let seen = slot.state();
        if self.is_home::<false>(seen) {
            return true;
        }
        let mut seat = &self.seats[slot.choice()];
        if !seat.is_taken() {
            seat = &self.seats[self.default_seat()];
            slot.choose_for_all(task, seat.index);
        }
        let home = seat.home();
        if home == Home::NOWHERE {
            return false;
        }
        // Events of one task do not overlap, but one may come while the task is being introduced: the faster one does it.
        let is_waiting = seen.phase().is_waiting();
        let state = match seen.phase() {
            phase if phase.is_waiting() => seen.issue(phase, seen.cpu()),
            // It stays where it is, and is new to the policy when it is released.
            phase if phase.is_parked() => seen.parked(phase, seen.cpu(), true),
            _ => seen.in_phase(Phase::New),
        }
        .at(home);
        if slot.try_state(seen, state) {
            self.seats[seen.seat()].tasks.fetch_sub(1, Relaxed);
            seat.tasks.fetch_add(1, Relaxed);
            if is_waiting {
                if self.groups.is_active() {
                    self.wants_to_run(task, slot);
                }
                self.hand_token(handling, Call::TaskNew, task, slot, state, 0);
            }
        }
        true
    }

    /// The task waits from now on, and another policy was chosen for it since it last did. It leaves the one that it
    /// has, and is new to the other.
    #[cold]
    pub(crate) fn change_policy(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) {
        let seen = slot.state();
        let (old, new) = (&self.seats[seen.seat()], &self.seats[slot.choice()]);
        let home = new.home();
        if home == Home::NOWHERE {
            slot.choose_for_all(task, old.index);
            return;
        }
        // Its token, if there is one, is worthless from here on.
        let state = if seen.phase().is_parked() {
            seen.parked(seen.phase(), seen.cpu(), true)
        } else {
            seen.issue(Phase::New, seen.cpu())
        };
        // One that is parked may be released meanwhile.
        if !slot.try_state(seen, state.at(home)) {
            return;
        }
        old.tasks.fetch_sub(1, Relaxed);
        new.tasks.fetch_add(1, Relaxed);
        if old.is_taken() && seen.phase() != Phase::New && !seen.is_unheard() {
            self.take_back(handling, old, task, slot);
        }
    }

    /// A new task gets its policy: that of its parent if children inherit it.
    pub(crate) fn first_choice(&self, handling: &Handling<'_>, task: TaskId, slot: &Slot) {
        let parent = handling.event.task;
        let inherited = self.tasks.get(parent).and_then(Slot::for_children);
        let inherited = inherited.filter(|(seat, _)| self.seats[*seat].is_taken());
        self.first_params(task, inherited.map(|_| parent));
        let (seat, how) = inherited.unwrap_or_else(|| (self.default_seat(), How::NOT));
        // The task is not known outside yet.
        let _ = slot.choose(task, seat, how, |_| true);
        let home = self.seats[seat].home();
        let home = if home == Home::NOWHERE { Home::in_seat(seat) } else { home };
        slot.set_state(slot.state().at(home));
        self.seats[seat].tasks.fetch_add(1, Relaxed);
    }

    pub(crate) fn leaves(&self, slot: &Slot) {
        self.seats[slot.state().seat()].tasks.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use crate::seats::NotChosen;
    use crate::table::{How, TaskTable};

    /// The caller has found the slot before the task died, and the newest slot that is free is the next one in use.
    #[test]
    fn a_choice_for_a_task_that_has_died_does_not_fall_to_the_next_one_in_its_slot() {
        let table = TaskTable::new(2);
        let old = table.insert(1, 1).unwrap();
        let slot = table.get(old).unwrap();
        assert!(table.remove(old));
        table.free(old.slot);
        let new = table.insert(2, 2).unwrap();
        assert_eq!(new.slot, old.slot);
        let chosen = || (slot.choice(), slot.is_chosen(), slot.for_children());
        let before = chosen();
        let result = slot.choose(old, 1, How::CHOSEN.with(How::BY_ROOT, true), |_| true);
        assert_eq!((result, chosen()), (Err(NotChosen::NoTask), before));
        assert_eq!(slot.choose(new, 1, How::CHOSEN, |_| true), Ok(()));
    }
}
