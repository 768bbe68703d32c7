//! Puts a policy into the kernel of this machine, and takes it out again.
//!
//! [`Session::start`] loads the modules, makes the policy ready and attaches the BPF program; dropping the session, or
//! the death of this process by whatever way, gives every task back to the kernel's own scheduler.

mod baseline;
mod budgets;
mod control;
mod drain;
mod error;
mod finding;
mod kernel_log;
mod links;
mod live;
mod look;
mod modules;
mod record;
mod rings;
mod runqlat;
mod session;
mod skel;
mod status;
pub mod sysfs;
mod tape;
mod tasks;

pub use baseline::{Baseline, Queues};
pub use budgets::Budgets;
pub use control::{Access, Control, Hint, Moved, Succession, Upgrade};
pub use drain::{Drain, Kept, dump, header, header_of};
pub use ekiden_user::Error as UserError;
pub use ekiden_user::{Inherit, Terms};
pub use error::{LoadError, Result, needs_root};
pub use finding::{Finding, scheduler};
pub use live::{Evidence, LiveChecker, LookCounts, Pause, SAMPLE, Sum};
pub use look::Look;
pub use modules::{load_beside, load_copy, loaded, unload, unload_all};
pub use record::{Recorder, Recording, ShortRecorder};
pub use rings::Raw;
pub use runqlat::{RunqLat, Waits, Whom};
pub use session::{Beside, Config, Program, Scope, Session, arena_bytes_for, operations_of_the_kernel, room_for_all};
pub use status::{Counts, HintCounts, HintQueues, HintType, HintTypes, OpenQueue, PolicyStatus, Status, Stops};
pub use tape::{TAPE_PAGE, Tape, len_of_ring};
pub use tasks::{Followed, Who, choose};
