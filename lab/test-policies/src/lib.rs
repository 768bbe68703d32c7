//! Policies that go wrong on purpose, to see that only they are hurt.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod drowsy;
mod fault;
mod faulty;

pub use drowsy::Drowsy;
pub use fault::Fault;
pub use faulty::{ARM, Faulty};
