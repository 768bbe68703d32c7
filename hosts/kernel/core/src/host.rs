//! What the engine asks the kernel.

use core::ffi::c_void;

use ekiden::{CpuId, CpuMask, TaskId};
use ekiden_engine::{Engine, EngineHost, Interrupted};
use ekiden_host::Host;

use crate::{ekiden_rs_host_task, engine};

unsafe extern "C" {
    safe fn ekiden_c_now_ns() -> u64;
    /// `host_task` is a task that has not left yet, and the caller is in an RCU read section.
    fn ekiden_c_may_run(host_task: *const c_void, cpu: u32) -> bool;
    fn ekiden_c_allowed_cpus(host_task: *const c_void, words: *mut u64, len: usize);
    safe fn ekiden_c_policy_faulted(policy_slot: u32);
    /// There are `len` bytes at `text`.
    fn ekiden_c_stop(text: *const u8, len: usize) -> !;
    safe fn ekiden_c_refill_at(at_ns: u64);
    /// 0 for another task, 1 for the kernel, 2 for user mode.
    safe fn ekiden_c_interrupted(host_task: *const c_void) -> u32;
    safe fn ekiden_c_is_at_user(host_task: *const c_void) -> bool;
    safe fn ekiden_c_is_in_read_section(host_task: *const c_void) -> bool;
    safe fn ekiden_c_look_at_return() -> bool;
    safe fn ekiden_is_spent() -> bool;
}

/// The engine's own questions to the kernel.
pub(crate) struct Kernel;

impl Host for Kernel {
    fn now_ns(&self) -> u64 {
        ekiden_c_now_ns()
    }

    fn may_run(&self, task: TaskId, cpu: CpuId) -> bool {
        let host_task = ekiden_rs_host_task(task.to_bits());
        // SAFETY: a task in the table has not left yet, and events are delivered in RCU read sections.
        !host_task.is_null() && unsafe { ekiden_c_may_run(host_task, cpu) }
    }

    fn allowed_cpus(&self, task: TaskId, cpus: &mut CpuMask) {
        let host_task = ekiden_rs_host_task(task.to_bits());
        let nr_cpus = engine().map_or(0, Engine::nr_cpus);
        *cpus = CpuMask::filled(nr_cpus.div_ceil(u64::BITS) as usize, |words| {
            if !host_task.is_null() {
                // SAFETY: a task in the table has not left yet, as in `may_run`; C writes `len` words, which are all of the slice.
                unsafe { ekiden_c_allowed_cpus(host_task, words.as_mut_ptr(), words.len()) };
            }
        });
    }

    fn idle_cpus(&self, cpus: &mut CpuMask) {
        if let Some(engine) = engine() {
            engine.idle().copy_to(cpus);
        }
    }
}

impl EngineHost for Kernel {
    fn policy_faulted(&self, policy_slot: u32) {
        ekiden_c_policy_faulted(policy_slot);
    }

    fn stop(&self, why: &dyn core::fmt::Display) {
        let text = alloc::format!("{why}");
        // SAFETY: the text has this length, and C prints it and does not come back, so it is never freed.
        unsafe { ekiden_c_stop(text.as_ptr(), text.len()) };
    }

    fn refill_at(&self, at_ns: u64) {
        ekiden_c_refill_at(at_ns);
    }

    fn interrupted(&self, task: TaskId) -> Interrupted {
        match ekiden_c_interrupted(ekiden_rs_host_task(task.to_bits())) {
            0 => Interrupted::Another,
            1 => Interrupted::InKernel,
            _ => Interrupted::InUser,
        }
    }

    fn look_at_return(&self) -> bool {
        ekiden_c_look_at_return()
    }

    fn is_spent(&self) -> bool {
        ekiden_is_spent()
    }

    fn is_at_user(&self, task: TaskId) -> bool {
        ekiden_c_is_at_user(ekiden_rs_host_task(task.to_bits()))
    }

    fn is_in_read_section(&self, task: TaskId) -> bool {
        ekiden_c_is_in_read_section(ekiden_rs_host_task(task.to_bits()))
    }
}
