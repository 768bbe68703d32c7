//! What happened on a machine, moment by moment: one format, whichever host wrote it.
//!
//! The simulator and the recorder of a real kernel write it; the checker, the page and `ekiden trace` read it. Times are nanoseconds since the trace
//! began, numbers are little-endian, and everything but the [`Header`] has a fixed size:
//!
//! | bytes | content |
//! | --- | --- |
//! | 0–7 | the text `EKITRACE` |
//! | 8–11 | [`TRACE_VERSION`] |
//! | 12–15 | length of the header, in bytes |
//! | from 16 | the [`Header`] as JSON, filled up with blanks so that a record can follow at a multiple of 24 |
//! | after it | [`Record`]s of 24 bytes, in the order in which things happened |
//!
//! | bytes of a record | content |
//! | --- | --- |
//! | 0–7 | time in nanoseconds |
//! | 8–11 | PID, 0 for none |
//! | 12–13 | CPU |
//! | 14–15 | [`What`] |
//! | 16–23 | depends on [`What`] |
//!
//! Version 1 is read, too: it begins with `EKIDSIM` and a zero, then come the version and the number of CPUs, of four bytes each, the seed,
//! of eight, and records of the same form.
//!
//! Bytes from a file are not trusted: [`Reader`] and [`Trace::from_bytes`] are the only places that look at foreign
//! bytes, and whatever they are given, they answer with records or with the place where it went wrong.
#![forbid(unsafe_code)]

mod by_pid;
mod cut;
mod figures;
mod header;
mod machine;
mod memory;
mod note;
mod read;
mod record;
mod snapshot;
mod tidy;

pub use by_pid::ByPid;
pub use cut::{Cut, CutError, OTHERS};
pub use figures::Figures;
pub use header::{Header, HeaderCpu, Host};
pub use machine::{At, Cpu, Machine, Moved, Task};
pub use memory::Trace;
pub use note::{NoteNames, noted};
pub use read::{Reader, TraceError};
pub use record::{InQueue, MAY_BE_PASSED_OVER, QueueNote, RECORD_LEN, Record, What, masks, names};
pub use tidy::Tidy;

/// Version of the format.
pub const TRACE_VERSION: u32 = 2;

/// Begins every trace.
const MAGIC: [u8; 8] = *b"EKITRACE";

/// Bytes before the header.
const PREAMBLE_LEN: usize = 16;
