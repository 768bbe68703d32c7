//! The order of locks. Alone in its program, because it looks at all locks there are, and while calls are recorded.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ekiden::SpinLock;
use ekiden_host::{call_log, forget_locks, run_call_log};
use ekiden_lock::OfHost;

// SAFETY: a test of what a host does.
const OF_HOST: OfHost = unsafe { OfHost::new() };

/// Takes the second lock inside of the first, and returns what was said to that.
fn nest(first: &SpinLock<()>, second: &SpinLock<()>) -> String {
    let nested = catch_unwind(AssertUnwindSafe(|| {
        let outer = first.lock();
        drop(second.lock());
        drop(outer);
    }));
    nested.map_or_else(|panic| *panic.downcast::<String>().unwrap(), |()| String::new())
}

#[test]
fn locks_in_the_wrong_order_are_found_whether_they_wait_or_not() {
    call_log(|value| value);
    run_call_log(true);
    let [one, two, three] = [SpinLock::new(()), SpinLock::new(()), SpinLock::new(())];
    // The order is checked seldom, but not never.
    assert!((0..64).all(|_| nest(&one, &two).is_empty()));
    assert!((0..64).all(|_| nest(&two, &three).is_empty()));
    let found = (0..64).map(|_| nest(&three, &one)).find(|found| !found.is_empty()).unwrap();
    assert!(found.contains("is taken while one of line"), "{found}");
    // By three steps it is as wrong as by one, and what was in order stays so.
    assert!((0..64).all(|_| nest(&one, &three).is_empty()));

    let alike: Vec<_> = (0..2).map(|_| SpinLock::new(())).collect();
    assert!((0..64).all(|_| nest(&alike[0], &alike[1]).is_empty()));
    let found = (0..64).map(|_| nest(&alike[1], &alike[0])).find(|found| !found.is_empty()).unwrap();
    assert!(found.contains("in the reverse order of their addresses"), "{found}");

    // Nothing is known of the next policy.
    forget_locks(OF_HOST);
    assert!((0..64).all(|_| nest(&three, &one).is_empty()));
    run_call_log(false);
}
