//! Policies that come, are put in order, and go, while events are under way: what CPUs read of that is published, and used when all
//! events that could not see it have ended, which the host waits for (a grace period). Only who goes needs them to stand still.

use core::sync::atomic::Ordering::{Relaxed, Release};

use ekiden_host::Policy;
use ekiden_host::abi::{Kicks, Outcome};

use crate::engine::Engine;
use crate::order::Order;
use crate::policy_slots::PolicySlot;

impl<P: Policy> Engine<P> {
    /// Adds a policy, as the last one that is asked. Returns its policy slot; the policy comes back if there is no room.
    /// `is_default` says that it gets all tasks for which no policy was chosen; they have to be [introduced](Self::introduce) to
    /// it. `outcome` comes in zeroed. No event may be under way; `&mut self` says so.
    ///
    /// # Errors
    /// When all policy slots are taken.
    pub fn add(&mut self, policy: P, is_default: bool, outcome: &mut Outcome) -> Result<usize, P> {
        self.begin_several();
        let index = self.come(policy)?;
        self.has_come(index, is_default, outcome);
        Ok(index)
    }

    /// The first of three steps in which a policy [comes](Self::add) while events are under way: each event that begins from here on is
    /// handled as if there were several policies. True if that is new: a grace period has to pass before the next step then, after which
    /// no event is under way that counts nothing, as there is but one.
    pub fn begin_several(&self) -> bool {
        self.single.swap(false, Release)
    }

    /// The second step: the policy has a policy slot, and is asked as the last one. No task is its own before the third step, which comes after
    /// another grace period.
    ///
    /// # Errors
    /// When all policy slots are taken.
    pub fn come(&self, policy: P) -> Result<usize, P> {
        let order = self.order.get();
        let Some(policy_slot) = self.policy_slots.iter().find(|policy_slot| !order.contains(policy_slot.index)) else {
            self.single.store(order == Order::FIRST, Release);
            return Err(policy);
        };
        if order == Order::FIRST {
            // From here on timers are told apart; one may be under way.
            self.cpus.iter().for_each(|cpu| cpu.due_ns[0].store(1, Relaxed));
        }
        // Who sees the order sees that what was found before is worth nothing: until now not every CPU counted.
        self.ask_anew();
        policy_slot.take(policy);
        self.publish(Order::of(order.policy_slots().chain([policy_slot.index])));
        Ok(policy_slot.index)
    }

    /// The third step: all CPUs ask the policy, so it may have tasks.
    pub fn has_come(&self, policy_slot: usize, is_default: bool, outcome: &mut Outcome) {
        if is_default {
            self.default_policy_slot.store(policy_slot as u32, Relaxed);
        }
        self.ask_anew();
        self.tell_of_idle_cpus(policy_slot, outcome);
    }

    /// Takes a policy away, and gives it back. Its tasks get the default one, or, if it was that, the first of those that stay;
    /// they have to be [introduced](Self::introduce). No event may be under way; `&mut self` says so.
    pub fn remove(&mut self, policy_slot: usize) -> Option<P> {
        let order = self.order.get();
        if !order.contains(policy_slot) {
            return None;
        }
        self.share_nothing(policy_slot);
        self.begins_pace(policy_slot);
        self.forget_told(policy_slot);
        self.publish(Order::of(order.policy_slots().filter(|other| *other != policy_slot)));
        self.ask_anew();
        let policy = self.policy_slots[policy_slot].empty();
        self.find_default();
        policy
    }

    /// Asks policies in another order; `order` names the policy slot of each. False if it does not. Events may be under way, and see it in
    /// their own time: when all that were have ended, the host says so ([`all_see`](Self::all_see)). One change at a time.
    pub fn reorder(&self, order: &[usize]) -> bool {
        let old = self.order.get();
        let is_same = order.len() == old.len() && old.policy_slots().all(|policy_slot| order.contains(&policy_slot));
        if is_same {
            self.publish(Order::of(order.iter().copied()));
        }
        is_same
    }

    /// Every event that was under way when something was [published](Self::reorder) has ended. What a CPU has found until then it found by
    /// the old order: all look for work again.
    pub fn all_see(&self, outcome: &mut Outcome) {
        self.ask_anew();
        outcome.kicks = Kicks::ALL;
    }

    /// Notes the order, and at which place in it each policy slot is on each CPU.
    fn publish(&self, order: Order) {
        self.order.publish(order);
        self.note_listeners();
        self.rank_shares();
        self.single.store(order == Order::FIRST, Release);
    }

    /// Nothing that a CPU found is so any more.
    fn ask_anew(&self) {
        // While there was only one, no CPU counted.
        self.policy_slots.iter().for_each(PolicySlot::has_heard);
        // No policy is asked first out of order any more.
        self.cpus.iter().for_each(|cpu| cpu.first.store(0, Relaxed));
    }
}
