//! Tasks beyond the table: those for which it has no room. Policies do not know of them. The host keeps them in queues of its own and asks
//! for room again whenever one comes to wait; here is when they have a CPU.

use core::sync::atomic::Ordering::Relaxed;

use ekiden_host::Policy;
use ekiden_host::abi::{Event, EventKind, Status, init_flags, pick_flags};

use crate::engine::{Engine, Handling};
use crate::pick::NO_RANK;
use crate::turns::{ROUND_TICKS, TURN_TICKS};

/// How many of [`ROUND_TICKS`] ticks of a CPU go to the tasks beyond the table: their part of all tasks that want it. Neither they nor the
/// tasks of policies have less than [`TURN_TICKS`], which is what a policy has that is asked late.
fn ticks_of(beyond: u32, others: u32) -> u32 {
    let (beyond, others) = (u64::from(beyond), u64::from(others));
    let part = u64::from(ROUND_TICKS) * beyond / (beyond + others).max(1);
    (part as u32).clamp(TURN_TICKS, ROUND_TICKS - TURN_TICKS)
}

impl<P: Policy> Engine<P> {
    /// How many tasks there are that the table has no room for.
    pub fn beyond(&self) -> u32 {
        self.unasked.load(Relaxed) as u32
    }

    /// Whether there are any.
    #[inline]
    pub(crate) fn any_beyond(&self) -> bool {
        self.beyond() != 0
    }

    /// Whether there are any, or tasks that are owed a turn. It is looked at in each search for work.
    #[inline]
    pub(crate) fn any_unasked(&self) -> bool {
        self.unasked.load(Relaxed) != 0
    }

    /// There was room for a task, or not.
    pub(crate) fn note_beyond(&self, init: &Event, is_in: bool) {
        match (init.flags & init_flags::AGAIN != 0, is_in) {
            (true, true) => self.one_less(),
            (false, false) => _ = self.unasked.fetch_add(1, Relaxed),
            _ => {}
        }
    }

    fn one_less(&self) {
        // A host that says it too often is wrong, and not worth a panic.
        let _ = self.unasked.fetch_update(Relaxed, Relaxed, |tasks| (tasks as u32 != 0).then(|| tasks - 1));
    }

    /// Something happened to one of them.
    pub(crate) fn about_one_beyond(&self, handling: &mut Handling<'_>) {
        if handling.event.kind == EventKind::Tick as u32 {
            self.tick_beyond(handling);
        } else {
            self.one_less();
        }
    }

    /// If it is their turn on the CPU that looks for work, the host runs one of them instead of asking policies.
    #[cold]
    #[inline(never)]
    pub(crate) fn runs_beyond(&self, handling: &mut Handling<'_>) -> bool {
        let here = self.cpu(handling.event.cpu);
        let is_turn = here.beyond_turn.load(Relaxed) && handling.event.flags & pick_flags::POLICIES == 0;
        if is_turn {
            handling.outcome.status = Status::Beyond as i32;
            // No policy has the CPU, so none overtakes.
            here.rank.store(NO_RANK, Relaxed);
        }
        is_turn
    }

    /// Every tick is theirs, or the policies': the turns of either are spread evenly. Theirs end a slice of a policy, and their own slices
    /// end with every tick.
    pub(crate) fn tick_beyond(&self, handling: &mut Handling<'_>) {
        let (cpu, runs) = (handling.event.cpu, handling.event.task.is_none());
        let here = self.cpu(cpu);
        let waiting = handling.event.args[0].min(u32::MAX.into()) as u32;
        let beyond = waiting.saturating_add(runs.into());
        if beyond == 0 {
            return here.beyond_turn.store(false, Relaxed);
        }
        // Scans count the tasks that wait and the one that runs, whichever of them that is now.
        let others = here.demand.about(self.scans.newest.load(Relaxed)).max((!runs).into());
        let credit = here.beyond_credit.load(Relaxed) + ticks_of(beyond, others);
        let is_turn = credit >= ROUND_TICKS;
        here.beyond_credit.store(if is_turn { credit - ROUND_TICKS } else { credit }, Relaxed);
        here.beyond_turn.store(is_turn, Relaxed);
        if is_turn && !runs {
            handling.outcome.kicks.add(cpu);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_that_of_the_number_and_never_nothing() {
        for (beyond, others, ticks) in [(1, 1, 12), (7, 33, 4), (1, 10_000, 3), (10_000, 1, 22), (1, 0, 22)] {
            assert_eq!(ticks_of(beyond, others), ticks, "{beyond} to {others}");
        }
        assert_eq!(ticks_of(u32::MAX, u32::MAX), 12);
    }
}
