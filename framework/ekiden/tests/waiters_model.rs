//! Calls that wait for each other's locks, on two and three threads in orders that memory and CPUs allow (loom): a ring is found if there
//! is one, and only then. What the models hold: that `moment` is counted, with Release and Acquire, before the holder is looked at; both
//! comparisons of moments in `ring`; and that `looked` is written after `holder`. The last they see by SeqCst alone, as loom keeps stores and
//! loads that are SeqCst in order: with Release and Acquire instead of it no ring is wrong either, and one is if `looked` is Relaxed then.

#[path = "../src/waiters.rs"]
pub mod waiters;

mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
}

use atomics::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use loom::{sync::Arc, thread};
use waiters::{Waiter, Waiters};

/// The stacks of calls.
const ONE: usize = 1 << 20;
const TWO: usize = 2 << 20;
const THREE: usize = 3 << 20;

struct Model<const N: usize> {
    waiters: Waiters<N>,
    /// Which call has each lock, as in `ekiden-lock`.
    locks: [AtomicUsize; 3],
}

impl<const N: usize> Model<N> {
    /// The locks that these calls have.
    fn new(holders: [usize; 3]) -> Self {
        let place = |_: usize| Waiter {
            since: AtomicU64::new(0),
            stack: AtomicUsize::new(0),
            holder: AtomicUsize::new(0),
            looked: AtomicU64::new(0),
        };
        let places = core::array::from_fn(place);
        let waiters = Waiters { places, taken: AtomicUsize::new(0), moment: AtomicU64::new(1) };
        Self { waiters, locks: holders.map(AtomicUsize::new) }
    }

    fn holder(&self, lock: usize) -> usize {
        self.locks[lock].load(Acquire)
    }

    fn release(&self, lock: usize) {
        self.locks[lock].store(0, Release);
    }

    /// Waits for a lock, and takes it if it is free at one of this many looks; whether it has it then. No other call keeps it without end.
    fn take(&self, call: usize, lock: usize, looks: usize) -> bool {
        let mut waiting = self.waiters.begin(call);
        for _ in 0..looks {
            if self.locks[lock].compare_exchange(0, call, Acquire, Relaxed).is_ok() {
                return true;
            }
            assert_eq!(waiting.look(|| self.holder(lock)), None, "there is no ring");
        }
        false
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// The second call lets go of what the first one waits for, and waits then for what the first one has.
#[test]
fn a_call_that_let_go_before_it_waits_is_in_no_ring() {
    check(2, || {
        let model = Arc::new(Model::<2>::new([ONE, TWO, 0]));
        let other = thread::spawn({
            let model = model.clone();
            move || {
                model.release(1);
                if model.take(TWO, 0, 2) {
                    model.release(0);
                }
            }
        });
        if model.take(ONE, 1, 2) {
            model.release(1);
        }
        model.release(0);
        other.join().unwrap();
    });
}

/// The second call waits while the first one has the lock, sees that it is free again, and still waits when the first one waits
/// for what the second has.
#[test]
fn a_call_that_saw_its_lock_free_later_is_in_no_ring() {
    check(4, || {
        let model = Arc::new(Model::<2>::new([ONE, TWO, 0]));
        let mut waiting = model.waiters.begin(TWO);
        assert_eq!(waiting.look(|| model.holder(0)), None, "the first one does not wait");
        let other = thread::spawn({
            let model = model.clone();
            move || {
                model.release(0);
                let mut waiting = model.waiters.begin(ONE);
                assert_eq!(waiting.look(|| model.holder(1)), None, "there is no ring");
            }
        });
        assert_eq!(waiting.look(|| model.holder(0)), None, "there is no ring");
        other.join().unwrap();
    });
}

/// A third call takes the place of the second, which has got its lock.
#[test]
fn what_is_seen_of_a_place_is_of_one_call() {
    check(2, || {
        let model = Arc::new(Model::<2>::new([ONE, TWO, ONE]));
        let other = thread::spawn({
            let model = model.clone();
            move || {
                // The second and the third are one after the other on a CPU.
                model.release(1);
                model.take(TWO, 2, 1);
                model.locks[1].store(THREE, Release);
                model.take(TWO, 0, 1);
                model.release(1);
            }
        });
        model.take(ONE, 1, 2);
        other.join().unwrap();
    });
}

/// Calls that each have a lock and wait for that of the next: each looks once, and then, when it is seen that all wait, once more.
fn ring<const N: usize>(preemptions: usize) {
    check(preemptions, || {
        let calls = [ONE, TWO, THREE];
        let model: &'static Model<N> = Box::leak(Box::new(Model::new(calls)));
        let begins = move |at: usize| {
            let mut waiting = model.waiters.begin(calls[at]);
            let found = waiting.look(|| model.holder((at + 1) % N));
            (waiting, found)
        };
        let others: Vec<_> = (1..N).map(|at| thread::spawn(move || begins(at))).collect();
        let own = begins(0);
        let all = [own].into_iter().chain(others.into_iter().map(|other| other.join().unwrap()));
        let all = all.collect::<Vec<_>>().into_iter().enumerate();
        let again: Vec<_> = all
            .map(|(at, (mut waiting, found))| {
                let last = waiting.look(|| model.holder((at + 1) % N));
                std::mem::forget(waiting);
                assert!(found.is_none_or(|calls| calls == N));
                last
            })
            .collect();
        assert_eq!(again[N - 1], Some(N), "the calls wait for each other for ever");
    });
}

#[test]
fn two_calls_that_wait_for_each_other_find_out() {
    ring::<2>(3);
}

#[test]
fn three_calls_that_wait_for_each_other_find_out() {
    ring::<3>(1);
}
