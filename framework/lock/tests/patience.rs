//! The last resort of a call that waits: a lock that its holder does not release in time, by a host's clock that is the test's own. Alone
//! in its program, because how calls wait is one thing for all of it.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, Location, catch_unwind},
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use ekiden::SpinLock;
use ekiden_host::{Patience, Since, Waits, run_call_log, wait_for, wait_so};

/// As `lock_wait_ms` of `ekiden.ko`.
const LOCK_WAIT_MS: u64 = 2000;

static NOW_MS: AtomicU64 = AtomicU64::new(0);

/// The clock advances when it is looked at.
fn look(since: &mut Since) -> Patience {
    let now_ms = NOW_MS.fetch_add(1, Relaxed) + 1;
    if now_ms - since.0[0] < LOCK_WAIT_MS { Patience::GoOn } else { Patience::TooLong }
}

fn panic_of<T>(call: impl FnOnce() -> T) -> String {
    let panic: Box<dyn Any + Send> = catch_unwind(AssertUnwindSafe(|| drop(call()))).unwrap_err();
    panic.downcast::<String>().map_or_else(|panic| (*panic.downcast::<&str>().unwrap()).to_owned(), |text| *text)
}

/// How a call ends that waits for the lock while another one has it and does not let go, and where that one took it.
fn waits_in_vain(lock: &SpinLock<u32>) -> (String, &'static Location<'static>) {
    let (held, over) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let holder = scope.spawn(|| {
            let (guard, place) = (lock.lock(), Location::caller());
            held.wait();
            over.wait();
            drop(guard);
            place
        });
        held.wait();
        let text = panic_of(|| lock.lock());
        over.wait();
        (text, holder.join().unwrap())
    })
}

#[test]
fn a_lock_that_is_not_released_in_time_ends_the_call_that_waits() {
    wait_so(Waits { begin: || Since([NOW_MS.load(Relaxed), 0, 0, 0]), look, end: |_| () });
    let lock = SpinLock::new(5);

    let (text, _) = waits_in_vain(&lock);
    assert_eq!(text, "a lock was not released in time; while calls are recorded, this says where it was taken");
    assert_eq!(NOW_MS.load(Relaxed), LOCK_WAIT_MS, "it waits as long as it is to, and no longer");
    assert_eq!(*lock.lock(), 5, "a later call has the lock");
    assert_eq!(NOW_MS.load(Relaxed), LOCK_WAIT_MS, "who does not have to wait does not look at the clock");

    run_call_log(true);
    let (text, place) = waits_in_vain(&lock);
    assert_eq!(text, format!("a lock was not released in time, which was taken at {}:{}", place.file(), place.line()));
    run_call_log(false);
    assert_eq!(*lock.lock(), 5);

    let text = panic_of(|| wait_for(|| None::<()>));
    assert_eq!(text, "a lock of the framework was not released in time: its holder hangs");
    assert_eq!(NOW_MS.load(Relaxed), 3 * LOCK_WAIT_MS);
}
