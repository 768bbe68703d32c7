//! A queue that is closed while CPUs take hints out of it, and a program that sleeps until its policy says something, in every order that
//! memory and CPUs allow (loom): the steps of `ekiden_queue_interrupt`, `end_queues` and `ekiden_c_notify` in `hosts/kernel/module/queues.c`, of
//! `close_queue` and `queue_poll` in `queue_files.c` there. Each of two says first and looks after a full barrier.
//!
//! `test_and_set_bit`, `xchg` and `cmpxchg` that succeeds have such a barrier before and after; loom has it as a fence.

use loom::{
    cell::UnsafeCell,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool, AtomicU32,
            Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
            fence,
        },
    },
    thread,
};

const OPEN: u32 = 1;
const POLICY_GONE: u32 = 2;
const CLOSED: u32 = 4;

/// What the order of the real code is against.
#[derive(Clone, Copy, PartialEq)]
enum Planted {
    Nothing,
    /// The interrupt takes the bit as a lock is taken: what it looks at after may have been read before others see the bit.
    WeakBit,
    /// The close changes the state by Release.
    WeakClose,
    /// The interrupt looks at the state before it takes the bit.
    LookFirst,
}

struct Queue {
    state: AtomicU32,
    busy: AtomicU32,
    /// How much was taken out, which one CPU at a time changes; and whether the policy was told that the queue is closed.
    tail: UnsafeCell<u32>,
    is_told: UnsafeCell<bool>,
    control: Mutex<()>,
    planted: Planted,
}

// SAFETY: the tail is changed by the CPU that has the bit, and by a close after all of those; loom finds out if that is not so.
unsafe impl Sync for Queue {}

fn full_barrier(is_there: bool) {
    if is_there {
        fence(SeqCst);
    }
}

impl Queue {
    fn new(planted: Planted) -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU32::new(OPEN),
            busy: AtomicU32::new(0),
            tail: UnsafeCell::new(0),
            is_told: UnsafeCell::new(false),
            control: Mutex::new(()),
            planted,
        })
    }

    fn take_hints(&self) {
        // SAFETY: loom keeps the pointer good.
        self.is_told.with(|told| assert!(!unsafe { *told }, "the policy hears of a queue that is closed"));
        // SAFETY: loom keeps this pointer good, too.
        self.tail.with_mut(|tail| unsafe { *tail += 1 });
    }

    fn interrupt(&self) {
        if self.planted == Planted::LookFirst && self.state.load(Relaxed) != OPEN {
            return;
        }
        let is_full = self.planted != Planted::WeakBit;
        full_barrier(is_full);
        // loom lets an exchange that changes nothing come after a store that it cannot come after: so there is none.
        if self.busy.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            return;
        }
        full_barrier(is_full);
        if self.planted == Planted::LookFirst || self.state.load(Relaxed) == OPEN {
            self.take_hints();
        }
        self.busy.store(0, Release);
    }

    /// The policy was taken out. A CPU that has the bit may still take hints; the engine hands them to no policy.
    fn end(&self) {
        let _ = self.state.compare_exchange(OPEN, POLICY_GONE, AcqRel, Relaxed);
    }

    fn close(&self) {
        let is_full = self.planted != Planted::WeakClose;
        full_barrier(is_full);
        let before = self.state.swap(CLOSED, Release);
        full_barrier(is_full);
        if before == CLOSED {
            return;
        }
        while self.busy.load(Acquire) != 0 {
            thread::yield_now();
        }
        let _control = self.control.lock().unwrap();
        if before == OPEN {
            self.take_hints();
        }
        // SAFETY: loom keeps the pointer good.
        self.is_told.with_mut(|told| unsafe { *told = true });
    }
}

/// What a thread does to the queue.
type Does = fn(&Queue);

fn check(does: &'static [Does], preemptions: Option<usize>, planted: Planted) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        let queue = Queue::new(planted);
        let others: Vec<_> = does[1..]
            .iter()
            .map(|does| {
                let queue = queue.clone();
                thread::spawn(move || does(&queue))
            })
            .collect();
        does[0](&queue);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!((queue.state.load(Relaxed), queue.busy.load(Relaxed)), (CLOSED, 0));
    });
}

#[test]
fn a_close_and_a_cpu_that_takes_hints_see_each_other() {
    check(&[Queue::close, Queue::interrupt], None, Planted::Nothing);
}

#[test]
fn a_close_and_two_cpus_that_take_hints_see_each_other() {
    check(&[Queue::close, Queue::interrupt, Queue::interrupt], Some(3), Planted::Nothing);
}

/// By two descriptors, as a process may.
#[test]
fn of_two_closes_one_tells_the_policy() {
    check(&[Queue::close, Queue::close, Queue::interrupt], Some(3), Planted::Nothing);
}

#[test]
fn a_queue_closes_whose_policy_is_taken_out_meanwhile() {
    check(&[Queue::close, Queue::end, Queue::interrupt], Some(3), Planted::Nothing);
}

/// The model sees what it is there for.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_bit_that_is_taken_like_a_lock_lets_a_cpu_take_hints_beside_the_close() {
    check(&[Queue::close, Queue::interrupt], None, Planted::WeakBit);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_close_without_a_full_barrier_overlooks_a_cpu_that_takes_hints() {
    check(&[Queue::close, Queue::interrupt], None, Planted::WeakClose);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_look_before_the_bit_is_of_a_queue_that_is_closed_by_then() {
    check(&[Queue::close, Queue::interrupt], None, Planted::LookFirst);
}

/// The policy says something on some CPUs, while the program looks and goes to sleep. Whether it is woken up is asked after a full barrier
/// (`wq_has_sleeper`); the program has one between being on the list and looking (`poll_wait`).
fn a_program_sleeps(cpus: usize, is_full: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = (cpus > 1).then_some(3);
    builder.check(move || {
        let (head, sleeps) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let down = Arc::new(Mutex::new(()));
        let says: Vec<_> = (0..cpus)
            .map(|_| {
                let (head, down, sleeps) = (head.clone(), down.clone(), sleeps.clone());
                thread::spawn(move || {
                    {
                        let _down = down.lock().unwrap();
                        head.store(head.load(Relaxed) + 1, Release);
                    }
                    fence(SeqCst);
                    sleeps.load(Relaxed)
                })
            })
            .collect();
        sleeps.store(true, Relaxed);
        full_barrier(is_full);
        let seen = head.load(Relaxed) as usize;
        let woken = says.into_iter().map(|says| says.join().unwrap()).filter(|is_woken| *is_woken).count();
        assert!(seen + woken >= cpus, "a program sleeps, and its policy has said something");
    });
}

#[test]
fn a_program_hears_of_what_its_policy_says_while_it_goes_to_sleep() {
    a_program_sleeps(1, true);
    a_program_sleeps(2, true);
}

#[test]
#[should_panic(expected = "a program sleeps")]
fn without_a_full_barrier_it_sleeps_on() {
    a_program_sleeps(1, false);
}
