//! A version that has taken over from another kind of policy hears of a task, by the scan over all tasks and by an event of the task at once, in every
//! order that memory allows (loom): the steps of `start_over` and `introduce` in `src/policy_slots.rs`, of `introduce_one` in `src/attach.rs` and of `enqueue`
//! in `src/engine.rs`. The version is told of the task once, and has its newest token. All CPUs meet before: so the epoch has changed for all of
//! them. One bit tells epochs apart, as all tasks have been introduced before the next one begins.

use loom::{
    sync::{
        Arc,
        atomic::{
            AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
};

/// A state is a phase, the epoch in which its policy has heard of the task, and the number of its newest token.
const BLOCKED: u32 = 0;
const NEW: u32 = 1;
const READY: u32 = 2;
const PHASE: u32 = 3;
const EPOCH: u32 = 4;
const TOKEN: u32 = 8;

/// How a task gets another state.
#[derive(Clone, Copy, PartialEq)]
enum Written {
    IfItIsAsItWasSeen,
    Always,
}

struct Model {
    task: AtomicU32,
    epoch: AtomicU32,
    /// How often the version was told of the task, and the newest token that it got.
    told: AtomicU32,
    token: AtomicU32,
    written: Written,
}

impl Model {
    /// The epoch has just changed.
    fn new(phase: u32, written: Written) -> Arc<Self> {
        let [epoch, told, token] = [EPOCH, 0, 0].map(AtomicU32::new);
        Arc::new(Self { task: AtomicU32::new(phase), epoch, told, token, written })
    }

    fn is_attached(&self, seen: u32) -> bool {
        seen & EPOCH == self.epoch.load(Acquire)
    }

    fn try_state(&self, seen: u32, state: u32) -> bool {
        if self.written == Written::Always {
            self.task.store(state, Release);
            return true;
        }
        self.task.compare_exchange(seen, state, Release, Relaxed).is_ok()
    }

    fn tell(&self, state: u32) {
        self.told.fetch_add(1, Relaxed);
        self.token.fetch_max(state / TOKEN, Relaxed);
    }

    fn introduce_one(&self, seen: u32) {
        let (epoch, waits) = (self.epoch.load(Acquire), seen & PHASE == READY);
        let state = if waits { (seen & !EPOCH | epoch) + TOKEN } else { seen & !(PHASE | EPOCH) | NEW | epoch };
        if self.try_state(seen, state) && waits {
            self.tell(state);
        }
    }

    fn attach(&self) -> u32 {
        loop {
            let seen = self.task.load(Acquire);
            if self.is_attached(seen) {
                return seen;
            }
            self.introduce_one(seen);
        }
    }

    /// The task comes to wait, if it does not.
    fn enqueue(&self) {
        let seen = self.attach();
        if seen & PHASE == READY {
            return;
        }
        let state = (seen & !PHASE | READY) + TOKEN;
        if self.try_state(seen, state) {
            self.tell(state);
        }
    }
}

/// Beside the scan there are events on so many CPUs: one has the task wait, the others only look at it.
fn a_version_hears_of_a_task(phase: u32, cpus: usize, preemptions: Option<usize>, written: Written) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        let model = Model::new(phase, written);
        let events: Vec<_> = (0..cpus)
            .map(|cpu| {
                let model = model.clone();
                thread::spawn(move || if cpu == 0 { model.enqueue() } else { _ = model.attach() })
            })
            .collect();
        model.attach();
        events.into_iter().for_each(|event| event.join().unwrap());
        let state = model.task.load(Acquire);
        assert_eq!((state & PHASE, state & EPOCH), (READY, EPOCH), "the task does not wait with the version that runs");
        assert_eq!(model.told.load(Relaxed), 1, "how often the version is told of the task");
        assert_eq!(model.token.load(Relaxed), state / TOKEN, "the token that it has, and the good one");
    });
}

#[test]
fn a_version_is_told_of_each_task_once_by_the_scan_or_by_an_event() {
    for phase in [BLOCKED, NEW, READY] {
        a_version_hears_of_a_task(phase, 1, None, Written::IfItIsAsItWasSeen);
    }
}

#[test]
fn a_version_is_told_of_each_task_once_by_the_scan_or_by_one_of_two_events() {
    for phase in [BLOCKED, NEW, READY] {
        a_version_hears_of_a_task(phase, 2, Some(3), Written::IfItIsAsItWasSeen);
    }
}

/// The model sees what it is there for.
#[test]
#[should_panic(expected = "how often the version is told")]
fn a_state_that_is_written_whatever_it_was_has_the_version_told_twice() {
    a_version_hears_of_a_task(READY, 1, None, Written::Always);
}

/// Two versions take over, one after the other: whether the task passes for one of which the second has heard.
fn two_take_over(is_introduced_between: bool) -> bool {
    let model = Model::new(BLOCKED, Written::IfItIsAsItWasSeen);
    if is_introduced_between {
        model.attach();
    }
    model.epoch.fetch_xor(EPOCH, Release);
    model.is_attached(model.task.load(Acquire))
}

#[test]
fn one_bit_is_enough_if_all_tasks_are_introduced_before_the_next_version_comes() {
    loom::model(|| {
        assert!(!two_take_over(true));
        assert!(two_take_over(false), "the task of two epochs ago passes for one that is known");
    });
}
