//! The commands of `ekiden` that measure: benches, how far the simulator is from the kernel, figures of papers, faults, the soak, the demo.
//!
//! Each command is a struct of its options, for clap, with a `run`. The arithmetic is in `lab/bench`, and what other commands use too in
//! `lab/command`.
#![forbid(unsafe_code)]

mod bench;
mod demo;
mod faults;
mod fidelity;
mod generated;
mod guest_test;
mod markdown;
mod reproduce;
mod request;
mod soak;
pub mod waits;

// By the names that they have within this crate and within the command line.
use ekiden_command::{
    booted, considered, failure, guest_run, loads, machine, models, modules, output, own, parallel, policies, progress,
    recording, report, session, signals,
};

pub use self::{
    bench::{
        Bench, MAY_BE_UNSAFE, Sleepers,
        candidates::{Candidate, PolicyArgs},
    },
    demo::Demo,
    faults::Faults,
    fidelity::Fidelity,
    reproduce::Reproduce,
    request::MeasureRequest,
    soak::Soak,
};
