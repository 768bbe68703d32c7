//! Calls into a policy as records: everything that it takes to deliver them again, and what the policy answered.
//!
//! A call is written as records of 64 bytes, which are eight words each, by the CPU that is busy with it, into a ring of
//! that CPU. No lock is taken, nothing is waited for, and what is old is overwritten: a reader drains the rings in
//! time, and finds out if it was late. So a flight recorder that is always on, and a recording that goes to a file, are
//! written in the same way and cost the same.
//!
//! The first word of a record says what it is; [`CallWriter`] has how each kind is laid out. One call is
//!
//! 1. a record with the [message](ekiden_abi::Message), the time and the thread,
//! 2. as many records as it takes for what the call learnt besides its message ([`ekiden_host::call_log`]) beyond seven words, and
//!    for the payload of hints, which comes first,
//! 3. among these, a record for each [note](ekiden_abi::Noted) of the policy's own,
//! 4. a record with the rest of that, and with the [reply](ekiden_abi::Reply).
//!
//! A mark stands between calls, in the rings of all CPUs, where a new instance of a policy begins.
//!
//! [`ekiden_host::call_log`]: ../ekiden_host/fn.call_log.html
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(feature = "file")]
extern crate std;

mod call_writer;
#[cfg(feature = "file")]
mod file;
#[cfg(feature = "file")]
mod first_mark;
mod read;
mod record;
#[cfg(feature = "file")]
mod recorded_policy;
#[cfg(feature = "file")]
mod thread;

pub use call_writer::{CallWriter, RingHeader};
#[cfg(feature = "file")]
pub use file::{
    BEFORE_MARKS, Header, Host, Instance, Item, Recorded, RecordingError, RecordingReader, RecordingWriter,
};
#[cfg(feature = "file")]
pub use first_mark::{FirstCalls, FirstMark};
pub use read::{Calls, Entry, RecordedCall, RecordedMark};
pub use record::{Mark, RECORD_WORDS, Record};
#[cfg(feature = "file")]
pub use recorded_policy::{Writes, WritesDown};
#[cfg(feature = "file")]
pub use thread::{Hear, Learn, call_log_of_thread, notes_of_thread};

/// Version of the records and of the file around them.
pub const RECORDING_VERSION: u32 = 2;
