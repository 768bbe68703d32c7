//! Which CPUs run none of our tasks, and which of them were told to look for work.

use alloc::vec::Vec;

use ekiden::{CpuId, CpuMask, TaskId};

use super::atomics::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
    fence,
};
use super::wakeups::Handed;

/// The set of CPUs that found nothing to run. Shared by the engine, which keeps it, and the host, which answers
/// [`Cx::idle_cpus`](ekiden::Cx::idle_cpus) and [`Cx::kick_idle`](ekiden::Cx::kick_idle) from it.
#[derive(Debug)]
pub struct IdleCpus {
    words: Vec<AtomicU64>,
    told: Vec<Told>,
    pub(crate) handed: Handed,
}

/// What an idle CPU was told to look for: no other call is to kick it before it has looked.
#[derive(Debug)]
struct Told {
    /// A [`TaskId`]; [`TaskId::NONE`] if it was told of none.
    task: AtomicU64,
    /// The CPUs that come first for the task, of the word of this CPU.
    near: AtomicU64,
}

impl IdleCpus {
    /// A set for `nr_cpus` CPUs, all busy.
    pub fn new(nr_cpus: u32) -> Self {
        let (mut words, mut told) = (Vec::new(), Vec::new());
        words.resize_with(nr_cpus.div_ceil(64).max(1) as usize, || AtomicU64::new(0));
        told.resize_with(nr_cpus as usize, || Told {
            task: AtomicU64::new(TaskId::NONE.to_bits()),
            near: AtomicU64::new(u64::MAX),
        });
        Self { words, told, handed: Handed::new() }
    }

    /// Whether `cpu` is idle.
    #[inline]
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.words.get((cpu / 64) as usize).is_some_and(|word| word.load(Relaxed) & bit(cpu) != 0)
    }

    /// Puts the idle CPUs into `cpus`.
    pub fn copy_to(&self, cpus: &mut CpuMask) {
        for (index, word) in self.words.iter().enumerate() {
            members(index, word.load(Relaxed)).for_each(|cpu| cpus.set(cpu));
        }
    }

    /// Takes an idle CPU that is in both sets, or in all CPUs where one is not given, and that `may` be used, for the caller to kick now for
    /// `task`; no other call gets it before it has looked for work. The caller has put the task where CPUs look for it. If the CPU
    /// takes another task then, an idle one is told of this, first of those of `among`.
    pub fn take(
        &self,
        task: TaskId,
        allowed: Option<&[u64]>,
        among: Option<&[u64]>,
        may: impl Fn(CpuId) -> bool,
    ) -> Option<CpuId> {
        self.handed.hand(|| {
            self.words.iter().enumerate().find_map(|(index, word)| {
                let of = |set: Option<&[u64]>| set.map_or(u64::MAX, |words| words.get(index).copied().unwrap_or(0));
                let near = of(among);
                members(index, word.load(Relaxed) & of(allowed) & near)
                    .find(|cpu| self.tell(*cpu, task, near, || may(*cpu)))
            })
        })
    }

    /// `cpu` took `taken` instead of what it had been told of, which is `task` and waits. A CPU that was told of `taken` is told of `task`, if
    /// it `may` be used; otherwise an idle one has to be kicked, which is the answer.
    pub(crate) fn pass_on(
        &self,
        cpu: CpuId,
        task: TaskId,
        taken: TaskId,
        may: impl Fn(CpuId) -> bool,
    ) -> Option<CpuId> {
        let exchange = |cpu: &CpuId| {
            let told = self.told.get(*cpu as usize)?;
            let is_told = told.task.load(Relaxed) == taken.to_bits() && may(*cpu);
            (is_told && told.exchange(taken, task)).then_some(())
        };
        if self.idle().any(|cpu| exchange(&cpu).is_some()) {
            return None;
        }
        let near = self.told.get(cpu as usize).map_or(u64::MAX, |told| told.near.load(Relaxed));
        let is_near = |other: &CpuId| other / 64 == cpu / 64 && near & bit(*other) != 0;
        self.handed.hand(|| {
            let tell = |cpu: &CpuId| self.tell(*cpu, task, near, || may(*cpu));
            self.idle().filter(is_near).find(tell).or_else(|| self.idle().find(tell))
        })
    }

    fn idle(&self) -> impl Iterator<Item = CpuId> {
        self.words.iter().enumerate().flat_map(|(index, word)| members(index, word.load(Relaxed)))
    }

    /// Tells an idle CPU of a task, unless it was told of one and has not looked yet, or is not idle any more.
    fn tell(&self, cpu: CpuId, task: TaskId, near: u64, may: impl FnOnce() -> bool) -> bool {
        let Some(told) = self.told.get(cpu as usize) else { return false };
        if told.task.load(Relaxed) != TaskId::NONE.to_bits() || !may() || !told.exchange(TaskId::NONE, task) {
            return false;
        }
        told.near.store(near, Relaxed);
        fence(SeqCst);
        // Where it has found something meanwhile, either it sees what it was told of, or that is taken back here.
        self.contains(cpu) || !told.exchange(task, TaskId::NONE)
    }

    /// `cpu` has looked for work. Notes whether it is idle, and tells whether that is news. Writes only when it is.
    #[inline]
    pub(crate) fn note(&self, cpu: CpuId, idle: bool) -> bool {
        let Some(word) = self.words.get((cpu / 64) as usize) else { return false };
        let is_news = (word.load(Relaxed) >> (cpu % 64) & 1 != 0) != idle;
        if is_news {
            change(word, cpu, idle);
        }
        is_news
    }

    /// What `cpu`, which has looked for work and noted that it runs something or was idle before, had been told of. It can be told of
    /// another task now.
    #[inline]
    pub(crate) fn was_told(&self, cpu: CpuId) -> Option<TaskId> {
        let told = self.told.get(cpu as usize)?;
        if told.task.load(Relaxed) == TaskId::NONE.to_bits() {
            return None;
        }
        let task = TaskId::from_bits(told.task.swap(TaskId::NONE.to_bits(), Acquire));
        (!task.is_none()).then_some(task)
    }
}

impl Told {
    fn exchange(&self, from: TaskId, to: TaskId) -> bool {
        self.task.compare_exchange(from.to_bits(), to.to_bits(), AcqRel, Relaxed).is_ok()
    }
}

#[inline(never)]
fn change(word: &AtomicU64, cpu: CpuId, idle: bool) {
    if idle {
        word.fetch_or(bit(cpu), Relaxed);
    } else {
        word.fetch_and(!bit(cpu), Relaxed);
        // It looks next at what it was told of.
        fence(SeqCst);
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
