//! A deterministic simulated machine that hosts the same engine and the same policies as the kernel does.
//!
//! CPUs, their tick, idle states, interrupts, hardware threads that slow each other down, and the costs of switching,
//! waking and moving tasks are modelled ([`Machine`], [`Model`]); tasks do what a [`Workload`](ekiden_workload::Workload) says; and everything that sched_ext would tell the engine in the kernel is
//! told here in the same order. The result is the same [`Report`](ekiden_workload::Report) that a real run gives, so
//! that one check judges both.
//!
//! There is one thread and no clock: the same [`Simulation`] gives the same trace, byte for byte, every time.
//!
//! ```
//! use ekiden_policies::Fifo;
//! use ekiden_sim::{Machine, Simulation};
//! use ekiden_workload::{Step, TaskSpec, Workload};
//!
//! let hog = TaskSpec::new("hog", vec![Step::Run { ns: 1_000_000 }]);
//! let load = Workload::new("two-hogs", 1, [hog.copies(2)]);
//! let result = Simulation::of::<Fifo>(Machine::flat(1), "").traced().run(&load)?;
//! assert!(result.report.wall_ns >= 2_000_000);
//! # Ok::<(), ekiden_sim::SimError>(())
//! ```
//!
//! It does not model frequencies, memory bandwidth, or scheduling classes besides the policy's.
#![forbid(unsafe_code)]

mod alarm;
mod behave;
mod change;
mod error;
mod group;
mod hardware;
mod kernel;
mod machine;
mod masks;
mod model;
mod notes;
mod place;
mod program;
mod queues;
mod recorded;
mod shared;
mod simulation;
mod task;
mod trace;
mod upgrade;
mod wait;

pub use ekiden_trace::{Record, Trace, TraceError, What};
pub use error::{SimError, Stuck, Unfinished};
pub use kernel::Stats;
pub use machine::{DEFAULT_SLICE_NS, Machine};
pub use model::{Costs, IdleState, Interrupt, Jitter, Model, TickPhase};
pub use simulation::{Injection, PolicyMaker, SimReport, Simulation, TIME_LIMIT_NS};
pub use upgrade::Successor;
