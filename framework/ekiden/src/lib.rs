//! The crate that a scheduling policy is written against.
//!
//! A policy is a type that implements [`Scheduler`]. The same source runs in the kernel, in the simulator, from a
//! user-space agent and in replay: each of these *hosts* only delivers messages, and each message is one call of the trait (papers/000,
//! section 3.1).
//!
//! Start with [`Scheduler`] and [`Schedulable`]; everything else here serves them.
//!
//! First come, first served, on each CPU by itself, is a whole policy. A task that waits comes with a token for a CPU; the policy keeps the
//! token, and hands it back when that CPU picks, which is when the task runs there. Each queue has a lock, as calls for different CPUs
//! are made at the same time.
//!
//! ```
//! use ekiden::prelude::*;
//!
//! pub struct Fifo {
//!     queues: PerCpu<SpinLock<FifoQueue<Self>>>,
//! }
//!
//! #[policy]
//! impl Scheduler for Fifo {
//!     fn new(env: &Env) -> Self {
//!         Self { queues: PerCpu::new(env, |_| SpinLock::default()) }
//!     }
//!
//!     fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
//!         self.queues[token.cpu()].lock().push_back(token);
//!     }
//!
//!     fn pick_next_task(&self, _: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
//!         self.queues[cpu].lock().pop_front()
//!     }
//! }
//!
//! # let mut machine = ekiden_example_host::Machine::<Fifo>::flat(2);
//! # machine.wake(3, 0);
//! # machine.wake(4, 0);
//! # machine.wake(5, 1);
//! # assert_eq!([0, 0, 0, 1].map(|cpu| machine.pick(cpu)), [Some(3), Some(4), None, Some(5)]);
//! ```
//!
//! A queue that all CPUs of a last-level cache share: a token that is for another of them is *claimed* in the pick, and an idle
//! one is told of a task that comes. With two caches of two CPUs, a task waits for CPU 0: CPU 1 is idle, is told, and may have it; CPU 2 knows
//! of nothing.
//!
//! ```
//! use ekiden::prelude::*;
//!
//! pub struct Shared {
//!     queues: PerLlc<SpinLock<FifoQueue<Self>>>,
//! }
//!
//! #[policy]
//! impl Scheduler for Shared {
//!     fn new(env: &Env) -> Self {
//!         Self { queues: PerLlc::new(env, |_| SpinLock::default()) }
//!     }
//!
//!     fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
//!         let cpu = token.cpu();
//!         self.queues[cpu].lock().push_back(token);
//!         cx.kick_idle_in(task.id, cx.topology().llc(cpu));
//!     }
//!
//!     fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
//!         self.queues[cpu].lock().claim_first(cx)
//!     }
//! }
//!
//! # use ekiden::{Call, RefusalReason, host::{Adapter, Host, Policy, abi::{Message, RawToken}}};
//! # struct Idle;
//! # impl Host for Idle {
//! #     fn now_ns(&self) -> u64 { 0 }
//! #     fn may_run(&self, _: TaskId, _: CpuId) -> bool { true }
//! #     fn allowed_cpus(&self, _: TaskId, _: &mut CpuMask) {}
//! #     fn idle_cpus(&self, _: &mut CpuMask) {}
//! #     fn claim(&self, _: RawToken, _: CpuId) -> Result<(), RefusalReason> { Ok(()) }
//! #     fn take_idle(&self, _: TaskId, among: Option<&CpuMask>) -> Option<CpuId> { among?.next_after(0) }
//! # }
//! # // Two caches of two CPUs. A task waits for CPU 0: CPU 1 is idle, is told, and may have it; CPU 2 knows of nothing.
//! # let env = Env::new(Topology::regular(1, 2, 2, 1), 8, &[], "").unwrap();
//! # let policy = Adapter::<Shared>::new(&env, std::sync::Arc::new(Idle));
//! # let token = RawToken { task: TaskId { slot: 3, generation: 1 }, cpu: 0, serial: 1 };
//! # let wakeup = Message { task: token.task, ..Message::about_cpu(Call::TaskWakeup, 0) }.with_token(token);
//! # assert!(policy.deliver(&wakeup, &[]).kicks.iter().eq([1]));
//! # assert!(policy.deliver(&Message::about_cpu(Call::PickNextTask, 2), &[]).token.is_none());
//! # assert_eq!(policy.deliver(&Message::about_cpu(Call::PickNextTask, 1), &[]).token, RawToken { cpu: 1, ..token });
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
// Lets the output of `#[policy]` say `::ekiden` inside this crate's own tests too.
extern crate self as ekiden;

