//! What a call learns besides its message: answers of the host, numbers that other CPUs write, the order of locks. A host
//! that records calls takes note of each; one that replays them gives the same again. So a call does the same a second
//! time, whatever happened beside it.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

static ON: AtomicBool = AtomicBool::new(false);
#[cfg(not(target_os = "none"))]
static LEARN: spin::Once<fn(u64) -> u64> = spin::Once::new();

/// From here on, while the call log [runs](run_call_log), `learn` is given what every call in this program learns, and answers with
/// what the call is to go on with. The first one stays. In the kernel it is a function of the module that has a name of its own.
#[cfg(not(target_os = "none"))]
pub fn call_log(learn: fn(u64) -> u64) {
    LEARN.call_once(|| learn);
}

/// Starts or stops the call log, for all calls in this program.
pub fn run_call_log(on: bool) {
    ON.store(on, Relaxed);
}

/// Whether the [call log](call log()) runs.
#[inline]
pub fn call_log_runs() -> bool {
    ON.load(Relaxed)
}

/// A call has learnt `value`. Costs a load and a branch while no call log runs.
#[inline]
pub(crate) fn learn(value: u64) -> u64 {
    if call_log_runs() { learn_on_call_log(value) } else { value }
}

/// Writes down what a call has learnt, or reads it in a replay, while the call log runs.
#[inline(never)]
pub(crate) fn learn_on_call_log(value: u64) -> u64 {
    learn_here(value)
}

/// The same without a call. In the kernel the host is part of the same object, and called by its name: each lock that is taken comes here.
#[inline(always)]
pub(crate) fn learn_here(value: u64) -> u64 {
    #[cfg(target_os = "none")]
    {
        ekiden_lock::host_learns(value);
        value
    }
    #[cfg(not(target_os = "none"))]
    LEARN.get().map_or(value, |learn| learn(value))
}
