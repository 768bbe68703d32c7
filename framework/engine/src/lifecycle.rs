//! Tasks that come and go, and CPUs that leave.

use core::sync::atomic::Ordering::Relaxed;

use ekiden::{Call, TaskId};
use ekiden_host::Policy;
use ekiden_host::abi::{Event, Status};
use zerocopy::FromBytes;

use crate::conditions::SEVERAL;
use crate::engine::{Engine, Handling};
use crate::state::{Phase, Transition};
use crate::table::TaskEntry;

impl<P: Policy> Engine<P> {
    pub(crate) fn task_init(&self, handling: &mut Handling<'_>, payload: &[u8]) {
        let Ok(host_task) = u64::read_from_bytes(payload) else {
            handling.outcome.status = Status::Invalid as i32;
            return;
        };
        let task = self.tasks.insert(host_task, handling.event.args[1] as u32);
        self.note_beyond(handling.event, task.is_some());
        match task {
            Some(task) => {
                if let Some(entry) = self.tasks.get(task) {
                    self.first_choice(handling, task, entry);
                }
                handling.outcome.task = task;
            }
            None => handling.outcome.status = Status::Full as i32,
        }
    }

    pub(crate) fn task_enable(&self, handling: &mut Handling<'_>, _task: TaskId, entry: &TaskEntry) {
        self.read_nice(handling.event, entry);
        // What it ran before is not charged.
        entry.runtime_ns.store(handling.event.runtime_ns, Relaxed);
        self.transit(handling.event.cpu, entry, entry.state(), Transition::Enable);
        entry.set_state(entry.state().in_phase(Phase::New));
    }

    pub(crate) fn task_disable(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry) {
        let mut seen = entry.state();
        self.transit(handling.event.cpu, entry, seen, Transition::Depart);
        // Its token, wherever it is, is worthless from here on. If it waits it may just be introduced to a policy, which is to know that it is gone.
        while !entry.try_state(seen, seen.issue(Phase::New, seen.cpu())) {
            seen = entry.state();
        }
        self.take_back(handling, self.policy_slot_of::<SEVERAL>(seen), task, entry);
        self.leaves(entry);
        self.leave_groups(handling, task, entry);
        self.forget_task(task);
    }

    pub(crate) fn task_exit(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry) {
        self.transit(handling.event.cpu, entry, entry.state(), Transition::Depart);
        let policy_slot = self.policy_slot_of::<SEVERAL>(entry.state());
        if policy_slot.calls().has(Call::TaskDead) {
            let message = self.message(handling, Call::TaskDead, task, entry);
            self.call(handling, policy_slot, &message, &[]);
        }
        self.leaves(entry);
        self.leave_groups(handling, task, entry);
        self.forget_task(task);
    }

    /// A CPU leaves. The kernel moves what it has there, but a task that `balance` brought may still be elsewhere for
    /// the kernel, and no CPU would ask for it here again: such tasks go to a CPU that stays.
    pub(crate) fn cpu_offline(&self, handling: &mut Handling<'_>) {
        let leaving = handling.event.cpu;
        self.owe_none(leaving);
        if let Some(task) = self.idle.was_told(leaving) {
            self.pass_on(handling, leaving, task, TaskId::NONE);
        }
        self.tell_all(handling, Call::CpuOffline, leaving);
        for view in self.tasks.iter() {
            if view.state.phase() != Phase::Ready || view.state.cpu() != leaving {
                continue;
            }
            let stays = (0..self.nr_cpus()).find(|cpu| *cpu != leaving && self.host.may_run(view.id, *cpu));
            let (Some(cpu), Some(entry)) = (stays, self.tasks.get(view.id)) else { continue };
            if self.move_to(handling, view.id, entry, view.state, cpu, Phase::Ready) {
                handling.outcome.kicks.add(cpu);
            }
        }
    }

    pub(crate) fn nice(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry) {
        self.read_nice(handling.event, entry);
        self.reweigh_in_group(task, entry);
        self.tell_about(handling, Call::TaskPrioChanged, task, entry);
    }

    pub(crate) fn read_nice(&self, event: &Event, entry: &TaskEntry) {
        entry.set_nice(event.args[0] as i32, event.args[1] != 0);
    }
}
