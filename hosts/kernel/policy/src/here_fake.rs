//! Per-CPU state in a process, for tests: it is a thread's here.

use core::{
    cell::Cell,
    ptr::{self, NonNull},
};
use std::thread_local;

thread_local! {
    pub(crate) static CALL_LOG: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
    pub(crate) static FUEL: Cell<i64> = const { Cell::new(0) };
    pub(crate) static GUARD: Cell<usize> = const { Cell::new(1) };
}

/// What the processor's counter says.
pub(crate) const TICKS: u64 = 5_000;
/// The thread that runs.
pub(crate) const THREAD: u32 = 77;

pub(crate) fn ticks() -> u64 {
    TICKS
}

pub(crate) fn call_log() -> *mut u8 {
    CALL_LOG.get()
}

pub(crate) fn refuel(turns: i64) {
    FUEL.set(turns);
}

pub(crate) fn guard() -> usize {
    GUARD.get()
}

pub(crate) fn thread() -> u32 {
    THREAD
}

pub(crate) fn anew<T>(address: NonNull<T>) -> NonNull<T> {
    address
}
