//! The lock that policies use.

use core::{
    ops::{Deref, DerefMut},
    panic::Location,
};

use ekiden_lock::{Guard, Lock};

use crate::call_log::{call_log_runs, learn};
use crate::order::{self, Holder, stack};
use crate::wait::Wait;

/// How many looks apart a call checks for deadlocks, and one that is not first in the queue looks at the lock.
const LOOKS_APART: u32 = 16;

/// If a call sees so often in a row that the lock is free and the first in the queue does not take it, then that one's processor is
/// away, and the others do not wait for it. (A CPU that runs takes a free lock within one look.)
const FREE_LOOKS: u32 = 16;

/// Mutual exclusion by spinning. Scheduling calls run with interrupts off, so a holder is never preempted, and there
/// is nothing to sleep on.
///
/// Calls get it in the order in which they came (a queue of Craig, Landin and Hagersten), each looking at a cache line of its own; one
/// whose processor a hypervisor has taken away is overtaken.
///
/// The order in which calls take a lock is an input, and is recorded: each lock counts how often it was taken.
///
/// A call that waits burns no fuel. What it waits for is the end of another call, so what is wrong with locks ends the policy as
/// soon as that is known: a call that takes one twice, calls that wait for each other, one that ends and has not let go; and, while calls are recorded, locks that are taken in one order here and in another one there, before that
/// becomes a deadlock. Locks are of one class if they were made at one place in the source; those are to be taken in the order
/// of their addresses, which in a [`PerCpu`](crate::PerCpu) is that of the CPUs.
///
/// Uncontended cost: one atomic exchange to take it, one store to release it, what a call has at each of them, and one look at whether
/// calls are recorded; then an addition to count, and seldom what it takes to look at the order.
///
/// ```
/// use ekiden::SpinLock;
///
/// let lock = SpinLock::new(1);
/// {
///     let mut held = lock.lock();
///     *held += 1;
///     assert!(lock.try_lock().is_none());
/// }
/// assert_eq!(*lock.try_lock().unwrap(), 2);
/// ```
#[derive(Debug)]
pub struct SpinLock<T: ?Sized> {
    holder: Holder,
    inner: Lock<T>,
}

/// Tells an explorer that a lock is free again. Nothing, and no code, without one.
#[derive(Debug)]
struct Released(#[cfg(feature = "observe")] usize);

#[cfg(feature = "observe")]
impl Drop for Released {
    fn drop(&mut self) {
        crate::observe::reach(crate::observe::Point::Released(self.0));
    }
}

impl<T> SpinLock<T> {
    /// An unlocked lock around `value`.
    #[track_caller]
    pub const fn new(value: T) -> Self {
        Self { holder: Holder::none(), inner: Lock::new(value) }
    }
}

impl<T: Default> Default for SpinLock<T> {
    #[track_caller]
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Waits until no other call holds the lock, and holds it until the guard is dropped.
    ///
    /// # Panics
    ///
    /// When the holder is this call, or waits for this call, by itself or by way of others; when the policy has panicked elsewhere
    /// while this CPU waits; when the host's patience is at an end (`Patience` of `ekiden-host`); and, while calls are recorded,
    /// when locks are taken in another order elsewhere.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        #[cfg(feature = "observe")]
        let here = core::panic::Location::caller();
        #[cfg(feature = "observe")]
        self.ask(|lock, taken| crate::observe::Point::Wants(lock, here, taken));
        let guard = match self.inner.lock_at_once(stack()) {
            Some(guard) => guard,
            None => self.wait(),
        };
        self.has(guard, true)
    }

    /// Takes the lock if it is free right now.
    #[inline]
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        #[cfg(feature = "observe")]
        if !self.ask(crate::observe::Point::Tries) {
            learn(0);
            return None;
        }
        let guard = self.inner.try_lock(stack());
        if guard.is_none() {
            learn(0);
        }
        // A call that does not wait cannot deadlock.
        guard.map(|guard| self.has(guard, false))
    }

    /// Whether an observer lets the call go on.
    #[cfg(feature = "observe")]
    fn ask(&self, point: impl Fn(usize, u32) -> crate::observe::Point) -> bool {
        loop {
            match crate::observe::reach(point(self.address(), self.holder.taken())) {
                crate::observe::Answer::GoOn => return true,
                crate::observe::Answer::Fail => return false,
                crate::observe::Answer::AskAgain => {}
            }
        }
    }

    #[cfg(feature = "observe")]
    fn address(&self) -> usize {
        self.inner.address()
    }

    /// This call has it, after it has `waited`, or would have.
    #[inline]
    #[track_caller]
    fn has<'a>(&'a self, guard: Guard<'a, T>, waited: bool) -> SpinGuard<'a, T> {
        #[cfg(feature = "observe")]
        crate::observe::reach(crate::observe::Point::Took(self.address()));
        let on_call_log = call_log_runs();
        if on_call_log {
            guard.taken_at(Location::caller());
        } else if cfg!(feature = "observe") {
            self.holder.count();
        }
        let guard = SpinGuard {
            holder: &self.holder,
            guard,
            _released: Released(
                #[cfg(feature = "observe")]
                self.address(),
            ),
        };
        if on_call_log && waited {
            self.holder.begun_on_call_log();
        } else if on_call_log {
            self.holder.begun_at_once();
        }
        guard
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn wait(&self) -> Guard<'_, T> {
        let mut wait = Wait::begin();
        let mut waiting = order::wait();
        // Stacks are sixteen KiB in the kernel, so that this is another place for each CPU.
        let mut turn = self.inner.join(stack() >> 14);
        let mut free_looks = 0;
        for look in 0_u32.. {
            let is_first = turn.is_first();
            let is_time = look % LOOKS_APART == 0;
            if is_first || is_time {
                // Looking first keeps the cache line shared while the holder works.
                free_looks = if self.inner.holder() == 0 { free_looks + 1 } else { 0 };
                if free_looks > 0 && (is_first || free_looks > FREE_LOOKS) {
                    if let Some(guard) = self.inner.try_lock(stack()) {
                        return guard;
                    }
                }
            }
            #[cfg(feature = "observe")]
            crate::observe::reach(crate::observe::Point::Waits(self.address()));
            if is_time {
                order::look(&mut waiting, || self.inner.holder());
            }
            if !wait.goes_on() {
                break;
            }
        }
        match self.inner.place() {
            Some(place) => {
                panic!("a lock was not released in time, which was taken at {}:{}", place.file(), place.line())
            }
            None => panic!("a lock was not released in time; while calls are recorded, this says where it was taken"),
        }
    }
}

