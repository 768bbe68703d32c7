//! The wire between the parts of Ekiden. Everything here has a fixed layout and no behaviour beyond packing.
//!
//! Two conversations use it:
//!
//! * A **host** tells the **engine** what happened on the machine with an [`Event`] and gets an [`Outcome`].
//! * The **engine** calls a **policy** with a [`Message`] and gets a [`Reply`]. One message is one call of the
//!   `Scheduler` trait (papers/000, table 1).
//!
//! `hosts/kernel/include/ekiden_abi.h` says the same in C, and a test compares the two.
#![no_std]
#![forbid(unsafe_code)]

mod event;
mod kicks;
mod message;
mod note;
mod params;
mod token;

pub use event::{Event, EventKind, Outcome, Status, enqueue_flags, init_flags, pick_flags, refill_flags};
pub use kicks::Kicks;
pub use message::{BALANCE_TOO, Call, Calls, FOR_IDLE, Message, NO_CLAIMS, NO_CPU, RefusalReason, Reply};
pub use note::{NOTE_NAME_MAX, NOTE_NAME_WORDS, NoteName, Noted};
pub use params::{RawParams, TASK_PARAMS_MAX};
pub use token::{RawToken, TaskId};

/// Version of everything in this crate. A policy module of another version is refused when it registers.
pub const ABI_VERSION: u32 = 7;

/// Longest name of a policy, in bytes.
pub const NAME_LEN: usize = 32;
