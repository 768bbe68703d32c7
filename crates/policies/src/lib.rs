//! The policies that come with Ekiden, each on one page.
#![no_std]
#![forbid(unsafe_code)]

mod fifo;
mod wfq;

pub use fifo::Fifo;
pub use wfq::Wfq;
