//! Which policy a CPU asks, where several run: in their order, by their weights, in turns.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use ekiden::{Call, CpuId};
use ekiden_host::Policy;

use crate::counters::Cpu;
use crate::engine::{Engine, Handling};
use crate::idle_notifications::PolicySlots;
use crate::order::Order;
use crate::pick::{Found, NO_RANK};
use crate::policy_slots::{POLICY_SLOTS, PolicySlot};
use crate::table::TaskEntry;

/// The rotation period, in ticks: a tenth of a second where there are 250 in a second. The first policy in the order leaves some of it to each of the
/// others if they would have had less: the kernel does the same with its real-time class. Eight policies have room in it.
pub(crate) const ROUND_TICKS: u32 = 25;
pub(crate) const TURN_TICKS: u32 = 3;

/// A tick finds a task of a policy running.
fn note_ran(here: &Cpu, policy_slot: usize, is_new_round: bool) {
    if is_new_round {
        here.ran.iter().for_each(|ran| ran.store(ran.load(Relaxed) << 16, Relaxed));
    }
    let first = here.first.load(Relaxed);
    if first == 0 || here.rank_of(policy_slot) != first {
        let ran = &here.ran[policy_slot % POLICY_SLOTS];
        ran.store(ran.load(Relaxed) + 1, Relaxed);
    }
}

impl<P: Policy> Engine<P> {
    /// Each policy is asked in order, for a task that waits here and then for one that it brings, as the kernel asks its classes;
    /// the first that has one wins (papers/001, section III). One that has heard nothing since it had nothing is passed over.
    #[inline]
    pub(crate) fn pick_of_several(&self, handling: &mut Handling<'_>, cpu: CpuId, before: u32) {
        if self.is_shared() {
            return self.pick_of_shared(handling, cpu, before);
        }
        let here = self.cpu(cpu);
        let order = match (here.order.get(), here.first.load(Relaxed) as usize) {
            (order, 0) => order,
            (order, first) => order.begun_at(first),
        };
        // Where all this begins, some CPUs do not count yet what a policy hears.
        let is_only = order == Order::FIRST;
        let mut asked: PolicySlots = 0;
        for policy_slot in order.policy_slots().map(|policy_slot| &self.policy_slots[policy_slot % POLICY_SLOTS]) {
            let is_asked = self.may_have(here, policy_slot) || (is_only && policy_slot.is_taken());
            if !is_asked {
                continue;
            }
            asked |= 1 << (policy_slot.index % POLICY_SLOTS);
            let heard = policy_slot.heard.load(Acquire);
            match self.ask_here(handling, policy_slot, cpu, policy_slot.calls().has(Call::Balance)) {
                Found::Something => return here.rank.store(here.rank_of(policy_slot.index), Relaxed),
                Found::Nothing => here.nothing[policy_slot.index % POLICY_SLOTS].store(heard, Relaxed),
                Found::TooMuch => return handling.outcome.kicks.add(cpu),
            }
        }
        here.rank.store(NO_RANK, Relaxed);
        self.found_nothing(handling, cpu, asked, before);
    }

    /// Picks a task where policies share out CPUs or weights.
    #[inline(never)]
    pub(crate) fn pick_of_shared(&self, handling: &mut Handling<'_>, cpu: CpuId, before: u32) {
        let here = self.cpu(cpu);
        let mut first = here.first.load(Relaxed) as usize;
        let (order, leaves) = (here.order.get(), self.has_to_leave(handling));
        let (mut sorted, len) = (order.to_bytes(), order.len());
        if self.is_weighted() {
            self.sort_by_weight(handling, here, &mut sorted[..len], first);
            first = 0;
        }
        let order = &sorted[..len];
        let (later, sooner) = order.split_at(first.min(order.len()));
        let mut asked: PolicySlots = 0;
        for policy_slot in
            sooner.iter().chain(later).map(|policy_slot| &self.policy_slots[usize::from(*policy_slot) % POLICY_SLOTS])
        {
            if !self.may_have(here, policy_slot) {
                continue;
            }
            asked |= 1 << (policy_slot.index % POLICY_SLOTS);
            let heard = policy_slot.heard.load(Acquire);
            let found = if !self.is_not_owner(policy_slot.index, cpu) {
                self.ask(handling, policy_slot, cpu, policy_slot.calls().has(Call::Balance))
            } else if leaves != Some(policy_slot.index) {
                self.ask_non_owner(handling, policy_slot, cpu)
            } else {
                continue;
            };
            match found {
                Found::Something => return self.has_cpu(cpu, policy_slot.index),
                Found::Nothing => here.nothing[policy_slot.index % POLICY_SLOTS].store(heard, Relaxed),
                Found::TooMuch => return handling.outcome.kicks.add(cpu),
            }
        }
        here.rank.store(NO_RANK, Relaxed);
        self.found_nothing(handling, cpu, asked, before);
    }

