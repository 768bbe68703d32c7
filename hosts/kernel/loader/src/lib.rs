//! Puts a policy into the kernel of this machine, and takes it out again.
//!
//! [`Session::start`] loads the modules, makes the policy ready and attaches the BPF program; dropping the session, or
//! the death of this process by whatever way, gives every task back to the kernel's own scheduler.
//!
//! Without the feature `bpf`, which needs clang, libelf and zlib to build, all that would load a program says that it cannot
//! ([`LoadError::WithoutBpf`]), and the rest is as it is.
#![cfg_attr(not(feature = "bpf"), allow(dead_code, reason = "what only programs need"))]

#[cfg_attr(not(feature = "bpf"), path = "without_bpf.rs")]
mod bpf;
mod budgets;
mod call_log;
mod changes;
mod config;
mod control;
mod drain;
mod error;
mod finding;
mod kernel_log;
mod live;
mod modules;
mod recorded;
mod status;
pub mod sysfs;
mod tasks;
mod waits;

pub use bpf::{Baseline, Look, Prepared, Program, Recorder, RunqLat, Session, ShortRecorder, operations_of_the_kernel};
pub use budgets::Budgets;
pub use call_log::{CALL_LOG_PAGE, CallLog, len_of_ring};
pub use changes::Changes;
pub use config::{Beside, Config, Queues, Scope, arena_bytes_for, room_for_all};
pub use control::{Access, Control, Hint, Moved, Succession, Upgrade, saved_most};
pub use drain::{Drain, Kept, dump, header, header_of};
pub use ekiden_user::Error as UserError;
pub use ekiden_user::{ChooseOptions, Inherit};
pub use error::{LoadError, Result, needs_root};
pub use finding::{Finding, scheduler};
pub use live::{Evidence, LiveChecker, LookCounts, Pause, SAMPLE, Sum};
pub use modules::{load_beside, load_copy, loaded, unload, unload_all};
pub use recorded::{Raw, Recording};
pub use status::{
    Counts, HintCounts, HintQueues, HintType, HintTypes, NumberedInstance, OpenQueue, PolicyStatus, Status, Stops,
};
pub use tasks::{Followed, Who, choose};
pub use waits::{Waits, Whom};
