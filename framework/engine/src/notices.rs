//! Which policies know that a CPU is idle. A policy that is alone is told at once. Among several, one that is not asked for work, since it has had
//! nothing and heard nothing, is told when it next hears of something: until then it makes no decision.

use core::sync::atomic::Ordering::Relaxed;

use ekiden::{Call, CpuId, TaskId};
use ekiden_host::Policy;
use ekiden_host::abi::{Event, Outcome, Status};

use crate::conditions::SEVERAL;
use crate::counters::Counters;
use crate::engine::{Engine, Handling};
use crate::idle_notifications::PolicySlots;
use crate::policy_slots::{POLICY_SLOTS, PolicySlot};

impl<P: Policy> Engine<P> {
    /// A CPU has found nothing to run. `asked` are the policies that were asked, and `before` how many tasks had been handed over
    /// when it began to ask.
    #[inline]
    pub(crate) fn found_nothing<const CASE: u8>(
        &self,
        handling: &mut Handling<'_, CASE>,
        cpu: CpuId,
        asked: PolicySlots,
        before: u32,
    ) {
        Counters::count(&self.counters(cpu, &self.policy_slots[self.default_policy_slot()]).idles);
        if self.any_beyond() {
            handling.outcome.status = Status::Beyond as i32;
            handling.outcome.cpu = 1;
        }
        if !self.idle.note(cpu, true) {
            if self.idle.was_told(cpu).is_some() {
                self.look_again(&mut handling.rare(), cpu, before);
            }
            return;
        }
        let listeners = self.listeners.load(Relaxed);
        let (told, passed_over) = (listeners & asked, listeners & !asked);
        if CASE == SEVERAL && passed_over != 0 {
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
    fn look_again<const CASE: u8>(&self, handling: &mut Handling<'_, CASE>, cpu: CpuId, before: u32) {
        if self.idle.handed.came_since(before) {
            handling.outcome.kicks.add(cpu);
        }
    }

    #[inline(never)]
    fn tell_those(&self, handling: &mut Handling<'_>, cpu: CpuId, policy_slots: PolicySlots) {
        let listens = |policy_slot: &&PolicySlot<P>| policy_slots & bit(policy_slot.index) != 0;
        self.policy_slots.iter().filter(listens).for_each(|policy_slot| self.tell_idle(handling, policy_slot, cpu));
    }

    /// A CPU that has found nothing runs something again, which is `task`.
    pub(crate) fn found_something(&self, handling: &mut Handling<'_>, cpu: CpuId, task: TaskId) {
        if let Some(told_of) = self.idle.was_told(cpu).filter(|told_of| *told_of != task) {
            self.pass_on(handling, cpu, told_of, task);
        }
        let told = self.cpu(cpu).idle_known.take();
        if told == 0 {
            return;
        }
        for policy_slot in self.in_order() {
            if told & bit(policy_slot.index) != 0 && policy_slot.calls().has(Call::ExitIdle) && policy_slot.is_taken() {
                self.tell_cpu(handling, policy_slot, Call::ExitIdle, cpu);
            }
        }
    }

    /// An idle CPU was told of a task, and took another one: that a CPU looks for the task is up to a further one.
    #[cold]
    #[inline(never)]
    pub(crate) fn pass_on(&self, handling: &mut Handling<'_>, cpu: CpuId, task: TaskId, taken: TaskId) {
        if self.tasks.get(task).is_some_and(|entry| entry.state().phase().is_waiting()) {
            let next = self.idle.pass_on(cpu, task, taken, |cpu| self.host.may_run(task, cpu));
            next.into_iter().for_each(|cpu| handling.outcome.kicks.add(cpu));
        }
    }

    fn tell_idle(&self, handling: &mut Handling<'_>, policy_slot: &PolicySlot<P>, cpu: CpuId) {
        if self.cpu(cpu).idle_known.tell(bit(policy_slot.index)) && policy_slot.is_taken() {
            self.tell_cpu(handling, policy_slot, Call::EnterIdle, cpu);
        }
    }

    /// The policy is told of the idle CPUs of which it does not know.
    #[cold]
    pub(crate) fn tell_missed(&self, handling: &mut Handling<'_>, policy_slot: &PolicySlot<P>) {
        if self.missed.take(bit(policy_slot.index)) {
            (0..self.nr_cpus())
                .filter(|cpu| self.idle.contains(*cpu))
                .for_each(|cpu| self.tell_idle(handling, policy_slot, cpu));
        }
    }

    /// All policies are told what they have missed.
    pub(crate) fn tell_all_missed(&self, handling: &mut Handling<'_>) {
        // With `for_each`, the name of what is made of its closures is longer than a symbol of the kernel may be.
        for policy_slot in self.in_order() {
            self.tell_missed(handling, policy_slot);
        }
    }

    /// The next policy in a policy slot knows of no CPU that it is idle.
    pub(crate) fn forget_told(&self, policy_slot: usize) {
        self.cpus.iter().for_each(|cpu| cpu.idle_known.forget(bit(policy_slot)));
        let _ = self.missed.take(bit(policy_slot));
    }

    /// The policy in a policy slot is new, and hears of all CPUs that are idle.
    pub(crate) fn tell_of_idle_cpus(&self, policy_slot: usize, outcome: &mut Outcome) {
        let event = Event::default();
        let handling = &mut Handling::<SEVERAL> { event: &event, outcome };
        let policy_slot = &self.policy_slots[policy_slot];
        if policy_slot.calls().has(Call::EnterIdle) {
            self.missed.pass_over(bit(policy_slot.index));
            self.tell_missed(handling, policy_slot);
        }
        self.end(handling);
    }

    /// Notes which policies are told.
    pub(crate) fn note_listeners(&self) {
        let listens = |policy_slot: &&PolicySlot<P>| policy_slot.calls().has(Call::EnterIdle);
        let listeners =
            self.in_order().filter(listens).fold(0, |listeners, policy_slot| listeners | bit(policy_slot.index));
        self.listeners.store(listeners, Relaxed);
    }
}

pub(crate) fn bit(policy_slot: usize) -> PolicySlots {
    1 << (policy_slot % POLICY_SLOTS)
}
