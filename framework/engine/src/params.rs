//! Parameters that somebody has set for a task: kept here, as the policy that they are for may not know of the task yet, or may
//! have a successor to which the task is new.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering, Ordering::Relaxed, fence};

use ekiden::abi::{RawParams, Status, TASK_PARAMS_MAX};
use ekiden::{Call, Policy, TaskId};
use zerocopy::{FromBytes, IntoBytes};

use crate::engine::{Engine, Handling};
use crate::state::Phase;
use crate::table::Slot;

/// Those of one task. All zeros for none.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    declared: AtomicU64,
    values: [AtomicU64; TASK_PARAMS_MAX],
}

impl Kept {
    pub(crate) fn for_tasks(max_tasks: u32) -> Vec<Self> {
        let mut kept = Vec::new();
        kept.resize_with(max_tasks as usize, Self::default);
        kept
    }

    fn get(&self) -> RawParams {
        let values = core::array::from_fn(|i| self.values[i].load(Relaxed));
        RawParams { declared: self.declared.load(Relaxed), values }
    }

    fn set(&self, params: &RawParams) {
        self.declared.store(params.declared, Relaxed);
        self.values.iter().zip(params.values).for_each(|(kept, value)| kept.store(value, Relaxed));
    }
}

impl<P: Policy> Engine<P> {
    /// A new task has the parameters of the one that it inherits its policy from, and else none.
    pub(crate) fn first_params(&self, task: TaskId, from: Option<TaskId>) {
        let params = from.map_or_else(RawParams::default, |from| self.params[from.slot as usize].get());
        self.params[task.slot as usize].set(&params);
    }

    /// Somebody sets parameters for a task. Its policy hears of it at once if it knows of the task, and else when it does.
    pub(crate) fn set_params(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot, payload: &[u8]) {
        let Ok(params) = RawParams::read_from_bytes(payload) else {
            handling.outcome.status = Status::Invalid as i32;
            return;
        };
        self.params[task.slot as usize].set(&params);
        // The task may have died meanwhile, and another one may have its slot now.
        if self.tasks.get(task).is_none() {
            self.params[task.slot as usize].set(&RawParams::default());
            handling.outcome.status = Status::Invalid as i32;
            return;
        }
        // Either the one who tells of a new task sees the parameters, or it is seen here that it has told.
        fence(Ordering::SeqCst);
        let state = slot.state();
        let knows = state.phase() != Phase::New && !state.is_unheard();
        if knows && slot.choice() == state.seat() {
            self.tell_params(handling, task, slot);
        }
    }

    /// A policy has just heard of the task.
    #[cold]
    pub(crate) fn params_of_new(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) {
        fence(Ordering::SeqCst);
        if self.params[task.slot as usize].declared.load(Relaxed) != 0 {
            self.tell_params(handling, task, slot);
        }
    }

    fn tell_params(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) {
        let seat = self.seat_of::<false>(slot.state());
        let params = self.params[task.slot as usize].get();
        // They may be for another policy, which the task is to have later, or had before.
        if seat.calls.has(Call::TaskParams) && seat.params_declared == params.declared {
            let message = self.message(handling, Call::TaskParams, task, slot);
            self.call(handling, seat, &message, params.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::{boxed::Box, sync::Arc};

    use ekiden::abi::{Event, EventKind, Outcome};
    use ekiden::{Adapter, CpuId, CpuMask, Env, Group, Host, Topology};
    use ekiden_policies::Fifo;

    use super::*;
    use crate::IdleCpus;

    struct Anywhere;

    impl Host for Anywhere {
        fn now_ns(&self) -> u64 {
            0
        }

        fn may_run(&self, _: TaskId, _: CpuId) -> bool {
            true
        }

        fn allowed_cpus(&self, _: TaskId, cpus: &mut CpuMask) {
            *cpus = CpuMask::first_n(1);
        }

        fn idle_cpus(&self, _: &mut CpuMask) {}

        fn group(&self, _: TaskId) -> Group {
            Group::ROOT
        }
    }

    /// The caller has found the slot before the task died.
    #[test]
    fn parameters_for_a_task_that_has_died_do_not_fall_to_the_next_one_in_its_slot() {
        let env = Env::new(Topology::flat(1), 2, &[], "").unwrap();
        let (host, idle) = (Arc::new(Anywhere), Arc::new(IdleCpus::new(1)));
        let engine: Engine = Engine::new(Box::new(Adapter::<Fifo>::new(&env, host.clone())), host, idle, 1, 2);
        let deliver = |event: &Event| {
            let mut outcome = Outcome::default();
            // The name of a new task.
            engine.deliver(event, &event.args[0].to_ne_bytes(), &mut outcome);
            outcome.task
        };
        let come = || deliver(&Event { args: [7, 7], ..Event::new(EventKind::TaskInit, 0) });
        let old = come();
        let slot = engine.tasks.get(old).unwrap();
        deliver(&Event { task: old, ..Event::new(EventKind::TaskExit, 0) });
        let new = come();
        assert_eq!(new.slot, old.slot);
        let (event, mut outcome) = (Event::default(), Outcome::default());
        let params = RawParams { declared: 1, values: [3; TASK_PARAMS_MAX] };
        engine.set_params(&mut Handling { event: &event, outcome: &mut outcome }, old, slot, params.as_bytes());
        assert_eq!((outcome.status, engine.params[new.slot as usize].get().declared), (Status::Invalid as i32, 0));
    }
}
