//! Sets of CPUs that belong to policies, and weights between policies.
//!
//! A policy is asked first on its CPUs. If they are its alone, no task of another policy runs there,
//! and its own run nowhere else, unless a task may run nowhere else by its affinity. With weights,
//! the policy that has had the least of a CPU, divided by its weight, is asked first there.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32};

use ekiden::{Call, CpuId, CpuMask, RefusalReason, TaskId};
use ekiden_host::Policy;
use ekiden_host::abi::{BALANCE_TOO, Message, NO_CLAIMS, Reply};

use crate::conditions::SEVERAL;
use crate::counters::Cpu;
use crate::engine::{Engine, Handling};
use crate::order::Order;
use crate::pick::{Found, PICK_ATTEMPTS};
use crate::policy_slots::{POLICY_SLOTS, PolicySlot};
use crate::state::Phase;
use crate::table::{TaskEntry, token};

/// What one that has no weight of its own weighs beside those that have one.
pub const POLICY_WEIGHT: u32 = 100;

/// The least and the most that a policy can weigh.
pub const POLICY_WEIGHTS: core::ops::RangeInclusive<u32> = 1..=10_000;

/// Run time that counts at once: more than a tick, less than what a task has behind it when counting begins.
const CHARGE_NS_MAX: u64 = 20_000_000;

/// How far ahead of another policy one may be whose task runs.
const LEAD_NS: u64 = 3_000_000;

/// What a policy may have saved up, so that one which balances before it picks, and is passed over for that, loses nothing.
const CREDIT_NS: u64 = 10_000_000;

/// What a policy has of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Whether no other policy may use its CPUs, and it no others.
    pub is_strict: bool,
    /// Its weight; 0 if it has none.
    pub weight: u32,
}

/// What policies have of the machine, beside the CPUs that they own. Each is a word of its own: an event that sees one change and not yet
/// another sends a task elsewhere, or asks in another order, as some share would have it; then every CPU looks for work again.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    weights: [AtomicU32; POLICY_SLOTS],
    /// The policies that have CPUs for themselves, a bit each.
    strict: AtomicU8,
    /// Whether any weighs something.
    weighted: AtomicBool,
    /// Whether CPUs or weights are shared out among several.
    shared: AtomicBool,
}

/// The bit of a policy slot.
fn bit(policy_slot: usize) -> u8 {
    1 << (policy_slot % POLICY_SLOTS)
}

/// The policy slots in a set.
fn policy_slots(set: u8) -> impl Iterator<Item = usize> {
    (0..POLICY_SLOTS).filter(move |policy_slot| set & bit(*policy_slot) != 0)
}

impl<P: Policy> Engine<P> {
    /// Gives a policy a set of CPUs, none for no set, and a weight, instead of what it had. False if there is no such policy, or if
    /// that cannot be. Events may be under way, and see it in their own time: when all that were have ended, the host says so
    /// ([`all_see`](Self::all_see)). One change at a time.
    pub fn share(&self, policy_slot: usize, cpus: &CpuMask, share: Share) -> bool {
        let is_weight = share.weight == 0 || POLICY_WEIGHTS.contains(&share.weight);
        let has_cpus = (0..self.nr_cpus()).any(|cpu| cpus.contains(cpu));
        if !self.is_alive(policy_slot) || !is_weight || (share.is_strict && !has_cpus) {
            return false;
        }
        self.share_out(policy_slot, cpus, share);
        self.rank_shares();
        true
    }

    /// In between it owns the CPUs of before and those that follow, so that it never has none.
    fn share_out(&self, policy_slot: usize, cpus: &CpuMask, share: Share) {
        let own = || (0..).zip(&self.cpus).map(|(number, cpu)| (cpus.contains(number), &cpu.owners));
        own().filter(|(is_own, _)| *is_own).for_each(|(_, owners)| _ = owners.fetch_or(bit(policy_slot), Relaxed));
        self.shares.weights[policy_slot % POLICY_SLOTS].store(share.weight, Relaxed);
        let strict = if share.is_strict { bit(policy_slot) } else { 0 };
        self.shares.strict.store(self.shares.strict.load(Relaxed) & !bit(policy_slot) | strict, Relaxed);
        own().filter(|(is_own, _)| !is_own).for_each(|(_, owners)| _ = owners.fetch_and(!bit(policy_slot), Relaxed));
    }

