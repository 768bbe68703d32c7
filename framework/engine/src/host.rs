//! What the engine asks of its host, besides what policies ask.

use ekiden::TaskId;
use ekiden_host::Host;

/// A host that events come from: the kernel, the agent, the simulator.
pub trait EngineHost: Host {
    /// The policy in this policy slot of the engine was taken out while events are under way: its tasks have to be introduced to
    /// another one, soon and not from here.
    fn policy_faulted(&self, _policy_slot: u32) {}
    /// The machine is to stop, for a debugger, because of this.
    fn stop(&self, why: &dyn core::fmt::Display) {
        panic!("stopped: {why}");
    }
    /// The engine wants the event *refill* on the CPU that executes this, at a time of [`Host::now_ns`](ekiden_host::Host::now_ns) or soon after.
    /// The earliest of several is enough: the engine asks again at that event for what is still due.
    fn refill_at(&self, _at_ns: u64) {}
    /// Where the event under way, which comes in an interrupt, has found `task`. Without a kernel beside user programs, there is only one
    /// answer.
    fn interrupted(&self, _task: TaskId) -> Interrupted {
        Interrupted::InUser
    }
    /// The engine wants the event *refill* on the CPU that executes this, with [`RETURNED`](ekiden_host::abi::refill_flags::RETURNED), as soon as a task
    /// has returned to user mode there. False if the host cannot tell.
    fn look_at_return(&self) -> bool {
        false
    }
    /// Whether the calls of the event under way have taken so long that what is not urgent has to wait for another event.
    fn is_spent(&self) -> bool {
        false
    }
    /// Whether `task`, which gives way, was just [interrupted](Self::interrupted) in user mode and has done nothing since: it has no lock
    /// of the kernel's, and nothing there waits for it.
    fn is_at_user(&self, _task: TaskId) -> bool {
        true
    }
    /// Whether `task`, which waits, was made to give way in an RCU read section: until it has left that, the kernel as a whole frees no memory.
    fn is_in_read_section(&self, _task: TaskId) -> bool {
        false
    }
}

/// What an interrupt has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupted {
    /// The CPU runs another task.
    Another,
    /// The task is in the kernel: in a system call, say, or a page fault.
    InKernel,
    /// The task is in its own program.
    InUser,
}
