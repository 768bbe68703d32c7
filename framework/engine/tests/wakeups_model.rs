//! No wake-up is lost between two CPUs, in whatever order memory and CPUs do things (loom).

extern crate alloc;

#[path = "../src/idle.rs"]
pub mod idle;
#[path = "../src/wakeups.rs"]
pub mod wakeups;

mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

use atomics::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Release},
};
use ekiden::TaskId;
use idle::IdleCpus;
use loom::{sync::Arc, thread};
use wakeups::Wish;

const TASK: TaskId = TaskId { slot: 1, generation: 1 };

/// Tasks that any CPU may take, and the idle CPUs that are told of them.
struct Queue {
    idle: IdleCpus,
    tasks: AtomicU32,
}

impl Queue {
    fn new() -> Arc<Self> {
        Arc::new(Self { idle: IdleCpus::new(2), tasks: AtomicU32::new(0) })
    }

    /// A task comes. The CPU that is kicked for it.
    fn hand(&self) -> Option<u32> {
        // The policy has a lock, and says to the CPU which comes later what this one did.
        self.tasks.fetch_add(1, AcqRel);
        self.idle.take(TASK, None, None, |_| true)
    }

    /// A CPU looks for work until it has some, or idles. Whether it has.
    fn look(&self, cpu: u32) -> bool {
        loop {
            let before = self.idle.handed.count();
            if self.tasks.fetch_update(AcqRel, Acquire, |tasks| tasks.checked_sub(1)).is_ok() {
                self.idle.note(cpu, false);
                return true;
            }
            if !self.idle.note(cpu, true) && self.idle.was_told(cpu).is_none() {
                return false;
            }
            if !self.idle.handed.came_since(before) {
                return false;
            }
        }
    }
}

/// A CPU looks for work, finds nothing and idles, while another hands over a task.
#[test]
fn a_task_is_found_or_a_cpu_is_kicked() {
    loom::model(|| {
        let queue = Queue::new();
        let other = thread::spawn({
            let queue = queue.clone();
            move || queue.hand()
        });
        let found = queue.look(0);
        let kicked = other.join().unwrap();
        assert!(found || kicked == Some(0), "the CPU idles, and a task waits");
    });
}

