//! The queue of calls that wait for a lock, on a few threads in every order that memory and CPUs allow (loom).

#[path = "../src/clh.rs"]
pub mod clh;

mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};
}

use atomics::{AtomicU32, Ordering::Relaxed};
use clh::{Place, Queue};
use loom::{cell::UnsafeCell, sync::Arc, thread};

/// A queue, its places, and what the first call in it may change.
struct Model {
    queue: Queue,
    places: Vec<Place>,
    count: UnsafeCell<u32>,
}

// SAFETY: what is counted is changed by the first call in the queue only; loom finds out if that is not so.
unsafe impl Sync for Model {}

impl Model {
    fn new(places: usize) -> Arc<Self> {
        let place = || Place { state: AtomicU32::new(clh::FREE), before: AtomicU32::new(0) };
        Arc::new(Self {
            queue: Queue { last: AtomicU32::new(0) },
            places: (0..places).map(|_| place()).collect(),
            count: UnsafeCell::new(0),
        })
    }

    /// A call that comes, looks so often whether it is first, and goes. Whether it was.
    fn call(&self, hint: usize, looks: usize) -> u32 {
        let mut turn = self.queue.join(&self.places, hint);
        for _ in 0..looks {
            if turn.is_first() {
                // It takes the lock, and lets go of it.
                // SAFETY: loom keeps the pointer good.
                self.count.with_mut(|count| unsafe { *count += 1 });
                return 1;
            }
            thread::yield_now();
        }
        0
    }

    fn ends_with(&self, count: u32) {
        // A call that has left early may be the last one still; whichever comes next clears that up.
        assert_eq!(self.call(0, 1), 1, "an empty queue keeps a call waiting");
        assert!(self.queue.is_empty());
        assert!(self.places.iter().all(|place| place.state.load(Relaxed) == clh::FREE), "a place is lost");
        // SAFETY: loom keeps the pointer good.
        self.count.with(|counted| assert_eq!(unsafe { *counted }, count + 1));
    }
}

/// Calls on threads of their own, by how often each looks; each of them comes so often.
fn check(looks: &'static [usize], times: usize, preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let model = Model::new(2 * looks.len());
        let calls = |model: Arc<Model>, hint| move || (0..times).map(|_| model.call(hint, looks[hint])).sum::<u32>();
        let others: Vec<_> = (1..looks.len()).map(|hint| thread::spawn(calls(model.clone(), hint))).collect();
        let mut count = calls(model.clone(), 0)();
        count += others.into_iter().map(|other| other.join().unwrap()).sum::<u32>();
        model.ends_with(count);
    });
}

#[test]
fn two_calls_again_and_again_are_first_one_at_a_time() {
    check(&[3, 3], 2, 4);
}

#[test]
fn three_calls_are_first_one_at_a_time() {
    check(&[2, 2, 2], 1, 3);
}

#[test]
fn a_call_that_leaves_at_once_is_skipped() {
    check(&[2, 0, 2], 1, 3);
}
