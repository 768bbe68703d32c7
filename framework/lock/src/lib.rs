//! The lock under `SpinLock`. Its word says which call has it, and a call that ends can tell in one instruction whether it has
//! let go of all locks: that takes unsafe code, which the author's crate forbids. Calls that wait get it in the order in
//! which they came (`clh.rs`); for how long they wait is said there.
#![no_std]

use core::{
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
    panic::Location,
    ptr,
    sync::atomic::{
        AtomicPtr, AtomicU32, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

mod clh;
#[cfg_attr(all(target_os = "none", target_arch = "x86_64"), path = "held_x86_64.rs")]
mod held;

#[cfg(target_os = "none")]
unsafe extern "C" {
    /// The call on this CPU has learnt this. In the module of a policy (hosts/kernel/policy/src/call_log.rs).
    safe fn ekiden_learn(value: u64);
}

/// Tells the host, in the kernel, what the call that is under way has learnt, which takes unsafe code to declare. A policy that says something
/// here makes its own recordings such that they cannot be replayed, and does nothing else.
#[cfg(target_os = "none")]
#[inline(always)]
pub fn host_learns(value: u64) {
    ekiden_learn(value);
}

/// What the queue is made of; a model of it is made of other ones.
mod atomics {
    pub(crate) use core::sync::atomic::{AtomicU32, Ordering};
}

pub use clh::Turn;
pub use held::held;

use clh::{Place, Queue};

/// For calls that wait, and places that the call behind has not let go of: more than most machines have CPUs.
static PLACES: [Place; 256] = [const { Place { state: AtomicU32::new(clh::FREE), before: AtomicU32::new(0) } }; 256];

/// Shows that the caller is a host. What takes one reaches into all locks of a program at once, which no policy may. Only unsafe code can make
/// one, and that is refused in a policy and named in what it depends on: a policy gains nothing by naming this crate.
#[derive(Clone, Copy, Debug)]
pub struct OfHost(());

impl OfHost {
    /// # Safety
    /// The caller is a host or a test of one. No code of a policy gets at it.
    #[inline]
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

/// No call waits any more: some have ended while they did.
pub fn forget_waiters(_: OfHost) {
    PLACES.iter().for_each(|place| place.state.store(clh::FREE, Relaxed));
}

/// A value that one call at a time can get at.
#[repr(C)]
#[derive(Debug)]
pub struct Lock<T: ?Sized> {
    /// Which call has it; 0 for none.
    holder: AtomicUsize,
    /// Where it took the lock; null if no note was taken.
    place: AtomicPtr<Location<'static>>,
    queue: Queue,
    value: UnsafeCell<T>,
}

// SAFETY: the value is given to one call at a time.
unsafe impl<T: ?Sized + Send> Send for Lock<T> {}
// SAFETY: calls that share the lock have the value one at a time, so it need not be Sync itself.
unsafe impl<T: ?Sized + Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// One that no call has.
    pub const fn new(value: T) -> Self {
        Self {
            holder: AtomicUsize::new(0),
            place: AtomicPtr::new(ptr::null_mut()),
            queue: Queue { last: AtomicU32::new(0) },
            value: UnsafeCell::new(value),
        }
    }
}

impl<T: ?Sized> Lock<T> {
    /// The call `holder`, a number other than 0, takes the lock if it is free and no other call waits for it.
    #[inline]
    pub fn lock_at_once(&self, holder: usize) -> Option<Guard<'_, T>> {
        if self.queue.is_empty() { self.try_lock(holder) } else { None }
    }

    /// A call waits behind those that wait already. It takes the lock by [`try_lock`](Self::try_lock) when it is first. `hint` is
    /// a number that other calls seldom have.
    #[cold]
    pub fn join(&self, hint: usize) -> Turn<'_> {
        self.queue.join(&PLACES, hint)
    }

    /// The call `holder`, a number other than 0, takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self, holder: usize) -> Option<Guard<'_, T>> {
        self.holder.compare_exchange(0, holder, Acquire, Relaxed).ok()?;
        held::change(self.address());
        Some(Guard { lock: self })
    }

    /// The call that has it; 0 if none does.
    #[inline]
    pub fn holder(&self) -> usize {
        self.holder.load(Acquire)
    }

    /// Where it was taken, if note was taken of that.
    pub fn place(&self) -> Option<&'static Location<'static>> {
        // SAFETY: null, or made of a reference that is good for as long as the program is there.
        unsafe { self.place.load(Relaxed).as_ref() }
    }

    /// Names the lock. A [`Word`] may be read there.
    #[inline]
    pub fn address(&self) -> usize {
        ptr::from_ref(self).cast::<Word>().expose_provenance()
    }
}

