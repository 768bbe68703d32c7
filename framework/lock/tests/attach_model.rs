//! sched_ext attaches while the last policy is freed, in every order that memory and CPUs allow (loom): the steps of `ekiden_do_attach` and
//! `ekiden_do_detach` in `hosts/kernel/module/calls.c`, of `free_all` and `ekiden_create_policy` in `policy_slots.c` there. The one that
//! attaches has no mutex: it looks whether there is a policy, says that it is attached, and looks once more.

use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{
            AtomicU32,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
    thread,
};

const DETACHED: u32 = 0;
const ATTACHED: u32 = 1;
const LEAVING: u32 = 2;

/// What the order of the real code is against.
#[derive(Clone, Copy, PartialEq)]
enum Planted {
    Nothing,
    /// There is no second look.
    LookOnce,
    /// That nothing is attached is said before that there is no policy.
    DetachedFirst,
    /// Who was refused says that nothing is attached, whatever there is.
    AlwaysDetaches,
}

struct Model {
    nr: AtomicU32,
    attached: AtomicU32,
    /// Whether there is an engine, which events use.
    engine: UnsafeCell<bool>,
    planted: Planted,
}

// SAFETY: the engine is changed while nothing is attached; loom finds out if that is not so.
unsafe impl Sync for Model {}

impl Model {
    /// A policy is there.
    fn new(planted: Planted) -> Arc<Self> {
        let [nr, attached] = [1, DETACHED].map(AtomicU32::new);
        Arc::new(Self { nr, attached, engine: UnsafeCell::new(true), planted })
    }

    /// Attaches, has an event, and detaches. Whether it did.
    fn attach(&self) -> bool {
        if self.nr.load(Acquire) == 0 || self.attached.compare_exchange(DETACHED, ATTACHED, AcqRel, Relaxed).is_err() {
            // As sched_ext does.
            self.detach();
            return false;
        }
        let is_there = self.planted == Planted::LookOnce || self.nr.load(Acquire) > 0;
        if is_there {
            // SAFETY: loom keeps the pointer good.
            self.engine.with(|engine| assert!(unsafe { *engine }, "an event finds no engine"));
        }
        self.detach();
        is_there
    }

    fn detach(&self) {
        if self.planted == Planted::AlwaysDetaches {
            self.attached.store(DETACHED, Release);
        } else {
            let _ = self.attached.compare_exchange(ATTACHED, DETACHED, AcqRel, Relaxed);
        }
    }

    /// With the mutex. Whether all is freed.
    fn free_all(&self) -> bool {
        if self.attached.compare_exchange(DETACHED, LEAVING, AcqRel, Relaxed).is_err() {
            return false;
        }
        // SAFETY: loom keeps the pointer good.
        self.engine.with_mut(|engine| unsafe { *engine = false });
        if self.planted == Planted::DetachedFirst {
            self.attached.store(DETACHED, Release);
        }
        self.nr.store(0, Relaxed);
        if self.planted != Planted::DetachedFirst {
            self.attached.store(DETACHED, Release);
        }
        true
    }

    /// With the mutex: the first policy of all.
    fn create(&self) {
        // SAFETY: loom keeps the pointer good.
        self.engine.with_mut(|engine| unsafe { *engine = true });
        self.nr.store(1, Release);
    }
}

/// So many attach, one after the other, while all is freed, and perhaps made anew.
fn check(attach: usize, is_made_anew: bool, preemptions: Option<usize>, planted: Planted) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        let model = Model::new(planted);
        // sched_ext has one scheduler at a time.
        let other = {
            let model = model.clone();
            thread::spawn(move || (0..attach).map(|_| model.attach()).collect::<Vec<bool>>())
        };
        let is_freed = model.free_all();
        if is_freed && is_made_anew {
            model.create();
        }
        let have = other.join().unwrap();
        assert_eq!(model.attached.load(Acquire), DETACHED, "something is attached still");
        let is_there = model.nr.load(Acquire) > 0;
        assert_eq!(is_there, !is_freed || is_made_anew);
        // The one that attaches keeps the policy, and frees it later.
        assert!(is_freed || have.contains(&true), "the policy is kept for nothing");
    });
}

#[test]
fn who_attaches_finds_an_engine_or_is_refused() {
    check(1, false, None, Planted::Nothing);
    check(1, true, None, Planted::Nothing);
}

#[test]
fn one_that_attaches_after_another_finds_an_engine_or_is_refused() {
    check(2, false, None, Planted::Nothing);
    check(2, true, None, Planted::Nothing);
}

/// The model sees what it is there for.
#[test]
#[should_panic(expected = "an event finds no engine")]
fn with_one_look_one_attaches_to_what_was_freed() {
    check(1, false, None, Planted::LookOnce);
}

#[test]
#[should_panic]
fn one_that_was_refused_ends_what_frees_all_if_it_detaches_in_any_case() {
    check(2, false, None, Planted::AlwaysDetaches);
}

#[test]
#[should_panic(expected = "an event finds no engine")]
fn what_says_that_nothing_is_attached_comes_last() {
    check(1, false, None, Planted::DetachedFirst);
}
