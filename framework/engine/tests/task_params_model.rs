//! Parameters that are set for a task while its policy hears of it, or while it dies: in every order that memory and CPUs allow (loom).
//! Here the lock of what is kept gives the order. What the models hold is what comes first: a caller that sets
//! parameters looks after that whether the policy knows of the task; a CPU that tells the policy of it notes that in
//! the state, Release or not, and looks for parameters then; and an entry is freed once, by the last that needs it.

extern crate alloc;

#[expect(dead_code, reason = "the engine uses the rest")]
#[path = "../src/state.rs"]
pub mod state;
#[expect(dead_code, reason = "table_model.rs is about it")]
#[path = "../src/table.rs"]
pub mod table;
#[path = "../src/task_params.rs"]
pub mod task_params;
#[expect(dead_code, reason = "wakeups_model.rs is about it")]
#[path = "../src/wakeups.rs"]
pub mod wakeups;

mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
}

#[path = "model/groups.rs"]
mod groups;

#[path = "model/policy_slots.rs"]
mod policy_slots;

#[path = "model/lock.rs"]
mod lock;

use ekiden::TaskId;
use ekiden_host::abi::RawParams;
use loom::{sync::Arc, thread};
use state::Phase;
use table::TaskTable;
use task_params::{Kept, Telling};

struct Model {
    tasks: TaskTable,
    kept: Vec<Kept>,
}

fn params(declared: u64) -> RawParams {
    RawParams { declared, ..RawParams::default() }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

impl Model {
    /// A table with one task, which has no parameters.
    fn new() -> (Arc<Self>, TaskId) {
        let model = Self { tasks: TaskTable::new(1), kept: Kept::for_tasks(1) };
        let task = model.tasks.insert(1, 1).unwrap();
        model.kept[0].begin(task, RawParams::default());
        (Arc::new(model), task)
    }

    /// The steps of `set_params`. The parameters that the policy is told, if the task is there still.
    fn set(&self, task: TaskId, declared: u64) -> Option<u64> {
        if !self.kept[0].set(task, params(declared)) {
            return None;
        }
        let _telling = Telling::of(&self.kept[0], &self.tasks, task);
        let slot = self.tasks.get(task)?;
        (slot.state().phase() != Phase::New).then(|| self.kept[0].get(task).declared)
    }

    /// The policy hears of the task: the steps of `enqueue` and `params_of_new`. The parameters that it is told.
    fn tell(&self, task: TaskId) -> u64 {
        let slot = self.tasks.get(task).unwrap();
        slot.set_state(slot.state().issue(Phase::Ready, 0));
        self.kept[0].get(task).declared
    }

    /// The steps of `forget_task`.
    fn die(&self, task: TaskId) {
        if self.tasks.remove(task) && self.kept[0].end() {
            self.tasks.free(task.slot);
        }
    }
}

/// Two CPUs set parameters, while the policy hears of the task.
#[test]
fn a_policy_hears_of_the_newest_parameters_last() {
    check(|| {
        let (model, task) = Model::new();
        let others = [5, 6].map(|declared| {
            let model = model.clone();
            thread::spawn(move || model.set(task, declared))
        });
        let new = model.tell(task);
        let told = others.map(|other| other.join().unwrap());
        let newest = model.kept[0].get(task).declared;
        assert!(new == newest || told.contains(&Some(newest)), "the policy does not know what was set");
    });
}

/// A task dies while two CPUs set parameters for it; the entry is free once they are done, and then only once.
#[test]
fn the_slot_of_a_task_that_dies_is_freed_once() {
    check(|| {
        let (model, task) = Model::new();
        let others = [5, 6].map(|declared| {
            let model = model.clone();
            thread::spawn(move || model.set(task, declared))
        });
        model.die(task);
        // Another task may come as soon as no CPU tells of this one.
        if let Some(next) = model.tasks.insert(2, 2) {
            model.kept[0].begin(next, RawParams::default());
            others.into_iter().for_each(|other| _ = other.join().unwrap());
            assert_eq!(model.kept[0].get(next).declared, 0, "the next task has the parameters of the one before");
            return;
        }
        others.into_iter().for_each(|other| _ = other.join().unwrap());
        assert!(model.tasks.insert(2, 2).is_some(), "the entry is lost");
        assert!(model.tasks.insert(3, 3).is_none(), "the entry was freed twice");
    });
}