/// The memory of a lock, for a call that has ended with one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Word {
    /// Which call has it.
    pub holder: usize,
    /// The address of a [`Location`].
    pub place: usize,
}

impl Word {
    /// Where the lock was taken.
    ///
    /// # Safety
    /// It was read where there is a [`Lock`].
    pub unsafe fn location(self) -> Option<&'static Location<'static>> {
        // SAFETY: it was read where there is a lock, whose place is null or a `Location`; see `Lock::place`.
        unsafe { ptr::with_exposed_provenance::<Location<'static>>(self.place).as_ref() }
    }
}

/// Holds a [`Lock`] until it is dropped.
#[derive(Debug)]
pub struct Guard<'a, T: ?Sized> {
    lock: &'a Lock<T>,
}

impl<T: ?Sized> Guard<'_, T> {
    /// Takes note of the place where the lock was taken.
    #[inline]
    pub fn taken_at(&self, place: &'static Location<'static>) {
        // A reader of a `Word` has its address alone.
        let _ = ptr::from_ref(place).expose_provenance();
        self.lock.place.store(ptr::from_ref(place).cast_mut(), Relaxed);
    }
}

impl<T: ?Sized> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        held::change(self.lock.address());
        self.lock.holder.store(0, Release);
    }
}

impl<T: ?Sized> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: no other call gets at the value while this one has the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: no other call gets at the value while this one has the lock, and the guard is borrowed for as long.
        unsafe { &mut *self.lock.value.get() }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn a_lock_is_given_to_one_call_and_says_to_which() {
        let lock = Lock::new(5);
        let mut guard = lock.try_lock(7).unwrap();
        *guard += 1;
        assert_eq!((lock.holder(), *guard), (7, 6));
        assert!(lock.try_lock(8).is_none());
        assert!(lock.place().is_none());
        guard.taken_at(Location::caller());
        assert_eq!(lock.place().unwrap().file(), file!());
        drop(guard);
        assert_eq!(lock.holder(), 0);
        assert_eq!(*lock.try_lock(8).unwrap(), 6);
    }

    #[test]
    fn calls_get_a_lock_in_the_order_in_which_they_came() {
        // Miri interprets each instruction.
        const CALLS: usize = if cfg!(miri) { 4 } else { 64 };
        const TIMES: usize = if cfg!(miri) { 5 } else { 100 };
        let (lock, taken) = (Lock::new(()), AtomicUsize::new(0));
        let most = std::thread::scope(|scope| {
            let call = |number: usize| {
                let mut most = 0;
                for _ in 0..TIMES {
                    let mut turn = lock.join(number);
                    let before = taken.load(Relaxed);
                    while !turn.is_first() {
                        std::thread::yield_now();
                    }
                    let guard = loop {
                        match lock.try_lock(number + 1) {
                            Some(guard) => break guard,
                            None => std::thread::yield_now(),
                        }
                    };
                    most = most.max(taken.fetch_add(1, Relaxed) - before);
                    drop((turn, guard));
                }
                most
            };
            let calls: std::vec::Vec<_> = (0..CALLS).map(|number| scope.spawn(move || call(number))).collect();
            calls.into_iter().map(|call| call.join().unwrap()).max().unwrap()
        });
        assert!(most < CALLS, "{most} others came before a call that waited");
        assert!(lock.lock_at_once(1).is_some(), "the queue is empty at the end");
    }

    #[test]
    fn what_lies_where_a_lock_is_tells_who_has_it_and_where_it_was_taken() {
        let lock = Lock::new(());
        let guard = lock.try_lock(7).unwrap();
        guard.taken_at(Location::caller());
        // SAFETY: a lock begins with these two words.
        let word = unsafe { ptr::with_exposed_provenance::<Word>(lock.address()).read() };
        assert_eq!(word.holder, 7);
        // SAFETY: it was read at the address of a lock.
        assert_eq!(unsafe { word.location() }, lock.place());
    }
}