/// Holds a [`SpinLock`] until it is dropped.
///
/// ```
/// use ekiden::SpinLock;
///
/// let lock = SpinLock::new(vec![3, 1]);
/// let mut guard = lock.lock();
/// guard.sort();
/// assert_eq!(*guard, [1, 3]);
/// drop(guard);
/// assert!(lock.try_lock().is_some());
/// ```
#[derive(Debug)]
pub struct SpinGuard<'a, T: ?Sized> {
    holder: &'a Holder,
    guard: Guard<'a, T>,
    // After the guard, so that the lock is free by the time an observer hears of it.
    _released: Released,
}

impl<T: ?Sized> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.holder.end();
    }
}

impl<T: ?Sized> Deref for SpinGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    #[should_panic(expected = "deadlock: this call has the lock already")]
    fn a_lock_taken_twice_panics() {
        let lock = SpinLock::new(());
        let _held = lock.lock();
        drop(lock.lock());
    }

    #[test]
    fn two_calls_that_wait_for_each_other_panic() {
        let locks = Arc::new([SpinLock::new(()), SpinLock::new(())]);
        let both = Arc::new(std::sync::Barrier::new(2));
        let threads = [0, 1].map(|own| {
            let (locks, both) = (locks.clone(), both.clone());
            thread::spawn(move || {
                let held = locks[own].lock();
                both.wait();
                drop(locks[1 - own].lock());
                drop(held);
            })
        });
        // The first one that finds out lets go of its lock, so that the other one may go on.
        let found = panics(threads);
        assert!(!found.is_empty() && found.iter().all(|text| text.contains("deadlock: two calls")), "{found:?}");
    }

    fn panics<const N: usize>(threads: [thread::JoinHandle<()>; N]) -> std::vec::Vec<std::string::String> {
        let text = |panic: std::boxed::Box<dyn core::any::Any + Send>| match panic.downcast::<std::string::String>() {
            Ok(text) => *text,
            Err(panic) => std::string::String::from(*panic.downcast_ref::<&str>().unwrap_or(&"")),
        };
        threads.into_iter().filter_map(|thread| thread.join().err().map(text)).collect()
    }

    #[test]
    fn calls_that_wait_for_each_other_in_a_ring_panic() {
        let locks = Arc::new([(); 4].map(SpinLock::new));
        let all = Arc::new(std::sync::Barrier::new(4));
        let threads = [0, 1, 2, 3].map(|own| {
            let (locks, all) = (locks.clone(), all.clone());
            thread::spawn(move || {
                let held = locks[own].lock();
                all.wait();
                drop(locks[(own + 1) % 4].lock());
                drop(held);
            })
        });
        let found = panics(threads);
        assert!(!found.is_empty() && found.iter().all(|text| text.contains("deadlock: 4 calls")), "{found:?}");
    }

    #[test]
    fn a_holder_that_takes_its_time_is_waited_for() {
        let lock = SpinLock::new(0);
        let held = std::sync::Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut guard = lock.lock();
                held.wait();
                // Far more than the quarter of a million looks that were the limit once.
                thread::sleep(core::time::Duration::from_millis(300));
                *guard = 1;
            });
            held.wait();
            assert_eq!(*lock.lock(), 1);
        });
    }

    #[test]
    fn a_lock_is_free_again_when_its_guard_is_dropped() {
        let lock = SpinLock::new(1);
        let mut guard = lock.lock();
        *guard += 1;
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert_eq!(*lock.lock(), 2);
    }

    #[test]
    fn threads_hold_it_one_at_a_time() {
        const TIMES: u32 = 10_000;
        let count = Arc::new(SpinLock::new(0));
        let threads = [(); 3].map(|()| {
            let count = count.clone();
            thread::spawn(move || {
                for _ in 0..TIMES {
                    let mut count = count.lock();
                    let before = *count;
                    // Gives the others a chance to come in between.
                    core::hint::spin_loop();
                    *count = before + 1;
                }
            })
        });
        let nr_threads = threads.len() as u32;
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*count.lock(), nr_threads * TIMES);
    }
}
