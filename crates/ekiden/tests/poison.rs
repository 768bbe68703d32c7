//! Locks after a panic. Alone in its program, because poisoning reaches every lock there is.

use ekiden::{SpinLock, poison_locks};

#[test]
fn waiters_give_up_after_a_panic_elsewhere_and_free_locks_still_work() {
    let lock = SpinLock::new(5);
    poison_locks(true);
    assert_eq!(*lock.lock(), 5, "no one waits for a free lock");

    let held = lock.lock();
    let waiter = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(lock.lock())));
    let message = *waiter.unwrap_err().downcast::<&str>().unwrap();
    assert_eq!(message, "another CPU panicked while this one waited for a lock");
    drop(held);
    poison_locks(false);
    assert_eq!(*lock.lock(), 5);
}
