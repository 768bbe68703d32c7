//! Policies that fault on several CPUs at once, in every order that memory allows (loom): the steps of `take_out_of` and
//! `find_default` in `src/policy_slots.rs`.

use loom::{
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicU32,
            Ordering::{Acquire, Relaxed, Release, SeqCst},
            fence,
        },
    },
    thread,
};

const NOWHERE: u32 = 0;

struct Model {
    /// Where each policy of the model is.
    homes: Vec<AtomicU32>,
    reasons: [Mutex<Option<usize>>; 2],
    default: AtomicU32,
    faulted: AtomicU32,
}

impl Model {
    fn new() -> Arc<Self> {
        Self::with(2)
    }

    fn with(policies: u32) -> Arc<Self> {
        Arc::new(Self {
            homes: (1..=policies).map(AtomicU32::new).collect(),
            reasons: [None, None].map(Mutex::new),
            default: AtomicU32::new(0),
            faulted: AtomicU32::new(0),
        })
    }

    fn is_taken(&self, policy_slot: usize) -> bool {
        self.homes[policy_slot].load(Acquire) != NOWHERE
    }

    /// On this CPU a policy faults.
    fn take_out(&self, policy_slot: usize, cpu: usize, is_fenced: bool) {
        if self.homes[policy_slot].swap(NOWHERE, Release) == NOWHERE {
            return;
        }
        *self.reasons[policy_slot].lock().unwrap() = Some(cpu);
        if is_fenced {
            fence(SeqCst);
        }
        self.find_default(is_fenced);
    }

    fn find_default(&self, looks_again: bool) {
        while !self.is_taken(self.default.load(Relaxed) as usize) {
            let Some(policy_slot) = (0..self.homes.len()).find(|policy_slot| self.is_taken(*policy_slot)) else {
                return self.faulted.store(1, Release);
            };
            self.default.store(policy_slot as u32, Relaxed);
            if !looks_again {
                return;
            }
            fence(SeqCst);
        }
    }
}

fn two_policies_fault(is_fenced: bool) {
    loom::model(move || {
        let model = Model::new();
        let other = thread::spawn({
            let model = model.clone();
            move || model.take_out(1, 1, is_fenced)
        });
        model.take_out(0, 0, is_fenced);
        other.join().unwrap();
        assert_eq!(model.faulted.load(Acquire), 1, "no policy is left, and the engine does not know it");
    });
}

#[test]
fn the_last_two_policies_fault_at_once() {
    two_policies_fault(true);
}

/// The model sees what it is there for.
#[test]
#[should_panic(expected = "the engine does not know it")]
fn without_the_fence_each_believes_in_the_other() {
    two_policies_fault(false);
}

#[test]
fn one_policy_faults_on_two_cpus() {
    loom::model(|| {
        let model = Model::new();
        let other = thread::spawn({
            let model = model.clone();
            move || model.take_out(0, 1, true)
        });
        model.take_out(0, 0, true);
        other.join().unwrap();
        assert!(model.reasons[0].lock().unwrap().is_some());
        assert!(model.is_taken(model.default.load(Relaxed) as usize), "the default policy has faulted");
        assert_eq!(model.faulted.load(Acquire), 0);
    });
}

fn the_default_one_and_the_next_fault(looks_again: bool) {
    loom::model(move || {
        let model = Model::with(3);
        let faults = |policy_slot: usize| {
            let model = model.clone();
            move || {
                model.homes[policy_slot].swap(NOWHERE, Release);
                fence(SeqCst);
                model.find_default(looks_again);
            }
        };
        let other = thread::spawn(faults(1));
        faults(0)();
        other.join().unwrap();
        assert_eq!(model.default.load(Relaxed), 2, "the default policy has faulted");
        assert_eq!(model.faulted.load(Acquire), 0);
    });
}

#[test]
fn two_of_three_policies_fault_at_once() {
    the_default_one_and_the_next_fault(true);
}

#[test]
#[should_panic(expected = "the default policy has faulted")]
fn without_another_look_the_next_one_is_chosen_that_has_faulted_meanwhile() {
    the_default_one_and_the_next_fault(false);
}
