//! The CPUs that a policy looks at in one call.

use std::cell::{Cell, RefCell};

use ekiden::{CpuId, CpuMask};
use ekiden_host::observe::observe_looks;

thread_local! {
    static WATCHES: Cell<bool> = const { Cell::new(false) };
    static LOOKED_AT: RefCell<CpuMask> = RefCell::new(CpuMask::new());
}

/// Runs `call`, and says at which CPUs it looked ([`observe_looks`]). It may be a part of a coroutine: what that looked at until it
/// was switched away from.
pub fn considered<R>(call: impl FnOnce() -> R) -> (R, CpuMask) {
    observe_looks(|cpu: CpuId| {
        if WATCHES.get() {
            LOOKED_AT.with_borrow_mut(|cpus| cpus.set(cpu));
        }
    });
    WATCHES.set(true);
    let result = call();
    WATCHES.set(false);
    (result, LOOKED_AT.take())
}
