//! The crate that a scheduling policy is written against.
//!
//! A policy is a type that implements [`Scheduler`]. The same source runs in the kernel, in the simulator, from a
//! user-space agent and in replay: each of these *hosts* only delivers messages, and [`Adapter`] turns one message
//! into one call of the trait (papers/000, section 3.1).
//!
//! Start with [`Scheduler`] and [`Schedulable`]; everything else here serves them.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
// Lets the output of `#[policy]` say `::ekiden` inside this crate's own tests too.
extern crate self as ekiden;

mod adapter;
mod cpumask;
mod cx;
mod env;
mod hint;
pub mod layout;
mod lock;
#[cfg(feature = "observe")]
pub mod observe;
mod order;
mod per;
mod queue;
mod saved;
mod scheduler;
mod shared;
mod tape;
mod task_params;
mod token;
mod topology;
mod wait;
mod weight;

pub use adapter::{Adapter, Left, Policy};
pub use cpumask::{CpuListError, CpuMask, MAX_CPUS};
pub use cx::{Cx, Group, Host, Interrupted, SLICE_NS_MIN};
pub use ekiden_abi as abi;
pub use ekiden_abi::{Call, Calls, RefusalReason, TaskId};
pub use ekiden_macros::{Layout, policy};
pub use env::{Env, Param, ParamError};
pub use hint::{HintRefused, Hints, QueueId};
pub use layout::{Fingerprint, Layout};
pub use lock::{SpinGuard, SpinLock};
pub use order::is_of_this_call;
pub use per::{PerCpu, PerTask};
pub use queue::{FifoQueue, OrderedQueue, TreeQueue};
pub use saved::Saved;
pub use scheduler::{Scheduler, Task, WakeFlags};
pub use shared::{Shared, Word};
pub use tape::{run_tape, tape, tape_runs};
pub use task_params::TaskParams;
pub use token::{Schedulable, forget_dropped};
pub use topology::{Cpu, FULL_CAPACITY, Topology, TopologyError};
pub use wait::{Patience, Since, Waits, locks_are_poisoned, poison_locks, wait_for, wait_so};
pub use weight::{NICE_0_WEIGHT, weight_of_nice};

/// A CPU's number, as Linux counts them.
pub type CpuId = u32;

/// What nearly every policy needs.
pub mod prelude {
    pub use crate::{
        CpuId, CpuMask, Cx, Env, FifoQueue, Layout, OrderedQueue, Param, PerCpu, PerTask, RefusalReason, Saved,
        Schedulable, Scheduler, Shared, SpinLock, Task, TaskId, TaskParams, Topology, TreeQueue, WakeFlags, policy,
    };
}
