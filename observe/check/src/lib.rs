//! Whether a scheduler kept to what schedulers promise, told from what happened.
//!
//! Each invariant is one file in `invariants/`, which says what it exempts and what it does not see. They read records
//! one after the other, so the same code judges a simulation, a file, and whatever else writes
//! [traces](ekiden_trace):
//!
//! ```
//! use ekiden_check::{Checker, Limits};
//! use ekiden_policies::Wfq;
//! use ekiden_sim::{Machine, Simulation};
//!
//! let load = ekiden_workload::builtin::find("fair-share", 2).unwrap().workload;
//! let result = Simulation::of::<Wfq>(Machine::flat(2), "").traced().run(&load)?;
//! let mut checker = Checker::new(&result.trace.header().unwrap(), &Limits::default());
//! result.trace.records().for_each(|record| checker.record(&record));
//! assert_eq!(checker.finish(), []);
//! # Ok::<(), ekiden_sim::SimError>(())
//! ```
//!
//! What a run without a violation shows: in these records, and only in them, no invariant was broken for longer than its
//! [limit](Limits), except in what that invariant says it exempts; fairness is judged only if a limit for it is given. It shows nothing of another run of the same load, of
//! orders of events that did not happen here, or of what is not recorded. Where records are lost, which `ekiden check` says, a violation may
//! be one of the recording. Each invariant has tests of a trace that breaks it and of one that does not (`tests/planted.rs`), and
//! each load of this project is judged under each policy (`tests/loads.rs`). Orders that did not happen are `ekiden explore`'s.
//!
//! A [`Snapshot`] of a running kernel says whether there is something to watch at all.
//!
//! [`Watched`] is the same around each call of a policy, for hosts that write no trace.
#![forbid(unsafe_code)]

mod checker;
pub mod invariants;
mod limits;
mod lock_order;
mod snapshot;
mod view;
mod violation;
mod waste;
mod watched;

pub use checker::{Check, Checker, Verdict};
pub use limits::Limits;
pub use lock_order::LockOrder;
pub use snapshot::{CpuLimit, CpuSeen, Snapshot, TaskSeen, Waste};
pub use view::{Queue, View};
pub use violation::{TaskName, Violation};
pub use waste::{WasteCurve, WasteWindows, wasted_cpus};
pub use watched::{Findings, Watched};
