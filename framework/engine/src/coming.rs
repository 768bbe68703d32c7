//! Policies that come, are put in order, and go, while events are under way: what CPUs read of that is published, and used when all
//! events that could not see it have ended, which the host waits for (a grace period). Only who goes needs them to stand still.

use core::sync::atomic::Ordering::{Relaxed, Release};

use ekiden_host::Policy;
use ekiden_host::abi::{Kicks, Outcome};

use crate::engine::Engine;
use crate::order::Order;
use crate::seats::Seat;

impl<P: Policy> Engine<P> {
    /// Adds a policy, as the last one that is asked. Returns its seat; the policy comes back if there is no room.
    /// `is_default` says that it gets all tasks for which no policy was chosen; they have to be [introduced](Self::introduce) to
    /// it. `outcome` comes in zeroed. No event may be under way; `&mut self` says so.
    ///
    /// # Errors
    /// When all seats are taken.
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
        self.lone.swap(false, Release)
    }

    /// The second step: the policy has a seat, and is asked as the last one. No task is its own before the third step, which comes after
    /// another grace period.
    ///
    /// # Errors
    /// When all seats are taken.
    pub fn come(&self, policy: P) -> Result<usize, P> {
        let order = self.order.get();
        let Some(seat) = self.seats.iter().find(|seat| !order.contains(seat.index)) else {
            self.lone.store(order == Order::FIRST, Release);
            return Err(policy);
        };
        if order == Order::FIRST {
            // From here on timers are told apart; one may be under way.
            self.cpus.iter().for_each(|cpu| cpu.due_ns[0].store(1, Relaxed));
        }
        // Who sees the order sees that what was found before is worth nothing: until now not every CPU counted.
        self.ask_anew();
        seat.take(policy);
        self.publish(Order::of(order.seats().chain([seat.index])));
        Ok(seat.index)
    }

    /// The third step: all CPUs ask the policy, so it may have tasks.
    pub fn has_come(&self, seat: usize, is_default: bool, outcome: &mut Outcome) {
        if is_default {
            self.default_seat.store(seat as u32, Relaxed);
        }
        self.ask_anew();
        self.tell_of_idle_cpus(seat, outcome);
    }

    /// Takes a policy away, and gives it back. Its tasks get the default one, or, if it was that, the first of those that stay;
    /// they have to be [introduced](Self::introduce). No event may be under way; `&mut self` says so.
    pub fn remove(&mut self, seat: usize) -> Option<P> {
        let order = self.order.get();
        if !order.contains(seat) {
            return None;
        }
        self.share_nothing(seat);
        self.begins_pace(seat);
        self.forget_told(seat);
        self.publish(Order::of(order.seats().filter(|other| *other != seat)));
        self.ask_anew();
        let policy = self.seats[seat].empty();
        self.find_default();
        policy
    }

    /// Asks policies in another order; `order` names the seat of each. False if it does not. Events may be under way, and see it in
    /// their own time: when all that were have ended, the host says so ([`all_see`](Self::all_see)). One change at a time.
    pub fn reorder(&self, order: &[usize]) -> bool {
        let old = self.order.get();
        let is_same = order.len() == old.len() && old.seats().all(|seat| order.contains(&seat));
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

    /// Notes the order, and at which place in it each seat is on each CPU.
    fn publish(&self, order: Order) {
        self.order.publish(order);
        self.note_listeners();
        self.rank_shares();
        self.lone.store(order == Order::FIRST, Release);
    }

    /// Nothing that a CPU found is so any more.
    fn ask_anew(&self) {
        // While there was only one, no CPU counted.
        self.seats.iter().for_each(Seat::has_heard);
        // No policy is asked first out of order any more.
        self.cpus.iter().for_each(|cpu| cpu.first.store(0, Relaxed));
    }
}
