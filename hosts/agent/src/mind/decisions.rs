//! What the agent has decided, on its way to the kernel: which task runs where next, and what the kernel made of it.

use std::sync::atomic::Ordering::Relaxed;

use ekiden::CpuId;
use ekiden_contain::contained;
use ekiden_engine::Fault;
use ekiden_host::abi::{Event, EventKind, Outcome, RefusalReason, Status};

use crate::wire::{Shot, result, state};

use super::{Mind, count};

impl Mind {
    /// If the engine has said so, a task is to run on a CPU.
    pub(super) fn decide(&mut self, cpu: CpuId, outcome: &Outcome) {
        if outcome.status != Status::Run as i32 {
            return;
        }
        let slot = outcome.host_task as u32;
        let Some(known) = self.tasks.get_mut(slot as usize) else { return };
        let seq = known.seq;
        known.decided = Some((cpu, seq));
        self.looking.clear(cpu);
        self.questions.set_running(cpu, outcome.task);
        let slice_ns = self.slice_of(outcome);
        let shot = Shot { cpu, slot, seq, slice_ns, ..Shot::default() };
        self.aim(shot);
    }

    /// How long a task is to run. Without a limit, the next one that is placed without this thread gets as much.
    pub(super) fn slice_of(&self, outcome: &Outcome) -> u64 {
        let slice_ns = outcome.slice_ns;
        if let Some(slice_ns) = self.limited_slice_ns(outcome.task, slice_ns) {
            return slice_ns;
        }
        let place = &self.shared.control().slice_ns;
        if place.load(Relaxed) != slice_ns {
            place.store(slice_ns, Relaxed);
        }
        slice_ns
    }

    pub(super) fn aim(&mut self, shot: Shot) {
        if self.batch.len() == self.shared.batch() {
            self.fire();
        }
        self.batch.push(shot);
    }

    pub(super) fn aim_kicks(&mut self) {
        while let Some(cpu) = self.kicked.first() {
            self.kicked.clear(cpu);
            count(&self.talk.kicks, 1);
            self.aim(Shot { cpu, ..Shot::default() });
        }
    }

    /// Has everything carried out that was decided, and looks what has come of it.
    pub(super) fn fire(&mut self) {
        self.shared.lay(&self.batch);
        self.collect();
    }

    /// Looks what has come of the decisions that went out.
    pub(super) fn collect(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let mut batch = std::mem::take(&mut self.batch);
        self.shared.collect(&mut batch);
        count(&self.talk.batches, 1);
        for shot in &batch {
            count(&self.talk.decisions, u64::from(shot.slot != 0));
            match shot.result {
                result::DONE => {}
                result::DONE_HERE => self.gives_way = true,
                _ if shot.slot == 0 => {}
                _ => {
                    count(&self.talk.stale, 1);
                    let reason = match shot.result {
                        result::STALE => RefusalReason::NotReady,
                        _ => RefusalReason::Busy,
                    };
                    self.refused(shot.cpu, shot.slot, shot.seq, reason);
                    if shot.result == result::STALE {
                        self.look_again_at(shot);
                    }
                }
            }
        }
        batch.clear();
        self.batch = batch;
    }

    /// A task that was decided for does not wait. If no message is going to say so, the kernel runs it already: the
    /// policy hears that it sleeps, and of its waking up when it waits again.
    pub(super) fn look_again_at(&mut self, shot: &Shot) {
        let seen = self.shared.look(shot.slot);
        let task = self.tasks[shot.slot as usize].id;
        if seen.seq == shot.seq && seen.state != state::WAITS && !task.is_none() {
            let event = Event { task, runtime_ns: seen.runtime_ns, ..Event::new(EventKind::Block, seen.cpu) };
            self.deliver(&event, &[]);
        }
    }

    /// A task does not run on the CPU that it was decided for.
    pub(super) fn refused(&mut self, cpu: CpuId, slot: u32, seq: u64, reason: RefusalReason) {
        if cpu >= self.nr_cpus {
            return;
        }
        let known = &mut self.tasks[slot as usize];
        let id = known.id;
        let was_this = known.decided == Some((cpu, seq));
        // It looks again, unless it has another one by now. Also a CPU that is not online yet: its hotplug thread, cpuhp, has to run there before
        // the kernel reports it online, and may be the task that waits.
        if reason != RefusalReason::Busy && self.shared.looks(cpu) {
            self.looks(cpu);
        }
        if !was_this || id.is_none() {
            return;
        }
        self.tasks[slot as usize].decided = None;
        let event = Event { task: id, args: [reason as u64, 0], ..Event::new(EventKind::PickRefused, cpu) };
        let mut outcome = Outcome::default();
        let engine = &self.engine;
        if let Err(message) = contained(|| engine.deliver(&event, &[], &mut outcome)) {
            engine.take_out(Fault { message, cpu });
        }
        // That this CPU is kicked is for a kernel that waits for the answer.
        for kicked in outcome.kicks.iter().filter(|kicked| *kicked != cpu) {
            self.kick_one(kicked);
        }
    }
}
