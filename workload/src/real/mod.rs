//! Loads run by real processes and threads, on the Linux kernel of this machine; the simulator does without all of this.
//!
//! - [`exec`]: runs a [`Workload`](crate::Workload); each task is an `actor`, notes what it did in a `slot`, waits as `wait` says,
//!   and speaks to its policy by `talk`;
//! - [`direct`]: loads whose time is published, as plain loops of system calls;
//! - [`delegation`], [`hints`], [`judge`], [`requests`], [`threads`], [`turns`], [`wakeups`]: what programs measure that are no [`Workload`](crate::Workload);
//! - [`spin`]: work that takes a certain time of a CPU.

mod actor;
pub mod delegation;
pub mod direct;
pub mod exec;
pub mod hints;
pub mod judge;
mod proc;
mod process_group;
pub mod requests;
mod slot;
pub mod spin;
mod sys;
mod talk;
pub mod threads;
pub mod turns;
mod wait;
pub mod wakeups;
