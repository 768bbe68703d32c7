//! Loads for CPU schedulers: one description that runs both on a real kernel and in the simulator, what it reports,
//! and the checks that judge the report without knowing where it came from.
//!
//! - [`spec`]: what a load is made of ([`Workload`], [`TaskSpec`], [`Step`]);
//! - [`rt_app`]: loads in the format of rt-app;
//! - [`report`]: what is known after a run ([`Report`], [`TaskReport`]);
//! - [`builtin`]: the loads that come with Ekiden, each with the check it must pass;
//! - [`loads`]: loads by name and parameters, such as `nas-lu:threads=60+r:count=4`;
//! - [`checks`]: the judgements, functions of reports alone;
//! - `exec`, `direct` (Linux, feature `exec`): loads run by real processes.
//!
//! ```
//! use ekiden_workload::{Step, TaskSpec, Workload};
//!
//! let hog = TaskSpec::new("hog", vec![Step::forever([Step::Run { ns: 1_000_000 }])]).on([0]).copies(5);
//! let load = Workload::new("five-hogs", 1, [hog]).lasting(1_000_000_000);
//! assert_eq!(Workload::parse(&load.to_json())?, load);
//! # Ok::<(), ekiden_workload::SpecError>(())
//! ```
#![deny(unsafe_code)]

pub mod builtin;
pub mod checks;
pub mod loads;
pub mod random;
pub mod report;
pub mod rt_app;
pub mod spec;

#[cfg(all(target_os = "linux", feature = "exec"))]
mod actor;
#[cfg(all(target_os = "linux", feature = "exec"))]
pub mod direct;
#[cfg(all(target_os = "linux", feature = "exec"))]
pub mod exec;
#[cfg(all(target_os = "linux", feature = "exec"))]
pub mod hints;
#[cfg(all(target_os = "linux", feature = "exec"))]
mod proc;
#[cfg(all(target_os = "linux", feature = "exec"))]
mod process_group;
#[cfg(all(target_os = "linux", feature = "exec"))]
mod slot;
#[cfg(all(target_os = "linux", feature = "exec"))]
pub mod spin;
#[cfg(all(target_os = "linux", feature = "exec"))]
mod sys;
#[cfg(all(target_os = "linux", feature = "exec"))]
mod talk;
#[cfg(all(target_os = "linux", feature = "exec"))]
pub mod threads;
#[cfg(all(target_os = "linux", feature = "exec"))]
pub mod turns;
#[cfg(all(target_os = "linux", feature = "exec"))]
mod wait;
#[cfg(all(target_os = "linux", feature = "exec"))]
pub mod wakeups;

pub use report::{Report, TaskReport};
pub use spec::{Device, Group, HintWord, Limit, SpecError, Step, TaskSpec, WaitMode, Workload};
