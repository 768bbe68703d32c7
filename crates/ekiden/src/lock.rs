//! The lock that policies use.

use core::{
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicBool, Ordering},
};

use crate::order::{self, Holder};
use crate::tape::{learn, tape_runs};

/// How often a waiter looks at a lock before it takes the holder for lost and panics, which ends the policy and not
/// the machine. This is some ten milliseconds, and less than a call in the kernel may go round.
pub const SPIN_LIMIT: u32 = 250_000;
/// So many looks it is from one to the next at who waits for whom. Both calls keep their CPUs until they have been found, and an
/// emulator lets others run at each look.
const LOOKS_APART: u32 = 4;

/// Set when a policy of this program has panicked: its locks may never be released.
static POISONED: AtomicBool = AtomicBool::new(false);

/// Makes every waiter give up. The kernel host calls it from its panic handler, before anything else; and takes it back for the
/// next policy, of whose locks nothing is known.
pub fn poison_locks(poisoned: bool) {
    if !poisoned {
        order::forget();
    }
    POISONED.store(poisoned, Ordering::Release);
}

/// Mutual exclusion by spinning. Scheduling calls run with interrupts off, so a holder is never preempted, and there
/// is nothing to sleep on.
///
/// Who takes a lock after whom is an input of a call, and is recorded: each lock counts how often it was taken.
///
/// What is wrong with locks ends the policy: a call that takes one twice, two calls that wait for each other, a holder that does
/// not let go; and, while calls are recorded, locks that are taken in one order here and in another one there, before that
/// becomes a deadlock. Locks are of one class if they were made at one place in the source; those are to be taken in the order
/// of their addresses, which in a [`PerCpu`](crate::PerCpu) is that of the CPUs.
///
/// Uncontended cost: one atomic exchange to take it, one addition to count, three stores to release it and to say who has it, and seldom
/// what it takes to look at the order.
#[derive(Debug)]
pub struct SpinLock<T: ?Sized> {
    holder: Holder,
    inner: spin::mutex::SpinMutex<T>,
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
        Self { holder: Holder::none(), inner: spin::mutex::SpinMutex::new(value) }
    }
}

impl<T: Default> Default for SpinLock<T> {
    #[track_caller]
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Waits until no one else holds the lock, and holds it until the guard is dropped.
    ///
    /// # Panics
    ///
    /// When the holder is this call, or waits for this call; when it does not let go for [`SPIN_LIMIT`] looks; when the policy
    /// has panicked elsewhere while this CPU waits; and, while calls are recorded, when locks are taken in another order elsewhere.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        #[cfg(feature = "observe")]
        let here = core::panic::Location::caller();
        #[cfg(feature = "observe")]
        self.ask(|lock, taken| crate::observe::Point::Wants(lock, here, taken));
        let guard = match self.inner.try_lock() {
            Some(guard) => guard,
            None => self.wait(SPIN_LIMIT),
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
        let guard = self.inner.try_lock();
        if guard.is_none() {
            learn(0);
        }
        // Who does not wait cannot deadlock.
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
        core::ptr::from_ref(&self.inner).cast::<()>().addr()
    }

    /// This call has it, after it has `waited`, or would have.
    #[inline]
    #[track_caller]
    fn has<'a>(&'a self, guard: spin::mutex::SpinMutexGuard<'a, T>, waited: bool) -> SpinGuard<'a, T> {
        self.holder.begin();
        #[cfg(feature = "observe")]
        crate::observe::reach(crate::observe::Point::Took(self.address()));
        let guard = SpinGuard {
            holder: &self.holder,
            guard,
            _released: Released(
                #[cfg(feature = "observe")]
                self.address(),
            ),
        };
        if !waited {
            self.holder.begun_at_once();
        } else if tape_runs() {
            self.holder.begun_on_tape();
        }
        guard
    }

    #[cold]
    #[track_caller]
    fn wait(&self, looks: u32) -> spin::mutex::SpinMutexGuard<'_, T> {
        let mut waiting = order::Waiting::begin();
        for look in 0..looks {
            // Looking first keeps the cache line shared while the holder works.
            if !self.inner.is_locked() {
                if let Some(guard) = self.inner.try_lock() {
                    return guard;
                }
            }
            #[cfg(feature = "observe")]
            crate::observe::reach(crate::observe::Point::Waits(self.address()));
            if look % LOOKS_APART == 0 {
                waiting.look(self.holder.stack());
            }
            assert!(!POISONED.load(Ordering::Relaxed), "another CPU panicked while this one waited for a lock");
            core::hint::spin_loop();
        }
        panic!("a lock was not released for {looks} looks: deadlock, or held for too long");
    }
}

/// Holds a [`SpinLock`] until it is dropped.
#[derive(Debug)]
pub struct SpinGuard<'a, T: ?Sized> {
    holder: &'a Holder,
    guard: spin::mutex::SpinMutexGuard<'a, T>,
    // After the guard, so that the lock is free by the time anybody hears of it.
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
    #[should_panic(expected = "a lock was not released for 1000 looks")]
    fn a_lock_that_is_never_released_panics() {
        let lock = Arc::new(SpinLock::new(()));
        let holder = lock.clone();
        thread::spawn(move || core::mem::forget(holder.lock())).join().unwrap();
        // What `lock` does when it finds the lock taken, with less patience.
        lock.wait(1000);
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
        let ends = threads.map(thread::JoinHandle::join);
        let text = |panic: &std::boxed::Box<dyn core::any::Any + Send>| *panic.downcast_ref::<&str>().unwrap_or(&"");
        // The first one that finds out lets go of its lock, so that the other one may go on.
        let found: std::vec::Vec<_> = ends.iter().filter_map(|end| end.as_ref().err().map(text)).collect();
        assert!(!found.is_empty() && found.iter().all(|text| text.contains("deadlock: two calls")), "{found:?}");
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
