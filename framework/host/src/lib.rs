//! What a host of policies uses: the adapter that turns a message into a call, the questions that it answers, the log of calls, the waits
//! that it bounds. All of it is made in the crate `ekiden`, as only there a token can be made; a policy's author is not shown it.
//!
//! A host has a [`Policy`], which is an [`Adapter`] of a scheduler, hands it one [`Message`](abi::Message) for each call and carries out the
//! [`Reply`](abi::Reply). Most of that is the engine's work: see the crate `ekiden-engine`.
#![no_std]
#![forbid(unsafe_code)]

pub use ekiden::host::*;
