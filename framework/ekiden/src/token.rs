//! The scheduling token.

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::{fmt, marker::PhantomData, mem};

use ekiden_abi::{RawToken, RefusalReason, TaskId};

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
/// It cannot be copied, cloned or made by a policy, nor used after it was given back, nor queued or returned by another
/// policy: none of these compiles (`framework/ekiden/tests/ui/fail`, one program each). Dropping one that is still good
/// loses the task: the framework notices, says which call did it, and issues a new one.
///
/// ```
/// use ekiden::prelude::*;
///
/// /// Holds one task at most.
/// struct Slot(SpinLock<Option<Schedulable<Self>>>);
///
/// #[policy]
/// impl Scheduler for Slot {
/// #     fn new(_: &Env) -> Self { Self(SpinLock::default()) }
///     fn enqueue(&self, _: &Cx, task: &Task, token: Schedulable<Self>) {
///         assert_eq!((token.task(), token.cpu()), (task.id, 0));
///         // What was there before is lost.
///         *self.0.lock() = Some(token);
///     }
///
///     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> {
///         self.0.lock().take()
///     }
/// }
///
/// let mut machine = ekiden_example_host::Machine::<Slot>::flat(1);
/// let first = machine.wait(ekiden::Call::TaskWakeup, 3, 0);
/// assert!(first.dropped.is_none());
/// let second = machine.wait(ekiden::Call::TaskWakeup, 4, 0);
/// assert_eq!(second.dropped.task.slot, 3);
/// assert_eq!(machine.pick(0), Some(4));
/// ```
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
    /// The CPU that the task may run on. [`Cx::claim`](crate::Cx::claim) exchanges the token for one for another CPU.
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

    /// Moves the token to another CPU: the engine has moved the task there.
    pub(crate) fn on(mut self, cpu: CpuId) -> Self {
        self.cpu = cpu as u16;
        self
    }

    pub(crate) fn raw(&self) -> RawToken {
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

/// A token that could not be [claimed](crate::Cx::claim).
///
/// ```
/// use ekiden::{Refused, prelude::*};
///
/// struct Central(SpinLock<FifoQueue<Self>>);
///
/// #[policy]
/// impl Scheduler for Central {
/// #     fn new(_: &Env) -> Self { Self(SpinLock::default()) }
/// #     fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) { self.0.lock().push_back(token); }
///     fn pick_next_task(&self, cx: &Cx, _: CpuId) -> Option<Schedulable<Self>> {
///         let mut queue = self.0.lock();
///         match cx.claim(queue.pop_front()?) {
///             Ok(token) => Some(token),
///             Err(Refused { token, reason }) => {
///                 if reason.token_is_good() {
///                     queue.push_front(token);
///                 }
///                 None
///             }
///         }
///     }
/// }
///
/// // This task is still leaving CPU 0.
/// let mut machine = ekiden_example_host::Machine::<Central>::flat(2);
/// machine.wake(ekiden_example_host::BUSY, 0);
/// assert_eq!((machine.pick(1), machine.pick(0)), (None, Some(ekiden_example_host::BUSY)));
/// ```
#[must_use = "dropping the token loses the task if the token is still good"]
pub struct Refused<P: ?Sized> {
    /// The token as it was. Still good if the reason [says so](RefusalReason::token_is_good); otherwise it can be dropped.
    pub token: Schedulable<P>,
    /// Why.
    pub reason: RefusalReason,
}

impl<P: ?Sized> fmt::Debug for Refused<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, refused: {}", self.token, self.reason.describe())
    }
}

/// One running instance of a policy. Several can live in one program (the simulator's tests do), and a dropped token
/// must be reported to the right one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instance(u16);

/// Room for a token that was dropped and is not reported yet. No lock, so a panic in between leaves none taken.
struct Place {
    state: AtomicU32,
    /// The task's number, and the serial and the CPU.
    words: [AtomicU64; 2],
}

