//! What stands between a host and a policy: the task table, the states of tasks, the tokens and their checks.
//!
//! A host reports what happened with an [`Event`](ekiden_host::abi::Event) and carries out the
//! [`Outcome`](ekiden_host::abi::Outcome); see [`Engine::deliver`]. The engine never touches the machine itself, holds no
//! lock while it calls a policy, and is the same in the kernel, the simulator and the agent. A replay needs none: it has what the engine said.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod answers;
mod attach;
mod beyond;
mod calls;
mod coming;
mod conditions;
mod counters;
mod due;
mod engine;
mod fault;
pub mod groups;
mod host;
mod idle;
mod idle_notifications;
mod late;
mod lifecycle;
mod lock;
mod notices;
mod order;
mod pace;
mod params;
mod pick;
mod policy_slots;
mod shares;
mod starved;
mod state;
mod table;
mod task_params;
mod throttling;
mod turns;
mod wakeups;

const _: () = assert!(size_of::<table::TaskEntry>() == 64, "an entry takes more than a cache line");

/// What synchronises; a model of it is made of other ones.
mod atomics {
    pub(crate) use core::sync::atomic::{
        AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering, fence,
    };
}

pub use answers::Answers;
pub use counters::{Counters, Totals};
pub use engine::Engine;
pub use fault::{
    CONTRACT_VIOLATIONS_ALLOWED, Checks, ContractViolation, ContractViolationKind, Fault, UnexpectedTransition,
};
pub use host::{EngineHost, Interrupted};
pub use idle::IdleCpus;
pub use pace::{TIMER_NS_MIN, WINDOWS_OVER_MOST};
pub use pick::{PICK_ATTEMPTS, SLICE_NS_MAX};
pub use policy_slots::{NotChosen, POLICY_SLOTS, PolicySlotView};
pub use shares::{POLICY_WEIGHT, POLICY_WEIGHTS, Share};
pub use starved::Scan;
pub use state::{Phase, State, TRANSITIONS, Transition};
pub use table::{TaskTable, TaskView};
