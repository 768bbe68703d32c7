//! The cause is kept and not the consequence, in every order that memory and CPUs allow (loom): `framework/ekiden/src/poison.rs` itself, and the steps of
//! `leave_with` in `hosts/kernel/policy/src/lib.rs`, of `give_first` and `ekiden_c_policy_faulted` in `hosts/kernel/module/calls.c`. A call that
//! faults because it has seen the poison finds a reason that is complete, is the first one and is no consequence.
//!
//! C orders what it does after the look at a pointer by the address that it looks at; loom knows no such order, and the models have Acquire
//! there. An exchange of the kernel's is more than the AcqRel that they have.

#[expect(dead_code, reason = "no other policy comes in the model")]
#[path = "../../ekiden/src/poison.rs"]
pub mod poison;

mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
}

use atomics::{
    AtomicBool, AtomicU32, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use loom::{cell::UnsafeCell, sync::Arc, thread};
use poison::Poison;

/// No reason: the null pointer.
const NONE: usize = 0;

/// What a call says that ends because of another one, should it be asked.
const CONSEQUENCE: u32 = 99;

/// What the order of the real code is against.
#[derive(Clone, Copy, PartialEq)]
enum Planted {
    Nothing,
    /// Poison comes before the reason.
    PoisonFirst,
    /// A pointer is there before its text.
    PointerFirst,
    /// The last reason replaces the first.
    Stored,
}

struct Model {
    poison: Poison,
    /// The pointer to the text of one of the CPUs, counted from 1.
    reason: AtomicUsize,
    /// Room for the text of each CPU.
    words: [UnsafeCell<u32>; 3],
    /// The reason for which the policy was taken out.
    fault: AtomicUsize,
    /// The CPUs whose reason was the first.
    firsts: AtomicU32,
    planted: Planted,
}

// SAFETY: the room of a CPU is written by that CPU before its pointer is there; loom finds out if that is not so.
unsafe impl Sync for Model {}

impl Model {
    fn new(planted: Planted) -> Arc<Self> {
        Arc::new(Self {
            poison: Poison { is_set: AtomicBool::new(false) },
            reason: AtomicUsize::new(NONE),
            words: [0; 3].map(UnsafeCell::new),
            fault: AtomicUsize::new(NONE),
            firsts: AtomicU32::new(0),
            planted,
        })
    }

    /// The steps of `give_first`.
    fn give_first(&self, cpu: usize, text: u32) {
        if self.reason.load(Acquire) != NONE {
            return;
        }
        // SAFETY: loom keeps the pointer good.
        let set_text = || self.words[cpu].with_mut(|words| unsafe { *words = text });
        if self.planted != Planted::PointerFirst {
            set_text();
        }
        if self.planted == Planted::Stored {
            self.reason.store(cpu + 1, Release);
            self.firsts.fetch_add(1, Relaxed);
        } else if self.reason.compare_exchange(NONE, cpu + 1, AcqRel, Acquire).is_ok() {
            self.firsts.fetch_add(1, Relaxed);
        }
        if self.planted == Planted::PointerFirst {
            set_text();
        }
    }

    fn text(&self, reason: usize) -> u32 {
        assert_ne!(reason, NONE, "a call ended because of a fault, and no reason is there");
        // SAFETY: loom keeps the pointer good.
        self.words[reason - 1].with(|words| unsafe { *words })
    }

    /// The steps of `leave_with`. What the policy is taken out for, as this CPU hears it.
    fn leave(&self, cpu: usize, text: u32) -> u32 {
        match self.planted {
            Planted::PoisonFirst if !self.poison.is_set() => {
                self.poison.set();
                self.give_first(cpu, text);
            }
            _ => self.poison.panicked(|| self.give_first(cpu, text)),
        }
        // The steps of `ekiden_c_policy_faulted`: whichever CPU comes first.
        let reason = self.reason.load(Acquire);
        let _ = self.fault.compare_exchange(NONE, reason, AcqRel, Acquire);
        self.text(self.fault.load(Acquire))
    }

    /// A call that waits, and looks so often. What it hears if it ends because of the poison.
    fn wait(&self, cpu: usize, looks: usize) -> Option<u32> {
        for _ in 0..looks {
            if self.poison.is_set() {
                return Some(self.leave(cpu, CONSEQUENCE));
            }
            thread::yield_now();
        }
        None
    }
}

/// Calls fault for a reason of their own, each on a CPU, and others wait there.
fn check(faults: usize, waiters: usize, preemptions: Option<usize>, planted: Planted) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        let model = Model::new(planted);
        let call = |cpu: usize| {
            let model = model.clone();
            move || if cpu < faults { Some(model.leave(cpu, 1 + cpu as u32)) } else { model.wait(cpu, 2) }
        };
        let others: Vec<_> = (1..faults + waiters).map(|cpu| thread::spawn(call(cpu))).collect();
        let mut heard = vec![call(0)()];
        heard.extend(others.into_iter().map(|other| other.join().unwrap()));
        let first = model.text(model.reason.load(Acquire));
        assert!((1..=faults as u32).contains(&first), "a consequence is kept as the reason");
        assert_eq!(model.firsts.load(Relaxed), 1, "the first reason did not stay");
        assert!(heard.into_iter().flatten().all(|text| text == first), "a CPU has heard of another reason");
    });
}

#[test]
fn a_call_that_ends_because_of_a_fault_finds_its_reason() {
    check(1, 1, None, Planted::Nothing);
}

#[test]
fn two_calls_that_end_because_of_a_fault_find_its_reason() {
    check(1, 2, Some(3), Planted::Nothing);
}

#[test]
fn of_two_faults_at_once_the_first_is_the_reason() {
    check(2, 0, None, Planted::Nothing);
    check(2, 1, Some(2), Planted::Nothing);
}

/// The model sees what it is there for.
#[test]
#[should_panic(expected = "no reason is there")]
fn poison_before_the_reason_has_calls_end_without_one() {
    check(1, 1, None, Planted::PoisonFirst);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_pointer_before_its_text_shows_half_a_reason() {
    check(2, 0, None, Planted::PointerFirst);
}

#[test]
#[should_panic(expected = "the first reason did not stay")]
fn a_reason_that_is_stored_replaces_the_first() {
    check(2, 0, None, Planted::Stored);
}
