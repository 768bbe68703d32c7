//! Kicks that a policy has asked for beyond what it may in a window. They are put together and carried out when it is over, so no task
//! is lost by it.

use ekiden_host::abi::Kicks;

use super::atomics::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// The window, in nanoseconds. Work that is held back waits no longer than that.
pub(crate) const WINDOW_NS: u64 = 1_000_000;

/// Kicks that wait for the end of a window, of all policies and CPUs.
#[derive(Debug, Default)]
pub(crate) struct Late {
    pub(crate) kicks: AtomicU64,
    /// When the next may be carried out.
    pub(crate) next_ns: AtomicU64,
}

impl Late {
    /// The caller sets a timer of its own CPU after that, at which what waits is taken.
    pub(crate) fn add(&self, kicks: Kicks) {
        let put_together = |bits| {
            let mut all = Kicks::from_bits(bits);
            all.add_all(kicks);
            Some(all.to_bits())
        };
        // It cannot fail.
        let _ = self.kicks.fetch_update(Release, Relaxed, put_together);
    }

    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.kicks.load(Relaxed) != 0
    }

    /// Takes the kicks that wait, or says when they may come.
    pub(crate) fn take(&self, now_ns: u64) -> Result<Kicks, u64> {
        let next_ns = self.next_ns.load(Relaxed);
        if now_ns < next_ns {
            return Err(next_ns);
        }
        self.next_ns.store(now_ns.saturating_add(WINDOW_NS), Relaxed);
        Ok(Kicks::from_bits(self.kicks.swap(0, Acquire)))
    }
}
