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
        // SAFETY: callable in any context.
        unsafe { (self.table().now_ns)() }
    }

    fn may_run(&self, task: TaskId, cpu: CpuId) -> bool {
        // SAFETY: checks the task against the engine's table first.
        unsafe { (self.table().may_run)(task.to_bits(), cpu) }
    }

    fn allowed_cpus(&self, task: TaskId, cpus: &mut CpuMask) {
        // SAFETY: writes at most `len` words.
        self.read(cpus, |words, len| unsafe { (self.table().allowed_cpus)(task.to_bits(), words, len) });
    }

    fn idle_cpus(&self, cpus: &mut CpuMask) {
        // SAFETY: writes at most `len` words.
        self.read(cpus, |words, len| unsafe { (self.table().idle_cpus)(words, len) });
    }

    fn claim(&self, token: RawToken, cpu: CpuId) -> Result<(), RefusalReason> {
        // SAFETY: checks the task against the engine's table first.
        match unsafe { (self.table().claim)(token.task.to_bits(), token.serial, cpu) } {
            0 => Ok(()),
            reason => Err(RefusalReason::from_number(reason)),
        }
    }

    fn take_idle(&self, task: TaskId, among: Option<&CpuMask>) -> Option<CpuId> {
        let words = among.map(CpuMask::as_words);
        let (first, len) = words.map_or((ptr::null(), 0), |words| (words.as_ptr(), words.len()));
        // SAFETY: reads at most `len` words.
        unsafe { (self.table().take_idle)(task.to_bits(), first, len) }.checked_sub(1)
    }

    fn running(&self, cpu: CpuId) -> Option<Running> {
        let (mut weight, mut since_ns) = (0, 0);
        // SAFETY: both are there for the call.
        let task = TaskId::from_bits(unsafe { (self.table().running)(cpu, &mut weight, &mut since_ns) });
        (!task.is_none()).then_some(Running { task, weight, since_ns })
    }

    fn notify(&self, queue: QueueId, notice: &[u8]) -> Result<(), NotTold> {
        // SAFETY: the bytes are good for the call.
        match unsafe { (self.table().notify)(self.table(), queue, notice.as_ptr(), notice.len()) } {
            0 => Ok(()),
            reason => Err(NotTold::from_number(reason)),
        }
    }

    fn process(&self, task: TaskId) -> Option<ProcessId> {
        // SAFETY: checks the task against the engine's table first.
        let process = unsafe { (self.table().process)(task.to_bits()) };
        (process != 0).then_some(process)
    }

    fn group(&self, task: TaskId) -> Group {
        // SAFETY: checks the task against the engine's table first.
        let group = unsafe { (self.table().group)(task.to_bits()) };
        Group { id: (group >> 32) as u32, weight: group as u32 }
    }
}
