//! Which CPUs run none of our tasks, and which of them were told to look for work.

use alloc::vec::Vec;

use ekiden::{CpuId, CpuMask};

use super::atomics::{AtomicU64, Ordering::Relaxed};
use super::wakeups::Handed;

/// The set of CPUs that found nothing to run. Shared by the engine, which keeps it, and the host, which answers
/// [`Cx::idle_cpus`](ekiden::Cx::idle_cpus) and [`Cx::kick_idle`](ekiden::Cx::kick_idle) from it.
#[derive(Debug)]
pub struct IdleCpus {
    words: Vec<Word>,
    pub(crate) handed: Handed,
}

/// CPUs that are idle, and those of them that are going to look for work because they were taken: no other CPU is to kick them.
#[derive(Debug)]
struct Word {
    idle: AtomicU64,
    taken: AtomicU64,
}

impl IdleCpus {
    /// A set for `nr_cpus` CPUs, all busy.
    pub fn new(nr_cpus: u32) -> Self {
        let mut words = Vec::new();
        let word = || Word { idle: AtomicU64::new(0), taken: AtomicU64::new(0) };
        words.resize_with(nr_cpus.div_ceil(64).max(1) as usize, word);
        Self { words, handed: Handed::new() }
    }

    /// Whether `cpu` is idle.
    #[inline]
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.words.get((cpu / 64) as usize).is_some_and(|word| word.idle.load(Relaxed) & bit(cpu) != 0)
    }

    /// Puts the idle CPUs into `cpus`.
    pub fn copy_to(&self, cpus: &mut CpuMask) {
        for (index, word) in self.words.iter().enumerate() {
            members(index, word.idle.load(Relaxed)).for_each(|cpu| cpus.set(cpu));
        }
    }

    /// Takes an idle CPU that is in all these sets and that `may` be used, for the caller to kick now; no other call gets it before it has
    /// looked for work. The caller has put a task where CPUs look for it.
    pub fn take(&self, among: &[&[u64]], may: impl Fn(CpuId) -> bool) -> Option<CpuId> {
        self.handed.hand(|| {
            self.words.iter().enumerate().find_map(|(index, word)| {
                let free = word.idle.load(Relaxed) & !word.taken.load(Relaxed);
                let set = |words: &&[u64]| words.get(index).copied().unwrap_or(0);
                members(index, among.iter().map(set).fold(free, |free, set| free & set))
                    .find(|cpu| may(*cpu) && word.taken.fetch_or(bit(*cpu), Relaxed) & bit(*cpu) == 0)
            })
        })
    }

    /// `cpu` has looked for work. Notes whether it is idle, and tells whether that is news. Writes only when it is.
    #[inline]
    pub(crate) fn note(&self, cpu: CpuId, idle: bool) -> bool {
        let Some(word) = self.words.get((cpu / 64) as usize) else { return false };
        let is_news = (word.idle.load(Relaxed) >> (cpu % 64) & 1 != 0) != idle;
        if is_news {
            word.change(cpu, idle);
        }
        is_news
    }

    /// `cpu`, which was idle before, has looked for work in vain: it can be taken again. Whether it was.
    pub(crate) fn can_be_taken(&self, cpu: CpuId) -> bool {
        self.words.get((cpu / 64) as usize).is_some_and(|word| word.forget(bit(cpu)))
    }
}

impl Word {
    #[inline(never)]
    fn change(&self, cpu: CpuId, idle: bool) {
        let bit = bit(cpu);
        if idle {
            // It may have been taken just when it was not idle any more.
            self.forget(bit);
            self.idle.fetch_or(bit, Relaxed);
        } else {
            self.idle.fetch_and(!bit, Relaxed);
            self.forget(bit);
        }
    }

    #[inline]
    fn forget(&self, bit: u64) -> bool {
        self.taken.load(Relaxed) & bit != 0 && self.taken.fetch_and(!bit, Relaxed) & bit != 0
    }
}

#[inline]
fn bit(cpu: CpuId) -> u64 {
    1 << (cpu % 64)
}

fn members(index: usize, mut word: u64) -> impl Iterator<Item = CpuId> {
    core::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        // Removes the lowest bit; there is none if the word was zero.
        word &= word.checked_sub(1)?;
        Some(index as u32 * 64 + bit)
    })
}
