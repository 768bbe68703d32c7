//! Locks after a panic. Alone in its program, because poisoning reaches every lock there is.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Barrier,
    thread,
};

use ekiden::SpinLock;
use ekiden_host::{forget_locks, locks_are_poisoned, poison_locks};
use ekiden_lock::OfHost;

// SAFETY: a test of what a host does.
const OF_HOST: OfHost = unsafe { OfHost::new() };

#[test]
fn waiters_give_up_after_a_panic_elsewhere_and_free_locks_still_work() {
    let lock = SpinLock::new(5);
    poison_locks(OF_HOST, || assert!(!locks_are_poisoned(OF_HOST), "the reason comes first"));
    assert!(locks_are_poisoned(OF_HOST));
    poison_locks(OF_HOST, || panic!("a consequence is no reason"));
    assert_eq!(*lock.lock(), 5, "no one waits for a free lock");

    // By another thread: the holder of a lock does not wait for it.
    let (held, over) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let _guard = lock.lock();
            held.wait();
            over.wait();
        });
        held.wait();
        let waiter = catch_unwind(AssertUnwindSafe(|| drop(lock.lock())));
        over.wait();
        let message = *waiter.unwrap_err().downcast::<&str>().unwrap();
        assert_eq!(message, "another CPU panicked while this one waited for a lock");
    });
    forget_locks(OF_HOST);
    assert!(!locks_are_poisoned(OF_HOST));
    assert_eq!(*lock.lock(), 5);
}
