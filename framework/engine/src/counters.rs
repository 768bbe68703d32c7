//! Counters per CPU, so that counting does not make CPUs meet.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::order::Published;
use crate::pace::Pace;
use crate::seats::SEATS;
use crate::starved::{Crowd, Presence};
use crate::told::Told;

/// What one CPU has counted.
#[repr(align(64))]
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) picks: AtomicU64,
    pub(crate) idles: AtomicU64,
    pub(crate) migrations: AtomicU64,
    pub(crate) refusals: AtomicU64,
    pub(crate) surprises: AtomicU64,
    pub(crate) slowed: AtomicU64,
}

/// The sum over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Tasks picked.
    pub picks: u64,
    /// Searches for work that found none.
    pub idles: u64,
    /// Waiting tasks moved to another CPU.
    pub migrations: u64,
    /// Tokens handed back.
    pub refusals: u64,
    /// Transitions that are not in [`TRANSITIONS`](crate::TRANSITIONS).
    pub surprises: u64,
    /// Wishes beyond what a policy may have in a time, which came later or were counted against it.
    pub slowed: u64,
}

impl Counters {
    /// Adds one. Only one CPU writes a set of counters at a time, so no atomic addition is needed, and none lives to see it overflow.
    #[inline]
    pub(crate) fn count(counter: &AtomicU64) {
        counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
    }

    pub(crate) fn add_to(&self, totals: &mut Totals) {
        totals.picks += self.picks.load(Relaxed);
        totals.idles += self.idles.load(Relaxed);
        totals.migrations += self.migrations.load(Relaxed);
        totals.refusals += self.refusals.load(Relaxed);
        totals.surprises += self.surprises.load(Relaxed);
        totals.slowed += self.slowed.load(Relaxed);
    }
}

/// What the engine keeps of one CPU.
#[derive(Debug, Default)]
pub(crate) struct Cpu {
    /// What it has counted, for each policy.
    pub(crate) counters: [Counters; SEATS],
    pub(crate) told: Told,
    /// When each policy wants to be told that its timer went off; 0 for never. Only if there are several.
    pub(crate) due_ns: [AtomicU64; SEATS],
    /// What each policy had heard when it had nothing for this CPU and brought nothing: it need not be asked again.
    pub(crate) nothing: [AtomicU32; SEATS],
    /// The place in the order of the policy whose task runs; that of nobody if none does.
    pub(crate) rank: AtomicU32,
    /// How many ticks it is since policies had their turns.
    pub(crate) ticks: AtomicU32,
    /// How many ticks found a task of each policy running outside of the policy's turn: in the round under way in the lower half, and in
    /// the one before in the upper.
    pub(crate) ran: [AtomicU32; SEATS],
    /// When the task in a slot that runs has to give way because its group has no more CPU time; 0 for never.
    pub(crate) cut_ns: AtomicU64,
    /// That slot.
    pub(crate) cut_slot: AtomicU32,
    /// The place in the order of the policy that is asked first next.
    pub(crate) first: AtomicU32,
    /// The seats in the order in which their policies are asked here, and the place of each in it.
    pub(crate) order: Published,
    pub(crate) ranks: [AtomicU8; SEATS],
    /// The seats whose CPU it is, a bit each.
    pub(crate) owners: AtomicU8,
    /// What each policy has had of it, divided by its weight, and what the one that had least of those that run had. Only if they
    /// weigh something.
    pub(crate) had_ns: [AtomicU64; SEATS],
    pub(crate) clock_ns: AtomicU64,
    /// What each policy has asked for.
    pub(crate) pace: [Pace; SEATS],
    /// How many tasks wait for it.
    pub(crate) crowd: Crowd,
    /// The walks over all tasks in which it was away.
    pub(crate) presence: Presence,
    pub(crate) ticks_heard: AtomicU64,
    /// How much of a turn tasks beyond the table have saved up, and whether they have one.
    pub(crate) beyond_credit: AtomicU32,
    pub(crate) beyond_turn: AtomicBool,
}

impl Cpu {
    /// The place of a seat in the order in which policies are asked here.
    #[inline]
    pub(crate) fn rank_of(&self, seat: usize) -> u32 {
        self.ranks[seat % SEATS].load(Relaxed).into()
    }

    #[inline]
    pub(crate) fn owners(&self) -> u8 {
        self.owners.load(Relaxed)
    }

    /// How many ticks and how many looks for work there were.
    pub(crate) fn heard(&self) -> u64 {
        let looks = self.counters.iter().map(|seat| seat.picks.load(Relaxed).wrapping_add(seat.idles.load(Relaxed)));
        looks.fold(self.ticks_heard.load(Relaxed), u64::wrapping_add)
    }
}
