//! What the commands of `ekiden` share: exit codes, progress, signals, files that appear when they are whole, the modules of policies, a policy
//! in the kernel, and virtual machines.
//!
//! The commands themselves are in `cli`, and those that measure in `lab/measure`. Both are built on this crate.
#![forbid(unsafe_code)]

pub mod booted;
pub mod considered;
pub mod failure;
pub mod flights;
pub mod guest_run;
pub mod invoker;
pub mod loads;
pub mod machine;
pub mod models;
pub mod modules;
pub mod output;
pub mod own;
pub mod parallel;
pub mod policies;
pub mod progress;
pub mod recording;
pub mod report;
pub mod session;
pub mod signals;
