//! A policy that comes beside one that was alone, while one CPU wakes up a task and another looks for work, in every order that memory
//! allows (loom): the steps of `begin_several` and `come` in `src/coming.rs`, of `deliver` in `src/engine.rs` and of `pick_of_several` in
//! `src/turns.rs`. As long as a policy is alone no CPU counts what it hears.

use loom::{
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
        },
        mpsc::channel,
    },
    thread,
};

struct Model {
    single: AtomicBool,
    /// How many policies are asked.
    policies: AtomicU32,
    heard: AtomicU32,
    /// Whether the first policy has the task.
    task: AtomicBool,
    /// What it had heard when it had nothing for the CPU that looks.
    nothing: AtomicU32,
}

impl Model {
    fn new() -> Arc<Self> {
        let [single, task] = [true, false].map(AtomicBool::new);
        let [policies, heard, nothing] = [1, 1, 0].map(AtomicU32::new);
        Arc::new(Self { single, policies, heard, task, nothing })
    }

    /// A CPU hands a task to the policy, and will have the other one look.
    fn wake(&self) {
        let single = self.single.load(Acquire);
        self.task.store(true, Release);
        if !single {
            self.heard.fetch_add(1, Release);
        }
    }

    /// Whether the CPU finds the task.
    fn pick(&self) -> bool {
        if self.single.load(Acquire) {
            return self.task.load(Acquire);
        }
        let is_only = self.policies.load(Acquire) == 1;
        let heard = self.heard.load(Acquire);
        if heard == self.nothing.load(Relaxed) && !is_only {
            return false;
        }
        let is_found = self.task.load(Acquire);
        if !is_found {
            self.nothing.store(heard, Relaxed);
        }
        is_found
    }
}

fn a_policy_comes(is_graceful: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let model = Model::new();
        // An interrupt to the CPU that looks; and to the one that waits for a grace period, that an event is over.
        let ((kick, kicked), (is_over, over)) = (channel(), channel());
        let wakes = thread::spawn({
            let (model, is_over) = (model.clone(), is_over.clone());
            move || {
                model.wake();
                kick.send(()).unwrap();
                is_over.send(()).unwrap();
            }
        });
        let looks = thread::spawn({
            let model = model.clone();
            move || {
                let is_found = model.pick();
                is_over.send(()).unwrap();
                kicked.recv().unwrap();
                is_found || model.pick()
            }
        });
        model.single.store(false, Release);
        if is_graceful {
            (0..2).for_each(|_| over.recv().unwrap());
        }
        model.heard.fetch_add(1, Release);
        model.policies.store(2, Release);
        wakes.join().unwrap();
        let is_found = looks.join().unwrap();
        if !is_graceful {
            // loom reports messages that are not received.
            (0..2).for_each(|_| over.recv().unwrap());
        }
        assert!(is_found, "the CPU does not look for the task that has it look");
    });
}

#[test]
fn no_task_is_overlooked_when_a_policy_comes() {
    a_policy_comes(true);
}

/// The model sees what it is there for.
#[test]
#[should_panic(expected = "does not look for the task")]
fn without_a_grace_period_one_is() {
    a_policy_comes(false);
}
