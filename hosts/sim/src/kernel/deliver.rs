//! Between the simulated kernel and the engine: events are delivered, and what the engine answers is carried out.

use std::sync::atomic::Ordering::Relaxed;

use ekiden::{Call, CpuId, CpuMask, TaskId};
use ekiden_contain::{considered, contained};
use ekiden_engine::Fault;
use ekiden_host::abi::{Event, EventKind, Outcome, Status};
use ekiden_trace::masks;

use super::Kernel;
use crate::alarm::Alarm;
use crate::machine::DEFAULT_SLICE_NS;
use crate::task::{State, TaskIndex};
use crate::trace::{Record, What};

/// The shortest time after which a timer goes off, as with the hardware's.
const TIMER_MIN_NS: u64 = 1_000;

impl Kernel {
    /// Tells the engine, and does what it asks for besides. `None` if there is no policy (any more).
    pub(crate) fn deliver(&mut self, event: &Event, payload: &[u8]) -> Option<Outcome> {
        let outcome = self.ask(event, payload)?;
        if self.questions.has_told.load(Relaxed) {
            self.alarms.set_if_earlier(Alarm::Queues, self.now_ns);
        }
        self.carry_out(event.cpu, &outcome);
        Some(outcome)
    }

    /// Tells the engine. Where a CPU or a task to run is decided, the CPUs that the policy looked at may be wanted.
    pub(super) fn ask(&mut self, event: &Event, payload: &[u8]) -> Option<Outcome> {
        const SELECT_CPU: u32 = EventKind::SelectCpu as u32;
        const PICK: u32 = EventKind::Pick as u32;
        if !self.notes_considered || !matches!(event.kind, SELECT_CPU | PICK) {
            return self.put_to_engine(event, payload);
        }
        let (outcome, cpus) = considered(|| self.put_to_engine(event, payload));
        if cpus.iter().any(|cpu| cpu != event.cpu) {
            let about = if event.kind == SELECT_CPU { event.task } else { TaskId::NONE };
            self.push_considered(about, &cpus);
        }
        outcome
    }

    fn push_considered(&mut self, about: TaskId, cpus: &CpuMask) {
        let task = self.engine.as_ref().and_then(|engine| engine.tasks().host_task(about));
        let pid = task.map_or(0, |task| self.task(task as TaskIndex).pid);
        for (piece, value) in (0..).zip(masks(cpus, self.machine.topology.nr_cpus())) {
            self.sink.push(Record { time_ns: self.now_ns, cpu: piece, what: What::Considered, pid, value });
        }
    }

    fn put_to_engine(&mut self, event: &Event, payload: &[u8]) -> Option<Outcome> {
        let engine = self.engine.as_ref().filter(|_| self.in_charge)?;
        let mut outcome = Outcome::default();
        if let Err(message) = contained(|| engine.deliver(event, payload, &mut outcome)) {
            engine.take_out(Fault { message, cpu: event.cpu });
            outcome.status = Status::Fault as i32;
        }
        if self.has_notes {
            self.push_notes();
        }
        if let Some(at_ns) = self.questions.take_late_ns() {
            self.alarms.set_if_earlier(Alarm::Late, at_ns);
        }
        assert_ne!(outcome.status, Status::Invalid as i32, "the simulator and the engine disagree about {event:?}");
        if outcome.status == Status::Fault as i32 {
            self.fall_back(event.cpu);
            return None;
        }
        Some(outcome)
    }

    /// An event about a task.
    pub(crate) fn event(&self, kind: EventKind, cpu: CpuId, task: TaskIndex) -> Event {
        let task = self.task(task);
        let mut event = Event::new(kind, cpu);
        (event.task, event.runtime_ns) = (task.id, task.cpu_ns);
        event
    }

    /// Tells the engine about a task, if that may lead to `call`.
    pub(crate) fn tell_for(&mut self, call: Call, kind: EventKind, cpu: CpuId, task: TaskIndex) {
        if self.calls.has(call) {
            self.tell(kind, cpu, task);
        }
    }

    /// Tells the engine about a task, if it is the policy's.
    pub(crate) fn tell(&mut self, kind: EventKind, cpu: CpuId, task: TaskIndex) {
        if self.task(task).is_ours {
            self.deliver(&self.event(kind, cpu, task), &[]);
        }
    }

    #[inline(always)]
    pub(crate) fn carry_out(&mut self, cpu: CpuId, outcome: &Outcome) {
        if outcome.timer_ns != 0 {
            let at_ns = self.now_ns.saturating_add(outcome.timer_ns.max(TIMER_MIN_NS));
            self.alarms.set(Alarm::Timer(cpu), at_ns);
        }
        if !outcome.kicks.is_empty() {
            self.kick_all_of(cpu, outcome);
        }
    }

    fn kick_all_of(&mut self, cpu: CpuId, outcome: &Outcome) {
        if outcome.kicks.is_all() {
            (0..self.machine.topology.nr_cpus()).for_each(|kicked| self.kick(kicked, cpu));
        } else {
            outcome.kicks.iter().for_each(|kicked| self.kick(kicked, cpu));
        }
    }

    /// Makes a CPU look for work: the slice of the task that it runs ends.
    pub(crate) fn kick(&mut self, cpu: CpuId, by: CpuId) {
        if !self.masks.online().contains(cpu) {
            return;
        }
        self.stats.kicks += 1;
        self.push_record(What::Kick, cpu, None, by.into());
        if self.cpu(cpu).running.is_some() {
            self.account(cpu);
            self.end_slice(cpu);
        } else {
            // It is about to have something to do, so no other task is sent there.
            self.idle.clear(cpu);
        }
        let model = &self.machine.model;
        let delay_ns = match self.cpu(cpu).running {
            // No interrupt: it looks when it is done with what it is in the midst of, which is a wake-up mostly.
            Some(_) if by == cpu => model.costs.wakeup_ns.max(1),
            Some(_) => self.machine.kick_ns(by, cpu),
            None => self.idle_exit_ns(cpu) + self.machine.kick_ns(by, cpu),
        };
        let at_ns = self.now_ns + delay_ns;
        self.alarms.set_if_earlier(Alarm::Resched(cpu), at_ns);
    }

    pub(crate) fn kick_if_idle(&mut self, cpu: CpuId, by: CpuId) {
        if self.cpu(cpu).running.is_none() {
            self.kick(cpu, by);
        }
    }

    /// The policy is gone. From here on each CPU runs its own tasks in turn.
    pub(crate) fn fall_back(&mut self, cpu: CpuId) {
        self.in_charge = false;
        self.push_record(What::Fault, cpu, None, 0);
        for (task, index) in self.tasks.iter().zip(0..) {
            let queue = &mut self.cpus[task.cpu as usize].queue;
            if task.state == State::Waiting && !queue.iter().any(|(other, _)| *other == index) {
                queue.push_back((index, DEFAULT_SLICE_NS));
            }
        }
        for other in 0..self.machine.topology.nr_cpus() {
            self.alarms.cancel(Alarm::Timer(other));
            if !self.cpu(other).queue.is_empty() {
                self.kick_if_idle(other, cpu);
            }
        }
    }
}
