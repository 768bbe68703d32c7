//! The policies that come with Ekiden, each on one page.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod balance;
mod cfs;
mod eevdf;
mod fifo;
mod wfq;

pub use cfs::Cfs;
pub use eevdf::Eevdf;
pub use fifo::Fifo;
pub use wfq::Wfq;
