//! Who knows that a CPU is idle. A policy that is alone is told at once. Of several, one that is not asked for work, since it has had
//! nothing and heard nothing, is told when it next hears of something: until then it makes no decision.

use core::sync::atomic::Ordering::Relaxed;

use ekiden::{Call, CpuId};
use ekiden_host::Policy;
use ekiden_host::abi::{Event, Outcome, Status};

use crate::counters::Counters;
use crate::engine::{Engine, Handling};
use crate::seats::{SEATS, Seat};
use crate::told::Seats;

impl<P: Policy> Engine<P> {
    /// A CPU has found nothing to run. `asked` are the policies that were asked, and `before` how many tasks had been handed over
    /// when it began to ask.
    #[inline]
    pub(crate) fn found_nothing<const LONE: bool>(
        &self,
        handling: &mut Handling<'_, LONE>,
        cpu: CpuId,
        asked: Seats,
        before: u32,
    ) {
        Counters::count(&self.counters(cpu, &self.seats[self.default_seat()]).idles);
        if self.any_beyond() {
            handling.outcome.status = Status::Beyond as i32;
            handling.outcome.cpu = 1;
        }
        if !self.idle.note(cpu, true) {
            if self.idle.can_be_taken(cpu) {
                self.look_again(&mut handling.rare(), cpu, before);
            }
            return;
        }
        let listeners = self.listeners.load(Relaxed);
        let (told, passed_over) = (listeners & asked, listeners & !asked);
        if !LONE && passed_over != 0 {
            self.missed.pass_over(passed_over);
        }
        if told != 0 {
            self.tell_those(&mut handling.rare(), cpu, told);
        }
        self.look_again(handling, cpu, before);
    }

    /// Tasks in queues that CPUs share, and those of groups that have time again, are handed over by whichever CPU it happens on. This one
    /// may have asked just before.
    #[inline]
    fn look_again<const LONE: bool>(&self, handling: &mut Handling<'_, LONE>, cpu: CpuId, before: u32) {
        if self.idle.handed.came_since(before) {
            handling.outcome.kicks.add(cpu);
        }
    }

    #[inline(never)]
    fn tell_those(&self, handling: &mut Handling<'_>, cpu: CpuId, seats: Seats) {
        let listens = |seat: &&Seat<P>| seats & bit(seat.index) != 0;
        self.seats.iter().filter(listens).for_each(|seat| self.tell_idle(handling, seat, cpu));
    }

    /// A CPU that has found nothing runs something again.
    pub(crate) fn found_something(&self, handling: &mut Handling<'_>, cpu: CpuId) {
        let told = self.cpu(cpu).told.take();
        if told == 0 {
            return;
        }
        for seat in self.in_order() {
            if told & bit(seat.index) != 0 && seat.calls().has(Call::ExitIdle) && seat.is_taken() {
                self.tell_cpu(handling, seat, Call::ExitIdle, cpu);
            }
        }
    }

    fn tell_idle(&self, handling: &mut Handling<'_>, seat: &Seat<P>, cpu: CpuId) {
        if self.cpu(cpu).told.tell(bit(seat.index)) && seat.is_taken() {
            self.tell_cpu(handling, seat, Call::EnterIdle, cpu);
        }
    }

    /// The policy is told of the idle CPUs of which it does not know.
    #[cold]
    pub(crate) fn tell_missed(&self, handling: &mut Handling<'_>, seat: &Seat<P>) {
        if self.missed.take(bit(seat.index)) {
            (0..self.nr_cpus())
                .filter(|cpu| self.idle.contains(*cpu))
                .for_each(|cpu| self.tell_idle(handling, seat, cpu));
        }
    }

    /// All policies are told what they have missed.
    pub(crate) fn tell_all_missed(&self, handling: &mut Handling<'_>) {
        self.in_order().for_each(|seat| self.tell_missed(handling, seat));
    }

    /// The next policy in a seat knows of no CPU that it is idle.
    pub(crate) fn forget_told(&self, seat: usize) {
        self.cpus.iter().for_each(|cpu| cpu.told.forget(bit(seat)));
        let _ = self.missed.take(bit(seat));
    }

    /// The policy in a seat is new, and hears of all CPUs that are idle.
    pub(crate) fn tell_of_idle_cpus(&self, seat: usize, outcome: &mut Outcome) {
        let event = Event::default();
        let handling = &mut Handling::<false> { event: &event, outcome };
        let seat = &self.seats[seat];
        if seat.calls().has(Call::EnterIdle) {
            self.missed.pass_over(bit(seat.index));
            self.tell_missed(handling, seat);
        }
        self.end(handling);
    }

    /// Notes who wants to be told.
    pub(crate) fn note_listeners(&self) {
        let listens = |seat: &&Seat<P>| seat.calls().has(Call::EnterIdle);
        let listeners = self.in_order().filter(listens).fold(0, |listeners, seat| listeners | bit(seat.index));
        self.listeners.store(listeners, Relaxed);
    }
}

pub(crate) fn bit(seat: usize) -> Seats {
    1 << (seat % SEATS)
}
