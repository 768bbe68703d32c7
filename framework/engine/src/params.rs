//! Parameters that were set for a task: kept here, as the policy that they are for may not know of the task yet, or may
//! have a successor to which the task is new.

use ekiden::{Call, TaskId};
use ekiden_host::Policy;
use ekiden_host::abi::{RawParams, Status};
use zerocopy::{FromBytes, IntoBytes};

use crate::conditions::SEVERAL;
use crate::engine::{Engine, Handling};
use crate::state::Phase;
use crate::table::TaskEntry;
use crate::task_params::{Kept, Telling};

impl<P: Policy> Engine<P> {
    fn kept(&self, task: TaskId) -> &Kept {
        &self.params[task.slot as usize]
    }

    /// A new task has the parameters of the one that it inherits its policy from, and else none.
    pub(crate) fn first_params(&self, task: TaskId, from: Option<TaskId>) {
        let params = from.map_or_else(RawParams::default, |from| self.kept(from).get(from));
        self.kept(task).begin(task, params);
    }

    /// A task has died. Another one may have its entry once no policy is being told of parameters of this one.
    pub(crate) fn forget_task(&self, task: TaskId) {
        if self.tasks.remove(task) && self.kept(task).end() {
            self.tasks.free(task.slot);
        }
    }

    /// Sets parameters for a task. Its policy is told at once if it knows of the task, and otherwise when it does.
    pub(crate) fn set_params(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry, payload: &[u8]) {
        let Ok(params) = RawParams::read_from_bytes(payload) else {
            handling.outcome.status = Status::Invalid as i32;
            return;
        };
        // The task may have died meanwhile, whether another one has its entry by now or not.
        let kept = self.kept(task);
        if !kept.set(task, params) {
            handling.outcome.status = Status::Invalid as i32;
            return;
        }
        let _telling = Telling::of(kept, &self.tasks, task);
        if self.tasks.get(task).is_none() {
            handling.outcome.status = Status::Invalid as i32;
            return;
        }
        // A CPU that tells the policy of a new task looks for parameters after that. If it has done so before they were set, it is
        // seen here that it has told, as both have had the lock.
        let state = entry.state();
        let knows = state.phase() != Phase::New && !state.is_unheard();
        if knows && entry.choice() == state.policy_slot() {
            self.tell_params(handling, task, entry);
        }
    }

    /// A policy has just heard of the task.
    #[cold]
    pub(crate) fn params_of_new(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry) {
        self.tell_params(handling, task, entry);
    }

    fn tell_params(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry) {
        let policy_slot = self.policy_slot_of::<SEVERAL>(entry.state());
        let params = self.kept(task).get(task);
        // They may be for another policy, which the task is to have later, or had before.
        if params.declared != 0
            && policy_slot.calls().has(Call::TaskParams)
            && policy_slot.params_declared() == params.declared
        {
            let message = self.message(handling, Call::TaskParams, task, entry);
            self.call(handling, policy_slot, &message, params.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::{boxed::Box, sync::Arc};

    use ekiden::{CpuId, CpuMask, Env, Topology};
    use ekiden_host::abi::{Event, EventKind, Outcome, TASK_PARAMS_MAX};
    use ekiden_host::{Adapter, Host};
    use ekiden_policies::Fifo;

    use super::*;
    use crate::{EngineHost, IdleCpus};

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
    }

    impl EngineHost for Anywhere {}

    /// The caller has found the entry before the task died.
    #[test]
    fn parameters_for_a_dead_task_do_nothing_to_the_next_one_in_its_slot() {
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
        let entry = &engine.tasks.entries[come().slot as usize];
        let set = |task: TaskId, value: u64| {
            let (event, mut outcome) = (Event::default(), Outcome::default());
            let params = RawParams { declared: 1, values: [value; TASK_PARAMS_MAX] };
            engine.set_params(&mut Handling { event: &event, outcome: &mut outcome }, task, entry, params.as_bytes());
            outcome.status
        };
        let (old, _) = engine.tasks.at(0).unwrap();
        deliver(&Event { task: old, ..Event::new(EventKind::TaskExit, 0) });
        assert_eq!(set(old, 3), Status::Invalid as i32, "the entry is free");
        let new = come();
        assert_eq!(new.slot, old.slot);
        assert_eq!((set(old, 3), engine.kept(new).get(new).declared), (Status::Invalid as i32, 0));
        assert_eq!(set(new, 5), Status::Done as i32);
        assert_eq!((set(old, 3), engine.kept(new).get(new).values[0]), (Status::Invalid as i32, 5));
        assert_eq!(engine.kept(new).get(old), RawParams::default());
    }
}