mod adapter;
mod around;
mod call_log;
mod cpumask;
mod cx;
mod declare;
mod env;
mod figures;
mod hint;
pub mod layout;
mod lock;
mod note;
#[cfg(feature = "observe")]
#[doc(hidden)]
pub mod observe;
mod order;
mod per;
mod poison;
mod queue;
mod saved;
mod scheduler;
mod shared;
mod task_params;
mod token;
mod topology;
mod wait;
mod waiters;
mod weight;

/// What calls that wait are seen by, and what they see; models of it are made of other ones.
mod atomics {
    pub(crate) use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
}

pub use cpumask::{CpuListError, CpuMask, MAX_CPUS, Members};
pub use cx::{Cx, Group, Running, SLICE_NS_MIN};
pub use ekiden_abi::{Call, Calls, RefusalReason, TaskId};
pub use ekiden_hints::Plain;
/// Completes `impl Scheduler for MyPolicy`, and the same for `HintQueues`, `TaskSettings` and `SavedState`.
///
/// ```
/// use ekiden::{Call, prelude::*};
///
/// struct ShortestJob(SpinLock<FifoQueue<Self>>);
///
/// #[policy]
/// impl Scheduler for ShortestJob {
///     fn new(_: &Env) -> Self { Self(SpinLock::default()) }
///     fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) { self.0.lock().push_back(token) }
///     fn pick_next_task(&self, cx: &Cx, _: CpuId) -> Option<Schedulable<Self>> { self.0.lock().claim_first(cx) }
/// }
///
/// assert_eq!(ShortestJob::NAME, "shortest-job");
/// assert!(ShortestJob::CALLS.has(Call::TaskWakeup) && !ShortestJob::CALLS.has(Call::TaskTick));
/// ```
pub use ekiden_macros::policy;
pub use ekiden_macros::{Layout, Plain};
pub use env::{Env, Param, ParamError};
pub use figures::{Counter, Histogram};
pub use hint::{HintQueues, HintRefused, Hints, NotTold, ProcessId, QueueId};
pub use layout::{Fingerprint, Layout};
pub use lock::{SpinGuard, SpinLock};
pub use note::Note;
pub use per::{PerCpu, PerLlc, PerNode, PerTask};
pub use queue::{FifoQueue, OrderedQueue, TreeQueue};
pub use saved::{Saved, SavedState};
pub use scheduler::{Scheduler, Task, WakeFlags};
pub use shared::{Shared, Word};
pub use task_params::{TaskParams, TaskSettings};
pub use token::{Refused, Schedulable};
pub use topology::{Cpu, FULL_CAPACITY, Topology, TopologyError};
pub use weight::{NICE_0_WEIGHT, scaled_ns, weight_of_nice};

/// What delivers calls to a policy and answers its questions. It is here because tokens are made here alone, and is shown by the crate
/// `ekiden-host`, for hosts.
#[doc(hidden)]
pub mod host {
    pub use ekiden_abi as abi;
    pub use ekiden_hints as hints;

    pub use crate::adapter::{Adapter, Handover, Knows, Policy};
    pub use crate::around::{Around, Surrounded};
    #[cfg(not(target_os = "none"))]
    pub use crate::call_log::call_log;
    pub use crate::call_log::{call_log_runs, run_call_log};
    pub use crate::cx::Host;
    pub use crate::figures::{Figure, Figures, Value};
    pub use crate::note::{hear_notes, keep_notes};
    #[cfg(feature = "observe")]
    pub use crate::observe;
    pub use crate::order::is_of_this_call;
    pub use crate::token::forget_dropped;
    pub use crate::wait::{Patience, Since, Waits, forget_locks, locks_are_poisoned, poison_locks, wait_for, wait_so};
}

/// A CPU's number, as Linux counts them.
///
/// ```
/// let cpu: ekiden::CpuId = 3;
/// assert_eq!(ekiden::Topology::flat(4).cpu(cpu).id, 3);
/// ```
pub type CpuId = u32;

/// What nearly every policy needs.
pub mod prelude {
    pub use crate::{
        Counter, CpuId, CpuMask, Cx, Env, FifoQueue, HintQueues, Histogram, Layout, Note, OrderedQueue, Param, PerCpu,
        PerLlc, PerNode, PerTask, RefusalReason, Saved, SavedState, Schedulable, Scheduler, Shared, SpinLock, Task,
        TaskId, TaskParams, TaskSettings, Topology, TreeQueue, WakeFlags, policy,
    };
}