    /// The policy in this policy slot has the default share.
    pub(crate) fn share_nothing(&self, policy_slot: usize) {
        self.share_out(policy_slot, &CpuMask::new(), Share::default());
    }

    /// What a policy has, and its CPUs; none if it has no set.
    pub fn share_of(&self, policy_slot: usize) -> (Share, CpuMask) {
        let own = (0..).zip(&self.cpus).filter(|(_, cpu)| cpu.owners() & bit(policy_slot) != 0);
        let is_strict = self.strict() & bit(policy_slot) != 0;
        let share = Share { is_strict, weight: self.shares.weights[policy_slot % POLICY_SLOTS].load(Relaxed) };
        (share, own.map(|(number, _)| number).collect())
    }

    /// The order in which policies are asked on each CPU: first those whose it is, last those that may not use it.
    pub(crate) fn rank_shares(&self) {
        let (order, strict) = (self.order.get(), self.strict());
        for cpu in &self.cpus {
            let owners = cpu.owners();
            let in_tier =
                |wanted| order.policy_slots().filter(move |policy_slot| tier(*policy_slot, owners, strict) == wanted);
            let here = Order::of((0..3).flat_map(in_tier));
            for policy_slot in 0..POLICY_SLOTS {
                let rank = here.policy_slots().position(|other| other == policy_slot);
                cpu.ranks[policy_slot].store(rank.map_or(u8::MAX, |rank| rank as u8), Relaxed);
            }
            cpu.order.publish(here);
        }
        let is_weighted = self.shares.weights.iter().any(|weight| weight.load(Relaxed) != 0);
        let is_shared = order.len() > 1 && (is_weighted || self.cpus.iter().any(|cpu| cpu.owners() != 0));
        self.shares.weighted.store(is_weighted, Release);
        self.shares.shared.store(is_shared, Release);
    }

