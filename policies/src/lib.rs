//! The policies that come with Ekiden, each in a file of its own; what several share, or is long, is in a folder beside it.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod balance;

// A new policy is a file in this directory and a line here: hosts, command line and tests go by it.
ekiden::policies! {
    fifo::Fifo,
    wfq::Wfq,
    cfs::Cfs,
    eevdf::Eevdf,
    global_fifo::GlobalFifo,
    llc_fifo::LlcFifo,
    shinjuku::Shinjuku,
    sjf::Sjf,
    mlfq::Mlfq,
    central_fifo::CentralFifo,
    bpfland::Bpfland,
    nest::Nest,
    modular::Modular,
    locality::Locality,
    arbiter::Arbiter,
}

pub use arbiter::{Ask, Assignment, Becomes, Request};
pub use locality::{Change, Placed, Together};
pub use modular::{Suggest, Waiting};

macro_rules! names {
    ($($module:ident $policy:ident)*) => { &[$(<$policy as ekiden::Scheduler>::NAME),*] };
}

/// What people call them.
pub const NAMES: &[&str] = for_each_policy!(names);

/// What the tutorial shows compiles.
#[cfg(doctest)]
#[doc = include_str!("../../docs/shared-queues.md")]
pub struct Tutorial;
