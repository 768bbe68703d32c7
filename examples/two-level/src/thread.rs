//! A user-level thread: a coroutine with a stack of its own, which runs until it says that it waits or yields.

use std::{cell::Cell, io, ptr, sync::Arc};

use corosensei::{Coroutine, CoroutineResult, Yielder, stack::DefaultStack};

/// Size of a user-level thread's stack. Pages that it does not use take no memory; below is one that faults.
const STACK_BYTES: usize = 256 << 10;

/// Where threads wait.
pub(crate) trait Place: Send + Sync {
    /// Keeps a thread until what it waits for happens. Gives it back if that has happened already.
    fn keep(&self, thread: Thread) -> Option<Thread>;
}

/// Why a thread has left its activation.
pub(crate) enum Left {
    Yields,
    Waits(Arc<dyn Place>),
}

type Leave = Yielder<(), Left>;

thread_local! {
    /// How the user-level thread that runs on this kernel thread leaves it.
    static CURRENT: Cell<*const Leave> = const { Cell::new(ptr::null()) };
}

// Not inlined: a user-level thread comes back on another kernel thread, where a place that was looked up before is not its own.
#[inline(never)]
fn current() -> *const Leave {
    CURRENT.get()
}

#[inline(never)]
fn set_current(leave: *const Leave) {
    CURRENT.set(leave);
}

/// Whether the caller is in a user-level thread.
pub(crate) fn is_user_level() -> bool {
    !current().is_null()
}

/// Leaves the activation, in a user-level thread. It may continue on another one.
pub(crate) fn leave(why: Left) {
    let leave = current();
    assert!(!leave.is_null(), "only a user-level thread waits or yields so; start it by `spawn`");
    // SAFETY: `Thread::step` sets it null when the thread leaves, so this is that of the thread that runs, on whose stack it stays.
    unsafe { (*leave).suspend(why) };
    set_current(leave);
}

/// The result of a step.
pub(crate) enum Step {
    Ended,
    Left(Thread, Left),
}

/// A thread that does not run at the moment.
pub(crate) struct Thread(Coroutine<(), Left, ()>);

// SAFETY: what it begins with is `Send`, and a caller of `Thread::new` promises it of all that is on its stack when it leaves.
unsafe impl Send for Thread {}

impl Thread {
    /// A thread that is to do this, which must not panic.
    ///
    /// # Safety
    /// Values on its stack when it calls [`leave`] may be used on another kernel thread from then on: they are `Send`, and have nothing
    /// of a thread-local variable.
    pub(crate) unsafe fn new(does: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let stack = DefaultStack::new(STACK_BYTES)?;
        Ok(Self(Coroutine::with_stack(stack, move |leave: &Leave, ()| {
            set_current(leave);
            does();
        })))
    }

    /// Runs it until it ends or leaves.
    pub(crate) fn step(mut self) -> Step {
        let came = self.0.resume(());
        set_current(ptr::null());
        match came {
            CoroutineResult::Yield(left) => Step::Left(self, left),
            CoroutineResult::Return(()) => Step::Ended,
        }
    }
}
