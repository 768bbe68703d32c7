//! Policies that come, are put in order, and go, while events are under way: what CPUs read of that is published, and used when all
//! events that could not see it have ended, which the host waits for (a grace period).

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;

use ekiden_host::Policy;
use ekiden_host::abi::{Kicks, Outcome};

use crate::engine::Engine;
use crate::notices::bit;
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
        let order = self.order.get();
        // There is no other policy to share them with.
        self.policy_slots
            .iter_mut()
            .filter(|policy_slot| !order.contains(policy_slot.index))
            .for_each(|policy_slot| _ = policy_slot.take_out());
        let index = self.come(policy)?;
        self.note_lone();
        self.has_come(index, is_default, outcome);
        Ok(index)
    }

    /// The first of three steps in which a policy [comes](Self::add) while events are under way: each event that begins from here on is
    /// handled as if there were several policies. True if that is new: a grace period has to pass before the next step then, after which
    /// no event is under way that counts nothing, as there is but one.
    pub fn begin_several(&self) -> bool {
        self.conditions.set_several()
    }

    /// The second step: the policy has a policy slot, and is asked as the last one. No task is its own before the third step, which comes after
    /// another grace period. The policy that had the policy slot before [has left](Self::has_left).
    ///
    /// # Errors
    /// When all policy slots are taken, or the next has a policy that cannot be [followed](Policy::follow).
    pub fn come(&self, policy: P) -> Result<usize, P> {
        let order = self.order.get();
        let Some(policy_slot) = self.policy_slots.iter().find(|policy_slot| !order.contains(policy_slot.index)) else {
            self.note_lone();
            return Err(policy);
        };
        if order == Order::FIRST {
            // From here on timers are told apart; one may be under way.
            self.cpus.iter().for_each(|cpu| cpu.due_ns[0].store(1, Relaxed));
        }
        // What the one before has asked for is not this one's.
        self.cpus.iter().for_each(|cpu| cpu.due_ns[policy_slot.index].store(0, Relaxed));
        self.begins_pace(policy_slot.index);
        // A CPU that sees the order sees that what was found before is void: until now not every CPU counted.
        self.ask_anew();
        policy_slot.take(policy).inspect_err(|_| self.note_lone())?;
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
        if !self.leave(policy_slot) {
            return None;
        }
        self.has_left(policy_slot);
        self.policy_slots[policy_slot].take_out()
    }

    /// The first of two steps in which a policy goes while events are under way: no event that begins from here on calls it. Its tasks get the
    /// default policy, or, if it was that, the first of those that stay: they have to be [introduced](Self::introduce). Waiting tasks are at
    /// once, and now and then until the second step, as an event that is under way may give it one back; all others are after the second step.
    /// False if there is no policy in this policy slot.
    pub fn leave(&self, policy_slot: usize) -> bool {
        let order = self.order.get();
        if !order.contains(policy_slot) {
            return false;
        }
        // There is always another policy for its tasks.
        self.find_another_default(policy_slot);
        self.leaving.fetch_or(bit(policy_slot), Relaxed);
        self.policy_slots[policy_slot].leave();
        // Another one may have faulted meanwhile, which sees that this one goes or is seen here.
        fence(SeqCst);
        self.find_default();
        self.share_nothing(policy_slot);
        self.publish(Order::of(order.policy_slots().filter(|other| *other != policy_slot)));
        self.ask_anew();
        true
    }

    /// The second step, after a grace period: no event knows the policy any more, and what it is made of can go when tasks have been introduced once
    /// more.
    pub fn has_left(&self, policy_slot: usize) {
        self.leaving.fetch_and(!bit(policy_slot), Relaxed);
        self.forget_told(policy_slot);
        // Events that are under way know of one policy only, which they ask whatever was counted: they go together with those that count nothing.
        self.note_lone();
        self.ask_anew();
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
    }

    /// Notes whether there is but one policy, in policy slot 0. All events know the order.
    fn note_lone(&self) {
        if self.order.get() == Order::FIRST {
            self.conditions.set_single();
        } else {
            self.conditions.set_several();
        }
    }

    /// Nothing that a CPU found is so any more.
    fn ask_anew(&self) {
        // While there was only one, no CPU counted.
        self.policy_slots.iter().for_each(PolicySlot::has_heard);
        // No policy is asked first out of order any more.
        self.cpus.iter().for_each(|cpu| cpu.first.store(0, Relaxed));
    }
}
