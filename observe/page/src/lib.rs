//! Shows what happened on a machine: run queues, loads, tasks and considered CPUs over time, every change of them
//! (papers/002, section 4.2).
//!
//! A [`Model`] holds a trace in the order in which it is drawn, and cuts it into [tiles](tile). The program in the
//! browser (`observe/page/browser`) asks for tiles: in a page that [`report()`] has written they are inside,
//! and [`Server`] answers for those of a trace of any length.
#![forbid(unsafe_code)]

mod compare;
mod histogram;
mod model;
mod note;
mod report;
mod serve;
mod summary;
pub mod tile;

pub use compare::{Compared, compare};
pub use histogram::Histogram;
pub use model::{Builder, Change, Counters, Decision, Lane, Model, NO_TASK, QueueCounts, Run, Task, Waits};
pub use note::{Note, NoteKind};
pub use report::{REPORT_BYTES_MAX, report};
pub use serve::{ServeError, Server};
pub use summary::{Notes, Summary};

/// The program for the browser, with a place for data in it.
const PAGE: &str = include_str!("../assets/page.html");

/// That place.
const PLACE: &str = "<!--ekiden:data-->";
