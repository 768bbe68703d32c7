//! Two places at which one CPU says something to another without a lock between them, and a wake-up would be lost if each looked
//! before it could see what the other has said. Each says first, has that be seen, and looks then; so one of the two sees the other.

use super::atomics::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

/// Counts tasks that were handed to a policy while nothing kept CPUs that could have them from looking for work at the same time.
#[derive(Debug)]
pub(crate) struct Handed {
    count: AtomicU32,
}

impl Handed {
    pub(crate) fn new() -> Self {
        Self { count: AtomicU32::new(0) }
    }

    /// The policy has got a task. Looks for the idle CPU that has to be kicked.
    pub(crate) fn hand<T>(&self, find_idle: impl FnOnce() -> T) -> T {
        self.count.fetch_add(1, Release);
        fence(SeqCst);
        find_idle()
    }

    /// How many there have been, for a CPU that is about to look for work.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Acquire)
    }

    /// The CPU has found nothing, and has noted that it is idle. Whether it has to look again: tasks were handed over since it began.
    #[inline]
    pub(crate) fn came_since(&self, before: u32) -> bool {
        fence(SeqCst);
        self.count.load(Relaxed) != before
    }
}

/// The CPU that wanted to take a task while that was still leaving another one.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) cpu: AtomicU32,
}

impl Wish {
    /// No CPU wants the task.
    pub(crate) const NONE: u32 = u32::MAX;

    /// A CPU wants the task, and is kicked when that has left. False if it has left meanwhile, as `is_leaving` says.
    pub(crate) fn wish(&self, cpu: u32, is_leaving: impl FnOnce() -> bool) -> bool {
        self.cpu.store(cpu, Relaxed);
        fence(SeqCst);
        is_leaving()
    }

    /// The task has left its CPU, and every CPU can see that. Returns the CPU that wanted it.
    pub(crate) fn take(&self) -> Option<u32> {
        fence(SeqCst);
        if self.cpu.load(Relaxed) == Self::NONE {
            return None;
        }
        let cpu = self.cpu.swap(Self::NONE, Relaxed);
        (cpu != Self::NONE).then_some(cpu)
    }
}
