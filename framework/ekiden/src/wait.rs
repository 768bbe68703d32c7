//! How a call waits for another one to let go of a lock. Waiting is not looping: it burns no fuel, and has no limit of turns.
//! It ends when the other call does, by whatever way; a host says when there is nothing left to wait for.

use ekiden_lock::OfHost;

use crate::atomics::AtomicBool;
use crate::poison::Poison;

/// What a host keeps for a call that waits: its own numbers.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Since(pub [u64; 4]);

/// What a host says to a call that waits and has looked once more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// It waits on.
    GoOn,
    /// This is the last resort: it has waited for longer than any call takes.
    TooLong,
    /// Nothing is left of the policy, and the reason for that is known.
    Over,
}

/// How a host has calls wait.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// A call begins to wait.
    pub begin: fn() -> Since,
    /// It has looked once more.
    pub look: fn(&mut Since) -> Patience,
    /// It need not wait any more.
    pub end: fn(&Since),
}

/// Without a host that knows better, a call looks so often: some ten seconds. A host without a clock has few calls at once.
const LOOKS_MAX: u64 = 1 << 28;

static WAITS: spin::Once<Waits> = spin::Once::new();

const BY_LOOKS: Waits = Waits {
    begin: || Since([0; 4]),
    look: |since| {
        since.0[0] += 1;
        if since.0[0] < LOOKS_MAX { Patience::GoOn } else { Patience::TooLong }
    },
    end: |_| (),
};

/// From here on calls in this program wait in this way. The first one stays.
pub fn wait_so(waits: Waits) {
    WAITS.call_once(|| waits);
}

static POISON: Poison = Poison { is_set: AtomicBool::new(false) };

/// Makes every waiter give up. The kernel host calls it when a call of the policy has panicked; `keep_reason` keeps why, and is
/// called first, unless the call panicked because another one had.
#[inline]
pub fn poison_locks(_: OfHost, keep_reason: impl FnOnce()) {
    POISON.panicked(keep_reason);
}

/// Takes that back for the next policy, of whose locks nothing is known. No call is under way.
pub fn forget_locks(host: OfHost) {
    crate::order::forget(host);
    POISON.forget();
}

/// Whether locks are poisoned. What a call does from here on, a panic included, is a consequence and no reason.
pub fn locks_are_poisoned(_: OfHost) -> bool {
    POISON.is_set()
}

/// A call that waits.
pub(crate) struct Wait {
    waits: &'static Waits,
    since: Since,
}

impl Wait {
    #[cold]
    pub(crate) fn begin() -> Self {
        let waits = WAITS.get().unwrap_or(&BY_LOOKS);
        Self { waits, since: (waits.begin)() }
    }

    /// It has looked once more, and waits on unless this is false.
    ///
    /// # Panics
    /// When the policy has faulted elsewhere.
    #[track_caller]
    pub(crate) fn goes_on(&mut self) -> bool {
        let patience = (self.waits.look)(&mut self.since);
        if patience == Patience::Over {
            // The host has its reason.
            POISON.set();
        }
        assert!(!POISON.is_set(), "another CPU panicked while this one waited for a lock");
        core::hint::spin_loop();
        patience == Patience::GoOn
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        (self.waits.end)(&self.since);
    }
}

/// Tries until there is something: for locks that are no policy's, whose holders do nothing but go on to the end.
///
/// # Panics
/// When that takes longer than any call does, or all is over meanwhile.
#[cold]
#[inline(never)]
#[track_caller]
pub fn wait_for<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let mut wait = Wait::begin();
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(wait.goes_on(), "a lock of the framework was not released in time: its holder hangs");
    }
}
