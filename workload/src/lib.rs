//! Loads for CPU schedulers: one description that runs both on a real kernel and in the simulator, what it reports,
//! and the checks that judge the report without knowing where it came from.
//!
//! - [`spec`]: what a load is made of ([`Workload`], [`TaskSpec`], [`Step`]);
//! - [`rt_app`]: loads in the format of rt-app;
//! - [`report`]: what is known after a run ([`Report`], [`TaskReport`]);
//! - [`builtin`]: the loads that come with Ekiden, each with the check it must pass;
//! - [`loads`]: loads by name and parameters, such as `nas-lu:threads=60+r:count=4`;
//! - [`checks`]: the judgements, functions of reports alone;
//! - `real` (Linux, feature `exec`): loads run by real processes and threads.
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

// The simulator is built without it, and without the crates that only this needs.
#[cfg(all(target_os = "linux", feature = "exec"))]
pub mod real;

pub use report::{Report, TaskReport};
pub use spec::{Device, Group, HintWord, Limit, SpecError, Step, TaskSpec, WaitMode, Workload};
