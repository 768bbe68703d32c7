//! Policies that go wrong on purpose, to see that only they are hurt; and one that says more than others, to see that it is heard.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod drowsy;
mod fault;
mod faulty;
mod telling;

pub use drowsy::Drowsy;
pub use fault::Fault;
pub use faulty::{ARM, Faulty};
pub use telling::Telling;