fn check_three(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

/// Two CPUs hand over a task each, while a third looks for work.
#[test]
fn of_two_tasks_one_is_found_or_a_cpu_is_kicked() {
    check_three(|| {
        let queue = Queue::new();
        let others = [(); 2].map(|()| {
            let queue = queue.clone();
            thread::spawn(move || queue.hand())
        });
        let found = queue.look(0);
        let kicked = others.map(|other| other.join().unwrap());
        assert!(found || kicked.contains(&Some(0)), "the CPU idles, and tasks wait");
    });
}

/// Two CPUs look for work, while a third hands over a task.
#[test]
fn a_task_is_found_by_one_of_two_cpus_or_one_is_kicked() {
    check_three(|| {
        let queue = Queue::new();
        let others = [0, 1].map(|cpu| {
            let queue = queue.clone();
            thread::spawn(move || queue.look(cpu))
        });
        let kicked = queue.hand();
        let found = others.map(|other| other.join().unwrap());
        assert_ne!(found, [true; 2], "one task is found twice");
        assert!(found.contains(&true) || kicked.is_some(), "both CPUs idle, and a task waits");
    });
}

/// A CPU that was idle and is kicked looks just when the next task comes, for which it cannot be taken yet, or again.
#[test]
fn a_cpu_that_was_kicked_for_one_task_finds_the_next() {
    loom::model(|| {
        let queue = Queue::new();
        queue.look(0);
        assert_eq!(queue.hand(), Some(0));
        // Another CPU takes that task.
        queue.tasks.fetch_sub(1, AcqRel);
        let other = thread::spawn({
            let queue = queue.clone();
            move || queue.hand()
        });
        let found = queue.look(0);
        let kicked = other.join().unwrap();
        assert!(found || kicked == Some(0), "the CPU idles, and a task waits");
    });
}

/// Two tasks come at once, for two idle CPUs.
#[test]
fn no_cpu_is_kicked_for_two_tasks() {
    loom::model(|| {
        let queue = Queue::new();
        queue.look(0);
        queue.look(1);
        let other = thread::spawn({
            let queue = queue.clone();
            move || queue.hand()
        });
        let kicked = [queue.hand(), other.join().unwrap()];
        assert!(kicked == [Some(0), Some(1)] || kicked == [Some(1), Some(0)], "{kicked:?}");
    });
}

/// CPU 0, told of one task, has taken the one that CPU 1 was told of, while CPU 1 takes a third. What is left is for CPU 2, whoever of the
/// two says so.
#[test]
fn what_two_cpus_leave_is_passed_on_to_a_third() {
    check_three(|| {
        let [left, taken, third] = [1, 2, 3].map(|slot| TaskId { slot, generation: 1 });
        let idle = Arc::new(IdleCpus::new(3));
        (0..3).for_each(|cpu| assert!(idle.note(cpu, true)));
        assert_eq!([left, taken].map(|task| idle.take(task, None, None, |_| true)), [Some(0), Some(1)]);
        // What `found_something` does.
        let runs = move |idle: &IdleCpus, cpu: u32, task: TaskId| {
            assert!(idle.note(cpu, false));
            let told_of = idle.was_told(cpu).filter(|told_of| *told_of == left)?;
            idle.pass_on(cpu, told_of, task, |_| true)
        };
        let other = thread::spawn({
            let idle = idle.clone();
            move || runs(&idle, 1, third)
        });
        let kicked = [runs(&idle, 0, taken), other.join().unwrap()];
        assert!(kicked.contains(&Some(2)), "{kicked:?}");
        assert_eq!([0, 1, 2].map(|cpu| idle.was_told(cpu)), [None, None, Some(left)]);
    });
}

/// An idle CPU begins to run something just as it is told of a task: it passes that on, or is not told.
#[test]
fn a_cpu_that_begins_to_run_passes_on_what_it_is_told_of() {
    loom::model(|| {
        let queue = Queue::new();
        queue.look(0);
        let other = thread::spawn({
            let queue = queue.clone();
            move || {
                assert!(queue.idle.note(0, false));
                queue.idle.was_told(0)
            }
        });
        let told = queue.idle.take(TASK, None, None, |_| true);
        let seen = other.join().unwrap();
        // It may have heard of it at once with what has it told.
        assert!(told == Some(0) || seen.is_none(), "it passes on what another CPU is told of as well");
        assert!(told.is_none() || seen == Some(TASK), "it runs something else, and what it was told of waits");
        assert_eq!(queue.idle.was_told(0), None);
    });
}

/// A CPU wants a task that is just leaving another one.
#[test]
fn a_cpu_that_wants_a_task_gets_it_or_is_kicked() {
    loom::model(|| {
        let shared = Arc::new((Wish { cpu: AtomicU32::new(Wish::NONE) }, AtomicU32::new(1)));
        let leaver = thread::spawn({
            let shared = shared.clone();
            move || {
                let (wish, leaving) = &*shared;
                leaving.store(0, Release);
                wish.take()
            }
        });
        let (wish, leaving) = &*shared;
        let gets_it = leaving.load(Acquire) == 0 || !wish.wish(3, || leaving.load(Acquire) == 1);
        let kicked = leaver.join().unwrap();
        assert!(gets_it || kicked == Some(3), "the task has left, and the CPU that wants it does not hear of it");
    });
}

/// Two CPUs want it.
#[test]
fn one_of_two_cpus_that_want_a_task_gets_it_or_is_kicked() {
    check_three(|| {
        let shared = Arc::new((Wish { cpu: AtomicU32::new(Wish::NONE) }, AtomicU32::new(1)));
        let others = [3, 4].map(|cpu| {
            let shared = shared.clone();
            thread::spawn(move || {
                let (wish, leaving) = &*shared;
                leaving.load(Acquire) == 0 || !wish.wish(cpu, || leaving.load(Acquire) == 1)
            })
        });
        let (wish, leaving) = &*shared;
        leaving.store(0, Release);
        let kicked = wish.take();
        let get_it = others.map(|other| other.join().unwrap());
        assert!(get_it.contains(&true) || kicked.is_some(), "the task has left, and no CPU that wants it hears of it");
    });
}