    /// Whether a policy has heard something since it had nothing for a CPU.
    #[inline]
    pub(crate) fn may_have(&self, here: &Cpu, policy_slot: &PolicySlot<P>) -> bool {
        let has_news = policy_slot.heard.load(Acquire) != here.nothing[policy_slot.index % POLICY_SLOTS].load(Relaxed);
        has_news && policy_slot.tasks.load(Relaxed) > 0 && policy_slot.is_taken()
    }

    /// A task of the policy in a policy slot runs on a CPU from now on.
    #[inline]
    pub(crate) fn has_cpu(&self, cpu: CpuId, policy_slot: usize) {
        let here = self.cpu(cpu);
        here.rank.store(here.rank_of(policy_slot), Relaxed);
        if self.is_weighted() {
            self.begins(here, policy_slot);
        }
    }

    /// A task waits for a CPU on which one runs whose policy is asked later: that one has to go.
    #[inline(always)]
    pub(crate) fn overtake<const CASE: u8>(
        &self,
        handling: &mut Handling<'_, CASE>,
        policy_slot: &PolicySlot<P>,
        cpu: CpuId,
    ) {
        let here = self.cpu(cpu);
        let running = here.rank.load(Relaxed);
        let is_another = running != here.rank_of(policy_slot.index) && running != NO_RANK;
        if is_another && here.first.load(Relaxed) == 0 {
            self.overtake_another(&mut handling.rare(), policy_slot, cpu, running);
        }
    }

    #[inline(never)]
    pub(crate) fn overtake_another(
        &self,
        handling: &mut Handling<'_>,
        policy_slot: &PolicySlot<P>,
        cpu: CpuId,
        running: u32,
    ) {
        let here = self.cpu(cpu);
        let is_earlier = match here.order.get().get(running as usize) {
            Some(other) if self.is_weighted() => {
                self.is_ahead(here, other, policy_slot.index) || self.is_nearer(here, policy_slot.index, other)
            }
            _ => here.rank_of(policy_slot.index) < running,
        };
        if is_earlier {
            handling.outcome.kicks.add(cpu);
        }
    }

    /// There are no turns any more. Weights may have been shared out while one was under way: the policy that has it must not be asked first without end, as what waits
    /// with others may be what a grace period waits for.
    fn ends_turn(&self, handling: &mut Handling<'_>, cpu: CpuId) {
        let here = self.cpu(cpu);
        if here.first.load(Relaxed) != 0 {
            here.first.store(0, Relaxed);
            handling.outcome.kicks.add(cpu);
        }
    }

    /// From time to time the policies that are asked later have their turns, so that none starves.
    pub(crate) fn rotate(&self, handling: &mut Handling<'_>, cpu: CpuId, entry: &TaskEntry) {
        let here = self.cpu(cpu);
        if self.is_shared() && self.is_weighted() {
            self.tick_by_weight(handling, entry.state().policy_slot(), entry);
        }
        let order = here.order.get();
        if self.is_shared() && !self.has_turns(here, order.len()) {
            return self.ends_turn(handling, cpu);
        }
        let ticks = (here.ticks.load(Relaxed) + 1) % ROUND_TICKS;
        here.ticks.store(ticks, Relaxed);
        if order.len() > 1 {
            note_ran(here, entry.state().policy_slot(), ticks == 0);
        }
        // One after the other is asked first for a while, as far as it had not as much in the last round anyway; the first in the order is so
        // the rest of the time.
        let place = self.first_turn(here) + ticks / TURN_TICKS;
        let is_due = |policy_slot: usize| {
            let ran = here.ran[policy_slot % POLICY_SLOTS].load(Relaxed) >> 16;
            ticks % TURN_TICKS + ran < TURN_TICKS
        };
        let is_turn = order.get(place as usize).is_some_and(is_due);
        let first = if is_turn { place } else { 0 };
        if first != here.first.load(Relaxed) {
            here.first.store(first, Relaxed);
            if here.rank.load(Relaxed) != first {
                handling.outcome.kicks.add(cpu);
            }
        }
    }
}