    /// Whether CPUs or weights are shared out among several.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.shares.shared.load(Acquire)
    }

    /// Whether any policy weighs something.
    #[inline]
    pub(crate) fn is_weighted(&self) -> bool {
        self.shares.weighted.load(Acquire)
    }

    fn strict(&self) -> u8 {
        self.shares.strict.load(Relaxed)
    }

    /// The place of the first policy that has turns on a CPU.
    pub(crate) fn first_turn(&self, cpu: &Cpu) -> u32 {
        policy_slots(cpu.owners()).count().max(1) as u32
    }

    /// Whether turns are due on a CPU: weights do without, unless it belongs to a policy.
    pub(crate) fn has_turns(&self, cpu: &Cpu, policies: usize) -> bool {
        !self.is_weighted() || (cpu.owners() != 0 && self.first_turn(cpu) < policies as u32)
    }

    /// Charges the task that ran so far, and sorts the policies that are asked on a CPU by what they have had of
    /// it. The CPU's owners stay first, and policies that it is not meant for last; but the one whose turn it is, by its
    /// place in the order, is before all.
    pub(crate) fn sort_by_weight(&self, handling: &Handling<'_>, cpu: &Cpu, order: &mut [u8], turn: usize) {
        if let Some(entry) = self.tasks.get(handling.event.task) {
            self.charge(cpu, entry.state().policy_slot(), entry, handling.event.runtime_ns);
        }
        let has_turn = order.get(turn).filter(|_| turn != 0).copied();
        let key = |policy_slot: u8| {
            let index = usize::from(policy_slot) % POLICY_SLOTS;
            (
                has_turn != Some(policy_slot),
                tier(index, cpu.owners(), self.strict()),
                had(cpu, index),
                cpu.rank_of(index),
            )
        };
        // There are few of them, and the library's way is long.
        for end in 1..order.len() {
            let mut at = end;
            while at > 0 && key(order[at]) < key(order[at - 1]) {
                order.swap(at, at - 1);
                at -= 1;
            }
        }
    }

    /// A policy has the CPU from now on. One that had nothing to run does not catch up.
    pub(crate) fn begins(&self, cpu: &Cpu, policy_slot: usize) {
        let had = had(cpu, policy_slot);
        cpu.had_ns[policy_slot % POLICY_SLOTS].store(had, Relaxed);
        cpu.clock_ns.fetch_max(had, Relaxed);
    }

    /// Counts what a task has run since it was last looked at, for its policy.
    pub(crate) fn charge(&self, cpu: &Cpu, policy_slot: usize, entry: &TaskEntry, runtime_ns: u64) {
        let before_ns = entry.charged_ns.swap(runtime_ns, Relaxed);
        let ran_ns = runtime_ns.saturating_sub(before_ns).min(CHARGE_NS_MAX);
        let weight = match self.shares.weights[policy_slot % POLICY_SLOTS].load(Relaxed) {
            0 => POLICY_WEIGHT,
            weight => weight,
        };
        let had = &cpu.had_ns[policy_slot % POLICY_SLOTS];
        had.store(had.load(Relaxed) + ran_ns * u64::from(POLICY_WEIGHT) / u64::from(weight), Relaxed);
    }

    /// Whether a policy, whose task runs, is so far ahead of another one with work that it has to stop.
    pub(crate) fn is_ahead(&self, cpu: &Cpu, policy_slot: usize, of: usize) -> bool {
        let tier = |policy_slot| tier(policy_slot, cpu.owners(), self.strict());
        tier(policy_slot) == tier(of) && cpu.had_ns[policy_slot % POLICY_SLOTS].load(Relaxed) > had(cpu, of) + LEAD_NS
    }

    /// Whether a CPU belongs to one policy rather than to another.
    pub(crate) fn is_nearer(&self, cpu: &Cpu, policy_slot: usize, than: usize) -> bool {
        tier(policy_slot, cpu.owners(), self.strict()) < tier(than, cpu.owners(), self.strict())
    }

    /// A tick of a task: its policy has had more by now.
    pub(crate) fn tick_by_weight(&self, handling: &mut Handling<'_>, policy_slot: usize, entry: &TaskEntry) {
        let cpu = self.cpu(handling.event.cpu);
        self.charge(cpu, policy_slot, entry, handling.event.runtime_ns);
        let mut waiting = self.in_order().filter(|other| other.index != policy_slot && self.may_have(cpu, other));
        if waiting.any(|other| self.is_ahead(cpu, policy_slot, other.index)) {
            handling.outcome.kicks.add(handling.event.cpu);
        }
    }

    /// Whether a policy may not use a CPU: it is another's alone, or the policy has others for itself. What has faulted owns nothing.
    #[inline]
    pub(crate) fn is_not_owner(&self, policy_slot: usize, cpu: CpuId) -> bool {
        let owners = self.cpu(cpu).owners();
        owners & bit(policy_slot) == 0
            && policy_slots(self.strict() & (owners | bit(policy_slot))).any(|owner| self.is_alive(owner))
    }

    /// Where a task that waits on a CPU that its policy may not use is to go; nothing if it may run nowhere else, or if it is well
    /// where it is.
    ///
    /// Cost: one look for each CPU, if it is not.
    pub(crate) fn refuge(&self, policy_slot: &PolicySlot<P>, task: TaskId, cpu: CpuId) -> Option<CpuId> {
        if !self.is_not_owner(policy_slot.index, cpu) {
            return None;
        }
        let count = self.nr_cpus();
        let may_go = |to: &CpuId| !self.is_not_owner(policy_slot.index, *to) && self.host.may_run(task, *to);
        // Each begins to look elsewhere, so that they spread.
        let from = task.slot % count;
        let all = || (from..count).chain(0..from).filter(may_go);
        all().find(|to| self.idle.contains(*to)).or_else(|| all().next())
    }

    /// The host or the policy has chosen a CPU for a task, which may be one that the policy may not use.
    pub(crate) fn keep_in(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry) {
        let (policy_slot, chosen) = (self.policy_slot_of::<SEVERAL>(entry.state()), handling.outcome.cpu as u32);
        if let Some(cpu) = self.refuge(policy_slot, task, chosen) {
            handling.outcome.cpu = cpu as i32;
        }
    }

    /// A task waits on a CPU from now on. If its policy may not use that one, it goes to another. True if it did.
    pub(crate) fn send_away(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry) -> bool {
        let seen = entry.state();
        if seen.phase() != Phase::Ready {
            return false;
        }
        let Some(cpu) = self.refuge(self.policy_slot_of::<SEVERAL>(seen), task, seen.cpu()) else { return false };
        let moved = self.move_to(handling, task, entry, seen, cpu, Phase::Ready);
        handling.outcome.kicks.add(cpu);
        moved
    }

    /// Whether the task that ran so far, and could go on, has to leave the CPU: its policy is not asked then.
    pub(crate) fn has_to_leave(&self, handling: &Handling<'_>) -> Option<usize> {
        let entry = self.tasks.get(handling.event.task)?;
        let seen = entry.state();
        let leaves = seen.phase() == Phase::ReadyByTick
            && self.refuge(self.policy_slot_of::<SEVERAL>(seen), handling.event.task, handling.event.cpu).is_some();
        leaves.then_some(seen.policy_slot())
    }

    /// Asks a policy on a CPU that it may not use: only for tasks that may run nowhere else. All others go elsewhere.
    #[inline(never)]
    pub(crate) fn ask_non_owner(&self, handling: &mut Handling<'_>, policy_slot: &PolicySlot<P>, cpu: CpuId) -> Found {
        for _ in 0..PICK_ATTEMPTS {
            let mut message = Message::about_cpu(Call::PickNextTask, cpu);
            // It may want to balance before it picks, but brings nothing here.
            message.flags = NO_CLAIMS | if policy_slot.calls().has(Call::Balance) { BALANCE_TOO } else { 0 };
            let Reply { token: raw, task: wish, slice_ns, .. } = self.call(handling, policy_slot, &message, &[]);
            if raw.is_none() {
                if !wish.is_none() && policy_slot.calls().has(Call::BalanceErr) {
                    let flags = RefusalReason::NotAllowed as u32;
                    let message = Message { task: wish, flags, ..Message::about_cpu(Call::BalanceErr, cpu) };
                    self.call(handling, policy_slot, &message, &[]);
                }
                return Found::Nothing;
            }
            let entry = self.tasks.get(raw.task);
            let seen = entry.map(TaskEntry::state);
            let is_good = seen.is_some_and(|seen| {
                (seen.serial(), seen.cpu(), seen.phase()) == (raw.serial, raw.cpu, Phase::Ready) && raw.cpu == cpu
            });
            if let (Some(entry), Some(seen), true) = (entry, seen, is_good) {
                if let Some(to) = self.refuge(policy_slot, raw.task, cpu) {
                    let state = seen.issue(Phase::Ready, to);
                    if entry.try_state(seen, state) {
                        let mut message =
                            self.message(handling, Call::PntErr, raw.task, entry).with_token(token(raw.task, state));
                        (message.cpu, message.flags) = (to, RefusalReason::NotAllowed as u32);
                        self.call(handling, policy_slot, &message, &[]);
                        handling.outcome.kicks.add(to);
                        continue;
                    }
                }
            }
            if self.run(handling, policy_slot, cpu, &raw, slice_ns) {
                return Found::Something;
            }
            if !policy_slot.is_taken() {
                return Found::Nothing;
            }
        }
        Found::TooMuch
    }
}

/// On a CPU with these owners, a policy is an owner (0), as good as any other (1), or none of them (2).
fn tier(policy_slot: usize, owners: u8, strict: u8) -> u32 {
    if owners & bit(policy_slot) != 0 {
        0
    } else if strict & (owners | bit(policy_slot)) == 0 {
        1
    } else {
        2
    }
}

/// What a policy has had of a CPU, by weight. One that had nothing to run for a while begins with the others, or nearly.
fn had(cpu: &Cpu, policy_slot: usize) -> u64 {
    cpu.had_ns[policy_slot % POLICY_SLOTS].load(Relaxed).max(cpu.clock_ns.load(Relaxed).saturating_sub(CREDIT_NS))
}
