//! What a policy asks its host, by way of the table of `ekiden.ko`.

use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use ekiden::{CpuId, CpuMask, Group, NotTold, ProcessId, QueueId, Running, TaskId};
use ekiden_host::Host;
use ekiden_host::abi::{RawToken, RefusalReason};
use ekiden_kernel_rt::HostTable;

use crate::{HOST, MASK_WORDS};

/// The host that a policy asks, by way of the table.
pub(crate) struct Kernel;

impl Kernel {
    pub(crate) fn table(&self) -> &HostTable {
        // SAFETY: set in `create`, to a table that outlives the instance.
        unsafe { &*HOST.load(Relaxed) }
    }

    fn read(&self, cpus: &mut CpuMask, fill: impl FnOnce(*mut u64, usize)) {
        *cpus = CpuMask::filled(MASK_WORDS.load(Relaxed), |words| fill(words.as_mut_ptr(), words.len()));
    }
}

impl Host for Kernel {
    fn now_ns(&self) -> u64 {
        // SAFETY: reads a clock of the kernel's that is safe in NMIs, so a policy may ask in any call.
        unsafe { (self.table().now_ns)() }
    }

    fn may_run(&self, task: TaskId, cpu: CpuId) -> bool {
        // SAFETY: an id may be of a task that is gone: the kernel looks for it in the engine's table before it looks at a task.
        unsafe { (self.table().may_run)(task.to_bits(), cpu) }
    }

    fn allowed_cpus(&self, task: TaskId, cpus: &mut CpuMask) {
        // SAFETY: `read` has room for the words that it says, and an id that is of no task fills in none.
        self.read(cpus, |words, len| unsafe { (self.table().allowed_cpus)(task.to_bits(), words, len) });
    }

    fn idle_cpus(&self, cpus: &mut CpuMask) {
        // SAFETY: the set is copied into the room of `read`, as far as that reaches.
        self.read(cpus, |words, len| unsafe { (self.table().idle_cpus)(words, len) });
    }

    fn claim(&self, token: RawToken, cpu: CpuId) -> Result<(), RefusalReason> {
        // SAFETY: numbers only. A token that is not good, or was made up, is refused by the engine.
        match unsafe { (self.table().claim)(token.task.to_bits(), token.serial, cpu) } {
            0 => Ok(()),
            reason => Err(RefusalReason::from_number(reason)),
        }
    }

    fn take_idle(&self, task: TaskId, among: Option<&CpuMask>) -> Option<CpuId> {
        let words = among.map(CpuMask::as_words);
        let (first, len) = words.map_or((ptr::null(), 0), |words| (words.as_ptr(), words.len()));
        // SAFETY: the set lives until this returns; the null pointer of none comes with no words.
        unsafe { (self.table().take_idle)(task.to_bits(), first, len) }.checked_sub(1)
    }

    fn running(&self, cpu: CpuId) -> Option<Running> {
        let (mut weight, mut since_ns) = (0, 0);
        // SAFETY: both are on this stack, and are written before this returns or not at all.
        let task = TaskId::from_bits(unsafe { (self.table().running)(cpu, &mut weight, &mut since_ns) });
        (!task.is_none()).then_some(Running { task, weight, since_ns })
    }

    fn notify(&self, queue: QueueId, notice: &[u8]) -> Result<(), NotTold> {
        // SAFETY: the notice is copied into the queue before this returns, as many bytes as it has.
        match unsafe { (self.table().notify)(self.table(), queue, notice.as_ptr(), notice.len()) } {
            0 => Ok(()),
            reason => Err(NotTold::from_number(reason)),
        }
    }

    fn process(&self, task: TaskId) -> Option<ProcessId> {
        // SAFETY: a task that the kernel finds in the table is not freed before this call has ended.
        let process = unsafe { (self.table().process)(task.to_bits()) };
        (process != 0).then_some(process)
    }

    fn group(&self, task: TaskId) -> Group {
        // SAFETY: the answer is the engine's own note about the id, and no task is looked at.
        let group = unsafe { (self.table().group)(task.to_bits()) };
        Group { id: (group >> 32) as u32, weight: group as u32 }
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
