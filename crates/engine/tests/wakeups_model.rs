//! No wake-up is lost between two CPUs, in whatever order memory and CPUs do things (loom).

#[path = "../src/wakeups.rs"]
pub mod wakeups;

mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};
}

use atomics::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use loom::{sync::Arc, thread};
use wakeups::{Handed, Wish};

/// A CPU looks for work, finds nothing and idles, while another hands it tasks.
#[test]
fn a_task_is_found_or_its_cpu_is_kicked() {
    loom::model(|| {
        let [idle, tasks, seen] = [0, 0, 0].map(AtomicU32::new);
        let shared = Arc::new((Handed { count: AtomicU32::new(0) }, idle, tasks, seen));
        let other = thread::spawn({
            let shared = shared.clone();
            move || {
                let (handed, idle, tasks, _) = &*shared;
                // The policy has a lock, and says to the CPU which comes later what this one did.
                tasks.fetch_add(1, AcqRel);
                handed.hand(|| idle.load(Relaxed) != 0)
            }
        });
        let (handed, idle, tasks, seen) = &*shared;
        let mut found = 0;
        for _ in 0..2 {
            found += tasks.swap(0, AcqRel);
            if found != 0 {
                break;
            }
            idle.store(1, Relaxed);
            if !handed.came_meanwhile(seen) {
                break;
            }
        }
        let is_kicked = other.join().unwrap();
        assert!(found == 1 || is_kicked, "the CPU idles, and a task waits for it");
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
