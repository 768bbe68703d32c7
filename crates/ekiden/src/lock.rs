//! The lock that policies use.

use core::{
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use crate::tape::learn;

/// How often a waiter looks at a lock before it takes the holder for lost and panics, which ends the policy and not
/// the machine. At one look per few instructions this is some hundred milliseconds.
pub const SPIN_LIMIT: u32 = 10_000_000;

/// Set when a policy of this program has panicked: its locks may never be released.
static POISONED: AtomicBool = AtomicBool::new(false);

/// Makes every waiter give up. The kernel host calls it from its panic handler, before anything else.
pub fn poison_locks(poisoned: bool) {
    POISONED.store(poisoned, Ordering::Release);
}

/// Mutual exclusion by spinning. Scheduling calls run with interrupts off, so a holder is never preempted, and there
/// is nothing to sleep on.
///
/// Who takes a lock after whom is an input of a call, and is recorded: each lock counts how often it was taken.
///
/// Uncontended cost: one atomic exchange to take it, one addition to count, one store to release it.
#[derive(Default, Debug)]
pub struct SpinLock<T: ?Sized> {
    /// How often it was taken. Written by the holder.
    taken: AtomicU32,
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
    pub const fn new(value: T) -> Self {
        Self { taken: AtomicU32::new(0), inner: spin::mutex::SpinMutex::new(value) }
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Waits until no one else holds the lock, and holds it until the guard is dropped.
    ///
    /// # Panics
    ///
    /// When the holder does not let go for [`SPIN_LIMIT`] looks (taking the same lock twice does that), or when the
    /// policy has panicked elsewhere while this CPU waits.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        #[cfg(feature = "observe")]
        let here = core::panic::Location::caller();
        #[cfg(feature = "observe")]
        self.ask(|lock, taken| crate::observe::Point::Wants(lock, here, taken));
        match self.inner.try_lock() {
            Some(guard) => self.held(guard),
            None => self.wait(SPIN_LIMIT),
        }
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
        guard.map(|guard| self.held(guard))
    }

    /// Whether an observer lets the call go on.
    #[cfg(feature = "observe")]
    fn ask(&self, point: impl Fn(usize, u32) -> crate::observe::Point) -> bool {
        loop {
            match crate::observe::reach(point(self.address(), self.taken.load(Ordering::Relaxed))) {
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

    #[inline]
    fn held<'a>(&'a self, guard: spin::mutex::SpinMutexGuard<'a, T>) -> SpinGuard<'a, T> {
        let taken = self.taken.load(Ordering::Relaxed).wrapping_add(1);
        self.taken.store(taken, Ordering::Relaxed);
        #[cfg(feature = "observe")]
        crate::observe::reach(crate::observe::Point::Took(self.address()));
        learn(u64::from(taken));
        SpinGuard {
            guard,
            _released: Released(
                #[cfg(feature = "observe")]
                self.address(),
            ),
        }
    }

    #[cold]
    #[track_caller]
    fn wait(&self, looks: u32) -> SpinGuard<'_, T> {
        for _ in 0..looks {
            // Looking first keeps the cache line shared while the holder works.
            if !self.inner.is_locked() {
                if let Some(guard) = self.inner.try_lock() {
                    return self.held(guard);
                }
            }
            #[cfg(feature = "observe")]
            crate::observe::reach(crate::observe::Point::Waits(self.address()));
            assert!(!POISONED.load(Ordering::Relaxed), "another CPU panicked while this one waited for a lock");
            core::hint::spin_loop();
        }
        panic!("deadlock: a lock was not released for {looks} looks");
    }
}

/// Holds a [`SpinLock`] until it is dropped.
#[derive(Debug)]
pub struct SpinGuard<'a, T: ?Sized> {
    guard: spin::mutex::SpinMutexGuard<'a, T>,
    // After the guard, so that the lock is free by the time anybody hears of it.
    _released: Released,
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
    #[should_panic(expected = "deadlock: a lock was not released for 1000 looks")]
    fn a_lock_taken_twice_panics() {
        let lock = SpinLock::new(());
        let _held = lock.lock();
        // What `lock` does when it finds the lock taken, with less patience.
        lock.wait(1000);
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
