//! Counters per CPU, so that counting does not make CPUs meet.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use ekiden::CpuId;
use ekiden_host::Policy;

use crate::conditions::SEVERAL;
use crate::due::Due;
use crate::engine::Engine;
use crate::idle_notifications::IdleKnown;
use crate::order::Published;
use crate::pace::Pace;
use crate::policy_slots::{POLICY_SLOTS, PolicySlot};
use crate::starved::{Demand, Presence};

/// What one CPU has counted.
#[repr(align(64))]
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) picks: AtomicU64,
    pub(crate) idles: AtomicU64,
    pub(crate) migrations: AtomicU64,
    pub(crate) refusals: AtomicU64,
    pub(crate) unexpected_transitions: AtomicU64,
    pub(crate) slowed: AtomicU64,
    pub(crate) turns: AtomicU64,
    pub(crate) ticks: AtomicU64,
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
    pub unexpected_transitions: u64,
    /// Wishes beyond what a policy may have in a time, which came later or were counted against it.
    pub slowed: u64,
    /// Turns that tasks had without their policy, because their fair share was a longer wait than the kernel bears.
    pub turns: u64,
    /// Ticks that found one of its tasks running: which part of the time on CPUs it has.
    pub ticks: u64,
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
        totals.unexpected_transitions += self.unexpected_transitions.load(Relaxed);
        totals.slowed += self.slowed.load(Relaxed);
        totals.turns += self.turns.load(Relaxed);
        totals.ticks += self.ticks.load(Relaxed);
    }
}

/// What the engine keeps of one CPU.
#[derive(Debug, Default)]
pub(crate) struct Cpu {
    /// What it has counted, for each policy.
    pub(crate) counters: [Counters; POLICY_SLOTS],
    pub(crate) idle_known: IdleKnown,
    /// When each policy wants to be told that its timer went off; 0 for never. Only if there are several.
    pub(crate) due_ns: [AtomicU64; POLICY_SLOTS],
    /// What each policy had heard when it had nothing for this CPU and brought nothing: it need not be asked again.
    pub(crate) nothing: [AtomicU32; POLICY_SLOTS],
    /// The place in the order of the policy whose task runs; `NO_RANK` if none does.
    pub(crate) rank: AtomicU32,
    /// How many ticks it is since policies had their turns.
    pub(crate) ticks: AtomicU32,
    /// How many ticks found a task of each policy running outside of the policy's turn: in the round under way in the lower half, and in
    /// the one before in the upper.
    pub(crate) ran: [AtomicU32; POLICY_SLOTS],
    /// When the task in an entry that runs has to give way because its group has no more CPU time; 0 for never.
    pub(crate) cut_ns: AtomicU64,
    /// The index of that entry.
    pub(crate) cut_index: AtomicU32,
    /// The place in the order of the policy that is asked first next.
    pub(crate) first: AtomicU32,
    /// The policy slots in the order in which their policies are asked here, and the place of each in it.
    pub(crate) order: Published,
    pub(crate) ranks: [AtomicU8; POLICY_SLOTS],
    /// The policy slots whose CPU it is, a bit each.
    pub(crate) owners: AtomicU8,
    /// What each policy has had of it, divided by its weight, and what the one that had least of those that run had. Only if they
    /// weigh something.
    pub(crate) had_ns: [AtomicU64; POLICY_SLOTS],
    pub(crate) clock_ns: AtomicU64,
    /// What each policy has asked for.
    pub(crate) pace: [Pace; POLICY_SLOTS],
    /// How many tasks wait for it.
    pub(crate) demand: Demand,
    /// The scans over all tasks in which it was away.
    pub(crate) presence: Presence,
    /// Ticks that found a task that the table has no room for.
    pub(crate) ticks_beyond: AtomicU64,
    /// How much of a turn tasks beyond the table have saved up, and whether they have one.
    pub(crate) beyond_credit: AtomicU32,
    pub(crate) beyond_turn: AtomicBool,
    /// The tasks that it owes a turn.
    pub(crate) due: Due,
}

impl Cpu {
    /// The place of a policy slot in the order in which policies are asked here.
    #[inline]
    pub(crate) fn rank_of(&self, policy_slot: usize) -> u32 {
        self.ranks[policy_slot % POLICY_SLOTS].load(Relaxed).into()
    }

    #[inline]
    pub(crate) fn owners(&self) -> u8 {
        self.owners.load(Relaxed)
    }

    /// How many ticks and how many looks for work there were.
    pub(crate) fn heard(&self) -> u64 {
        let of_policies = self.counters.iter().flat_map(|counters| [&counters.picks, &counters.idles, &counters.ticks]);
        of_policies.fold(self.ticks_beyond.load(Relaxed), |heard, counter| heard.wrapping_add(counter.load(Relaxed)))
    }
}

impl<P: Policy> Engine<P> {
    #[inline]
    pub(crate) fn cpu(&self, cpu: CpuId) -> &Cpu {
        // A host that names a CPU beyond the machine is wrong, and not worth a panic.
        self.cpus.get(cpu as usize).unwrap_or(&self.cpus[0])
    }

    #[inline]
    pub(crate) fn counters(&self, cpu: CpuId, policy_slot: &PolicySlot<P>) -> &Counters {
        self.counters_here::<SEVERAL>(cpu, policy_slot)
    }

    #[inline]
    pub(crate) fn counters_here<const CASE: u8>(&self, cpu: CpuId, policy_slot: &PolicySlot<P>) -> &Counters {
        &self.cpu(cpu).counters[if CASE != SEVERAL { 0 } else { policy_slot.index % POLICY_SLOTS }]
    }
}
