//! The policies that come with Ekiden, each on one page.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod balance;
mod cfs;
mod eevdf;
mod fifo;
mod global_fifo;
mod llc_fifo;
mod wfq;

pub use cfs::Cfs;
pub use eevdf::Eevdf;
pub use fifo::Fifo;
pub use global_fifo::GlobalFifo;
pub use llc_fifo::LlcFifo;
pub use wfq::Wfq;

/// What the tutorial shows compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/shared-queues.md")]
pub struct Tutorial;
