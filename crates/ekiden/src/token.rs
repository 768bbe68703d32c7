//! The scheduling token.

use core::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use core::{fmt, marker::PhantomData, mem};

use ekiden_abi::{RawToken, TaskId};
use spin::mutex::{SpinMutex, SpinMutexGuard};

use crate::CpuId;

/// The right to run one task on one CPU, once (papers/000, section 3.1).
///
/// Holding one tells you that the framework gave it to *this* policy (`P`), that the task was waiting for a CPU at
/// that moment, and that the kernel keeps it on the run queue of [`Schedulable::cpu`].
///
/// It does not tell you that the task is still there: it may have died, left for another scheduling class or been
/// moved since. The framework finds out when the token comes back, and hands it back through
/// [`pnt_err`](crate::Scheduler::pnt_err).
///
/// It cannot be copied, cloned or made by a policy. Dropping one that is still good loses the task: the framework
/// notices, says which call did it, and issues a new one.
#[must_use = "dropping this loses the task"]
pub struct Schedulable<P: ?Sized> {
    task: TaskId,
    serial: u32,
    cpu: u16,
    instance: Instance,
    // A token belongs to the policy type that it was issued to; `fn` keeps it Send and Sync whatever P is.
    policy: PhantomData<fn(&P)>,
}

impl<P: ?Sized> Schedulable<P> {
    /// The CPU that the task may run on.
    pub fn cpu(&self) -> CpuId {
        CpuId::from(self.cpu)
    }

    /// The task that may run.
    pub fn task(&self) -> TaskId {
        self.task
    }

    #[inline]
    pub(crate) fn from_raw(raw: RawToken, instance: Instance) -> Self {
        Self { task: raw.task, serial: raw.serial, cpu: raw.cpu as u16, instance, policy: PhantomData }
    }

    #[inline]
    pub(crate) fn into_raw(self) -> RawToken {
        let raw = self.raw();
        // It goes back to the engine, so it is not lost.
        mem::forget(self);
        raw
    }

    fn raw(&self) -> RawToken {
        RawToken { task: self.task, cpu: u32::from(self.cpu), serial: self.serial }
    }
}

impl<P: ?Sized> fmt::Debug for Schedulable<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the right to run {} on CPU {}", self.task, self.cpu)
    }
}

impl<P: ?Sized> Drop for Schedulable<P> {
    fn drop(&mut self) {
        self.instance.note_dropped(self.raw());
    }
}

/// One running instance of a policy. Several can live in one program (the simulator's tests do), and a dropped token
/// must be reported to the right one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instance(u16);

/// Tokens that were dropped and not yet reported. Only ever touched when something was dropped. Of a fixed size,
/// because a token may be dropped when memory has run out; what does not fit is not reported, and such a policy has
/// been judged by then.
struct Dropped {
    len: usize,
    tokens: [(Instance, RawToken); 64],
}

/// Not a lock of policies, whose order is recorded: it is shared by all of them.
static DROPPED: SpinMutex<Dropped> = SpinMutex::new(Dropped { len: 0, tokens: [(Instance(0), RawToken::NONE); 64] });

fn lock_dropped() -> SpinMutexGuard<'static, Dropped> {
    DROPPED.try_lock().unwrap_or_else(|| crate::wait_for(|| DROPPED.try_lock()))
}

/// The same length, where it can be read without the lock.
static DROPPED_LEN: AtomicUsize = AtomicUsize::new(0);

impl Instance {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn number(self) -> u16 {
        self.0
    }

    pub(crate) fn with_number(number: u16) -> Self {
        Self(number)
    }

    #[cold]
    pub(crate) fn note_dropped(self, raw: RawToken) {
        let mut dropped = lock_dropped();
        let len = dropped.len;
        if let Some(place) = dropped.tokens.get_mut(len) {
            *place = (self, raw);
            dropped.len += 1;
        }
        DROPPED_LEN.store(dropped.len, Ordering::Release);
    }

    /// A token of this instance that was dropped since the last time. Costs one load when there is none.
    #[inline]
    pub(crate) fn take_dropped(self) -> RawToken {
        if DROPPED_LEN.load(Ordering::Acquire) == 0 {
            return RawToken::NONE;
        }
        self.take_dropped_slow().unwrap_or(RawToken::NONE)
    }

    #[cold]
    fn take_dropped_slow(self) -> Option<RawToken> {
        let mut dropped = lock_dropped();
        let len = dropped.len;
        let index = dropped.tokens[..len].iter().position(|(instance, _)| *instance == self)?;
        let (_, raw) = dropped.tokens[index];
        dropped.tokens[index] = dropped.tokens[len - 1];
        dropped.len -= 1;
        DROPPED_LEN.store(dropped.len, Ordering::Release);
        Some(raw)
    }
}

/// The place of a living policy among the instances. When it goes, so do the tokens that were still in its queues: no
/// one asks for them any more, and they would take the room of others.
pub(crate) struct Tenant(pub(crate) Instance);

impl Drop for Tenant {
    fn drop(&mut self) {
        while !self.0.take_dropped().is_none() {}
    }
}

/// Forgets every dropped token. For a host that starts over with fresh memory.
pub fn forget_dropped() {
    lock_dropped().len = 0;
    DROPPED_LEN.store(0, Ordering::Release);
}