impl Place {
    const FREE: u32 = 0;
    /// It is being written or read.
    const TAKEN: u32 = 1;
    /// It has a token of the instance whose number is in the upper half.
    const FULL: u32 = 2;

    const fn new() -> Self {
        Self { state: AtomicU32::new(Self::FREE), words: [const { AtomicU64::new(0) }; 2] }
    }

    fn take(&self, from: u32) -> bool {
        self.state.compare_exchange(from, Self::TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// Tokens that were dropped and not yet reported. Only ever touched when something was dropped. Its size is fixed,
/// because a token may be dropped when memory has run out; what does not fit is not reported, and such a policy has
/// been judged by then.
struct Dropped {
    places: [Place; 64],
    /// How many there are, at least.
    len: AtomicUsize,
}

static DROPPED: Dropped = Dropped::new();

impl Dropped {
    const fn new() -> Self {
        Self { places: [const { Place::new() }; 64], len: AtomicUsize::new(0) }
    }

    fn note(&self, instance: Instance, raw: RawToken) {
        let Some(place) = self.places.iter().find(|place| place.take(Place::FREE)) else { return };
        place.words[0].store(raw.task.to_bits(), Ordering::Relaxed);
        place.words[1].store(u64::from(raw.serial) << 32 | u64::from(raw.cpu), Ordering::Relaxed);
        self.len.fetch_add(1, Ordering::Release);
        place.state.store(Place::FULL | u32::from(instance.0) << 16, Ordering::Release);
    }

    fn take(&self, instance: Instance) -> Option<RawToken> {
        let place = self.places.iter().find(|place| place.take(Place::FULL | u32::from(instance.0) << 16))?;
        let [task, rest] = [0, 1].map(|word: usize| place.words[word].load(Ordering::Relaxed));
        self.len.fetch_sub(1, Ordering::Release);
        place.state.store(Place::FREE, Ordering::Release);
        Some(RawToken { task: TaskId::from_bits(task), cpu: rest as u32, serial: (rest >> 32) as u32 })
    }

    fn forget(&self) {
        self.places.iter().for_each(|place| place.state.store(Place::FREE, Ordering::Relaxed));
        self.len.store(0, Ordering::Release);
    }
}

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
        DROPPED.note(self, raw);
    }

    /// A token of this instance that was dropped since the last time.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_dropped(self) -> RawToken {
        DROPPED.take(self).unwrap_or(RawToken::NONE)
    }
}

/// Whether there is a token that was dropped, of any instance: one load.
#[inline]
pub(crate) fn any_dropped() -> bool {
    DROPPED.len.load(Ordering::Acquire) != 0
}

/// The place of a living policy among the instances. When it goes, so do the tokens that were still in its queues: no
/// one asks for them any more, and they would take the room of others.
pub(crate) struct Tenant(pub(crate) Instance);

impl Drop for Tenant {
    fn drop(&mut self) {
        while any_dropped() && !self.0.take_dropped().is_none() {}
    }
}

/// Forgets every dropped token. For a host that starts over with fresh memory.
pub fn forget_dropped(_: ekiden_lock::OfHost) {
    DROPPED.forget();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that ends in the middle leaves what it had taken, and a module may be used again.
    #[test]
    fn calls_that_never_returned_leave_no_place_taken_when_all_starts_over() {
        let (dropped, instance) = (Dropped::new(), Instance::with_number(3));
        let raw = RawToken { task: TaskId { slot: 1, generation: 2 }, cpu: 4, serial: 5 };
        assert!(dropped.places.iter().all(|place| place.take(Place::FREE)));
        dropped.note(instance, raw);
        assert_eq!(dropped.take(instance), None);
        dropped.forget();
        dropped.note(instance, raw);
        assert_eq!((dropped.take(Instance::with_number(7)), dropped.take(instance)), (None, Some(raw)));
    }
}
