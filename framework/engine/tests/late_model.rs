//! Kicks that come late, of CPUs that ask for too many at once, in every order that memory and CPUs allow (loom): `src/late.rs` itself, and
//! the steps of `wants_kicks` and `carry_out_late` in `src/pace.rs`. Each kick is carried out, and the CPU that is kicked sees the task for which it is.

#[path = "../src/late.rs"]
pub mod late;

/// A word whose changes can be planted to be weaker than the code has them.
mod atomics {
    pub(crate) use loom::sync::atomic::Ordering;

    use loom::sync::atomic;

    #[derive(Debug, Default)]
    pub(crate) struct AtomicU64 {
        pub(crate) word: atomic::AtomicU64,
        pub(crate) is_weak: bool,
    }

    impl AtomicU64 {
        fn order(&self, order: Ordering) -> Ordering {
            if self.is_weak { Ordering::Relaxed } else { order }
        }

        pub(crate) fn load(&self, order: Ordering) -> u64 {
            self.word.load(order)
        }

        pub(crate) fn store(&self, value: u64, order: Ordering) {
            self.word.store(value, order);
        }

        pub(crate) fn swap(&self, value: u64, order: Ordering) -> u64 {
            self.word.swap(value, self.order(order))
        }

        pub(crate) fn fetch_update(
            &self,
            set: Ordering,
            fetch: Ordering,
            change: impl FnMut(u64) -> Option<u64>,
        ) -> Result<u64, u64> {
            self.word.fetch_update(self.order(set), fetch, change)
        }
    }
}

use atomics::AtomicU64;
use ekiden_host::abi::Kicks;
use late::{Late, WINDOW_NS};
use loom::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
};

struct Model {
    late: Late,
    /// Whether a task waits for each CPU; what says so is the policy's, whose lock a CPU that looks too early does not take.
    tasks: [AtomicU32; 3],
    /// How often each CPU was kicked.
    kicked: [AtomicU32; 3],
}

impl Model {
    fn new(is_weak: bool) -> Arc<Self> {
        let [kicks, next_ns] = [is_weak, false].map(|is_weak| AtomicU64 { is_weak, ..AtomicU64::default() });
        let none = || [0; 3].map(AtomicU32::new);
        Arc::new(Self { late: Late { kicks, next_ns }, tasks: none(), kicked: none() })
    }

    /// A CPU puts a task on the queue of `cpu` and kicks that too often; then its timer goes off, and again for as long as it is told to wait.
    fn kicks(&self, cpu: u32) {
        self.tasks[cpu as usize].store(1, Relaxed);
        let mut kicks = Kicks::NONE;
        kicks.add(cpu);
        self.late.add(kicks);
        let mut now_ns = WINDOW_NS;
        while self.late.any() {
            match self.late.take(now_ns) {
                Ok(kicks) => return kicks.iter().for_each(|cpu| self.looks(cpu)),
                Err(at_ns) => now_ns = at_ns,
            }
        }
    }

    fn looks(&self, cpu: u32) {
        assert_eq!(self.tasks[cpu as usize].load(Relaxed), 1, "the CPU that is kicked does not find the task");
        self.kicked[cpu as usize].fetch_add(1, Relaxed);
    }
}

fn too_many_kicks(cpus: u32, preemptions: Option<usize>, is_weak: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        let model = Model::new(is_weak);
        let others: Vec<_> = (1..cpus)
            .map(|cpu| {
                let model = model.clone();
                thread::spawn(move || model.kicks(cpu))
            })
            .collect();
        model.kicks(0);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(!model.late.any(), "kicks wait, and no timer comes for them");
        let kicked = model.kicked.iter().take(cpus as usize).map(|times| times.load(Relaxed));
        assert!(kicked.eq((0..cpus).map(|_| 1)), "a kick is lost, or comes twice");
    });
}

#[test]
fn two_cpus_that_kick_too_often_lose_no_kick() {
    too_many_kicks(2, None, false);
}

#[test]
fn three_cpus_that_kick_too_often_lose_no_kick() {
    too_many_kicks(3, Some(2), false);
}

/// The model sees what it is there for.
#[test]
#[should_panic(expected = "does not find the task")]
fn a_kick_that_is_passed_on_without_an_order_comes_before_its_task() {
    too_many_kicks(2, None, true);
}
