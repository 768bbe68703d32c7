//! The functions of `ekiden.ko` that this crate calls, for tests in a process: each thread says itself how they answer.

use core::cell::{Cell, RefCell};
use std::{thread_local, vec::Vec};

use crate::wait::{GO_ON, TOO_LONG, Wait};

thread_local! {
    /// How many looks are answered with [`GO_ON`] before [`TOO_LONG`].
    pub(crate) static PATIENCE: Cell<u64> = const { Cell::new(u64::MAX) };
    /// What happens on another CPU meanwhile, at each look.
    pub(crate) static ON_LOOK: Cell<Option<fn()>> = const { Cell::new(None) };
    /// Which functions were called, and what the wait had at that time.
    pub(crate) static CALLS: RefCell<Vec<(&'static str, [u64; 4])>> = const { RefCell::new(Vec::new()) };
}

/// Calls since the last time, in order.
pub(crate) fn calls() -> Vec<(&'static str, [u64; 4])> {
    CALLS.take()
}

fn note(name: &'static str, wait: &Wait) {
    CALLS.with_borrow_mut(|calls| calls.push((name, wait.0)));
}

/// Keeps in the wait what the C half keeps there: the fuel before, and how often there was a look.
#[unsafe(no_mangle)]
extern "C" fn ekiden_wait_begin(wait: &mut Wait) {
    *wait = Wait([1000, 0, 0, 0]);
    note("begin", wait);
}

#[unsafe(no_mangle)]
extern "C" fn ekiden_wait_look(wait: &mut Wait) -> u32 {
    note("look", wait);
    if let Some(happens) = ON_LOOK.get() {
        happens();
    }
    wait.0[1] += 1;
    if wait.0[1] > PATIENCE.get() { TOO_LONG } else { GO_ON }
}

#[unsafe(no_mangle)]
extern "C" fn ekiden_wait_end(wait: &Wait) {
    note("end", wait);
}
