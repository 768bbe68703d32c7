//! Which policies know of an idle CPU, in every order that memory and CPUs allow (loom). What the models hold: the full fences of
//! `pass_over` and `take`. They do not hold that a policy which is told of an idle CPU hears of it before that one runs something again: the set of
//! idle CPUs is a hint.

extern crate alloc;

#[expect(dead_code, reason = "wakeups_model.rs is about the rest")]
#[path = "../src/idle.rs"]
pub mod idle;
#[expect(dead_code, reason = "the engine uses the rest")]
#[path = "../src/idle_notifications.rs"]
pub mod idle_notifications;
#[expect(dead_code, reason = "wakeups_model.rs is about the rest")]
#[path = "../src/wakeups.rs"]
pub mod wakeups;

mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
}

use idle::IdleCpus;
use idle_notifications::{IdleKnown, IdleMissed};
use loom::{sync::Arc, thread};

const POLICY_SLOT: u8 = 1;

struct Model {
    idle: IdleCpus,
    missed: IdleMissed,
    told: [IdleKnown; 2],
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

impl Model {
    fn new() -> Arc<Self> {
        Arc::new(Self { idle: IdleCpus::new(2), missed: IdleMissed::default(), told: Default::default() })
    }

    /// The steps of `found_nothing`: a CPU begins to idle, and the policy was not asked.
    fn idles(&self, cpu: u32) {
        assert!(self.idle.note(cpu, true));
        self.missed.pass_over(POLICY_SLOT);
    }

    /// The steps of `tell_missed`. The CPUs that the policy is told of, a bit each.
    fn tell(&self) -> u32 {
        if !self.missed.take(POLICY_SLOT) {
            return 0;
        }
        (0..2)
            .filter(|cpu| self.idle.contains(*cpu) && self.told[*cpu as usize].tell(POLICY_SLOT))
            .map(|cpu| 1 << cpu)
            .sum()
    }
}

/// Two CPUs begin to idle, while a third tells the policy what it has missed, and once more with its next event.
#[test]
fn a_policy_hears_once_of_each_cpu_that_idles() {
    check(|| {
        let model = Model::new();
        let others = [0, 1].map(|cpu| {
            let model = model.clone();
            thread::spawn(move || model.idles(cpu))
        });
        let first = model.tell();
        others.into_iter().for_each(|other| other.join().unwrap());
        let then = model.tell();
        assert_eq!((first | then, first & then), (3, 0), "of some CPU the policy does not hear, or twice");
        assert!(!model.missed.any(POLICY_SLOT));
    });
}

/// Two CPUs tell the policy at once of one that idles, which runs something by then.
#[test]
fn a_cpu_that_runs_again_takes_back_what_was_told_once() {
    check(|| {
        let model = Model::new();
        model.idles(0);
        model.missed.pass_over(POLICY_SLOT);
        let others = [(); 2].map(|()| {
            let model = model.clone();
            thread::spawn(move || model.tell())
        });
        let told: u32 = others.into_iter().map(|other| other.join().unwrap()).sum();
        assert!(model.idle.note(0, false));
        assert_eq!((told, model.told[0].take(), model.told[0].take()), (1, POLICY_SLOT, 0));
    });
}
