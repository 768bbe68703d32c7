//! Which CPUs run none of our tasks.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ekiden::{CpuId, CpuMask};

/// The set of CPUs that found nothing to run. Shared by the engine, which keeps it, and the host, which answers
/// [`Cx::idle_cpus`](ekiden::Cx::idle_cpus) from it.
#[derive(Debug)]
pub struct IdleCpus {
    words: Vec<AtomicU64>,
}

impl IdleCpus {
    /// A set for `nr_cpus` CPUs, all busy.
    pub fn new(nr_cpus: u32) -> Self {
        let mut words = Vec::new();
        words.resize_with(nr_cpus.div_ceil(64).max(1) as usize, || AtomicU64::new(0));
        Self { words }
    }

    /// Whether `cpu` is idle.
    #[inline]
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.words.get((cpu / 64) as usize).is_some_and(|word| word.load(Relaxed) & 1 << (cpu % 64) != 0)
    }

    /// Puts the idle CPUs into `cpus`.
    pub fn copy_to(&self, cpus: &mut CpuMask) {
        for (index, word) in self.words.iter().enumerate() {
            let mut bits = word.load(Relaxed);
            while bits != 0 {
                cpus.set(index as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Notes whether `cpu` is idle, and tells whether that is news. Writes only when it is.
    #[inline]
    pub(crate) fn note(&self, cpu: CpuId, idle: bool) -> bool {
        let Some(word) = self.words.get((cpu / 64) as usize) else { return false };
        let bit = 1 << (cpu % 64);
        if (word.load(Relaxed) & bit != 0) == idle {
            return false;
        }
        if idle {
            word.fetch_or(bit, Relaxed)
        } else {
            word.fetch_and(!bit, Relaxed)
        };
        true
    }
}
