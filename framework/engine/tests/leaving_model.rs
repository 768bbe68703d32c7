//! A policy that goes while a CPU handles an event of one of its tasks, and another one introduces tasks because some other policy has
//! faulted, in every order that memory allows (loom): the steps of `leave` and `has_left` in `src/coming.rs`, of `introduce` in `src/policy_slots.rs` and `meet` in `src/attach.rs`, of an event in `src/engine.rs`, and of the
//! kernel's half, by which a policy answers nothing when it has left (`hosts/kernel/core/src/module_policy.rs`) and which frees it
//! (`leave_others` in `hosts/kernel/module/policy_slots.c`).

use loom::{
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool, AtomicI32, AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
        },
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

/// Attachments to the policy that goes, and to the one that stays, which is always there.
const OLD: u32 = 0;
const NEW: u32 = 0x10;
const ATTACHMENT: u32 = 0x10;

const RUNNING: u32 = 0;
const READY: u32 = 1;
const BLOCKED: u32 = 2;

/// The step that is left out, without which the model must fail.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// The wait until events that have begun before are over.
    AGracePeriod,
    /// Tasks that do not wait are introduced before that.
    Patience,
    /// The note that the policy is leaving comes when it is seen gone.
    AnEarlyNote,
}

struct Model {
    /// The phase of the task, and its attachment.
    task: AtomicU32,
    is_there: AtomicBool,
    leaving: AtomicBool,
    answers: AtomicBool,
    is_freed: AtomicBool,
    /// How many tasks each has.
    tasks: [AtomicI32; 2],
    /// Whether an event or interrupt is under way: RCU waits for those that are, and all others see what was done before.
    events: [Mutex<bool>; 2],
}

impl Model {
    fn new(phase: u32) -> Arc<Self> {
        Arc::new(Self {
            task: AtomicU32::new(phase | OLD),
            is_there: AtomicBool::new(true),
            leaving: AtomicBool::new(false),
            answers: AtomicBool::new(true),
            is_freed: AtomicBool::new(false),
            tasks: [1, 0].map(AtomicI32::new),
            events: [false, false].map(Mutex::new),
        })
    }

    fn is_attached(&self, task: u32) -> bool {
        task & ATTACHMENT == NEW || self.is_there.load(Acquire)
    }

    fn introduce_one(&self, seen: u32) {
        let phase = if seen & !ATTACHMENT == READY { READY } else { RUNNING };
        if self.task.compare_exchange(seen, phase | NEW, Release, Relaxed).is_ok() {
            self.tasks[0].fetch_sub(1, Relaxed);
            self.tasks[1].fetch_add(1, Relaxed);
        }
    }

    fn call(&self, task: u32) {
        if task & ATTACHMENT == OLD && self.answers.load(Acquire) {
            assert!(!self.is_freed.load(Relaxed), "a policy is called whose memory is freed");
        }
    }

    /// Something happens to the task: it sleeps, or, if it waits, is picked.
    fn event(&self) {
        *self.events[0].lock().unwrap() = true;
        let mut seen = self.task.load(Acquire);
        while !self.is_attached(seen) {
            self.introduce_one(seen);
            seen = self.task.load(Acquire);
        }
        match seen & !ATTACHMENT {
            READY => {
                self.call(seen);
                let _ = self.task.compare_exchange(seen, RUNNING | seen & ATTACHMENT, Release, Relaxed);
            }
            _ => {
                self.task.store(BLOCKED | seen & ATTACHMENT, Release);
                self.call(seen);
            }
        }
    }

    fn introduce(&self, takes: impl Fn(u32) -> bool) {
        let seen = self.task.load(Acquire);
        if !self.is_attached(seen) && takes(seen & !ATTACHMENT) {
            self.introduce_one(seen);
        }
    }

    /// The interrupt that introduces tasks, on a CPU of its own.
    fn interrupt(&self) {
        *self.events[1].lock().unwrap() = true;
        let seen = self.task.load(Acquire);
        if !self.is_attached(seen) && (!self.leaving.load(Relaxed) || seen & !ATTACHMENT == READY) {
            self.introduce_one(seen);
        }
    }

    fn leave(&self, over: &[Receiver<()>], without: Without) {
        if without != Without::AnEarlyNote {
            self.leaving.store(true, Relaxed);
        }
        self.is_there.store(false, Release);
        self.leaving.store(true, Relaxed);
        self.answers.store(false, Release);
        self.introduce(|phase| phase == READY || without == Without::Patience);
        for (event, over) in self.events.iter().zip(over) {
            let is_under_way = *event.lock().unwrap();
            if is_under_way && without != Without::AGracePeriod {
                over.recv().unwrap();
            }
        }
        self.leaving.store(false, Relaxed);
        // Only an event changes its mind, and none of those that may begin now takes it for the old one's.
        while !self.is_attached(self.task.load(Acquire)) {
            self.introduce(|_| true);
        }
        self.is_freed.store(true, Relaxed);
    }
}

/// With so many other CPUs: on one there is an event, and on the second an interrupt.
fn a_policy_goes(phase: u32, cpus: usize, preemptions: Option<usize>, without: Without) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        let model = Model::new(phase);
        let (others, over): (Vec<_>, Vec<_>) = [Model::event, Model::interrupt][..cpus]
            .iter()
            .map(|does| {
                let (is_over, over): (Sender<()>, _) = channel();
                let model = model.clone();
                let other = thread::spawn(move || {
                    does(&model);
                    is_over.send(()).unwrap();
                });
                (other, over)
            })
            .unzip();
        model.leave(&over, without);
        others.into_iter().for_each(|other| other.join().unwrap());
        // loom reports messages that are not received.
        over.iter().for_each(|over| _ = over.try_recv());
        assert_eq!(model.task.load(Acquire) & ATTACHMENT, NEW, "a task has a policy that is gone");
        assert_eq!(model.tasks.each_ref().map(|tasks| tasks.load(Relaxed)), [0, 1], "a task is counted twice");
    });
}

#[test]
fn no_event_calls_a_policy_that_is_freed_and_each_task_goes_to_another_one_once() {
    for phase in [RUNNING, READY, BLOCKED] {
        a_policy_goes(phase, 1, None, Without::Nothing);
    }
}

#[test]
fn another_cpu_that_introduces_tasks_meanwhile_introduces_none_too_soon() {
    for phase in [RUNNING, READY, BLOCKED] {
        a_policy_goes(phase, 2, Some(2), Without::Nothing);
    }
}

/// The model sees what it is there for.
#[test]
#[should_panic(expected = "whose memory is freed")]
fn without_a_grace_period_one_does() {
    a_policy_goes(RUNNING, 1, None, Without::AGracePeriod);
}

#[test]
#[should_panic(expected = "is counted twice")]
fn a_task_that_does_not_wait_and_is_introduced_too_soon_is_counted_twice() {
    a_policy_goes(RUNNING, 1, None, Without::Patience);
}

#[test]
#[should_panic(expected = "is counted twice")]
fn a_note_that_comes_after_a_policy_is_seen_gone_is_missed_by_another_cpu() {
    a_policy_goes(RUNNING, 2, Some(2), Without::AnEarlyNote);
}
