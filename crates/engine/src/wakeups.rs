//! Two places at which one CPU says something to another without a lock between them, and a wake-up would be lost if each looked
//! before it could see what the other has said. Each says first, has that be seen, and looks then; so one of the two sees the other.

use super::atomics::{
    AtomicU32,
    Ordering::{Relaxed, SeqCst},
    fence,
};

/// Counts tasks that were handed to a policy while nothing kept their CPU from looking for work at the same time.
#[derive(Debug)]
pub(crate) struct Handed {
    pub(crate) count: AtomicU32,
}

impl Handed {
    /// The policy has got a task for a CPU. Whether that CPU has to be kicked, which is so if it `is_idle`.
    pub(crate) fn hand(&self, is_idle: impl FnOnce() -> bool) -> bool {
        self.count.fetch_add(1, Relaxed);
        fence(SeqCst);
        is_idle()
    }

    /// A CPU has found nothing, and has noted that it is idle. Whether it has to look again: tasks were handed over since it was last
    /// here, which `seen` keeps.
    pub(crate) fn came_meanwhile(&self, seen: &AtomicU32) -> bool {
        fence(SeqCst);
        let count = self.count.load(Relaxed);
        seen.swap(count, Relaxed) != count
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

    /// The task has left its CPU, as everybody sees. The CPU that wanted it.
    pub(crate) fn take(&self) -> Option<u32> {
        fence(SeqCst);
        if self.cpu.load(Relaxed) == Self::NONE {
            return None;
        }
        let cpu = self.cpu.swap(Self::NONE, Relaxed);
        (cpu != Self::NONE).then_some(cpu)
    }
}
