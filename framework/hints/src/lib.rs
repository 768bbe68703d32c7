//! Queues through which applications and their policy talk (papers/000, section 3.3): two rings of plain records in
//! memory that both share, one for each direction.
//!
//! Neither side trusts the other. What a side needs to know of a ring's geometry it keeps for itself, each index of
//! the other side is looked at before it is used, and a record is copied out before anything is made of it. Writing
//! never blocks: a ring that is full is reported to the writer, and counted.
//!
//! [`layout`] describes what is in the memory; for C it is `framework/include/ekiden.h`. [`Plain`] says what types records may
//! have.
#![no_std]
#![forbid(unsafe_code)]

pub mod layout;
mod ring;
mod shape;

pub use layout::{Geometry, HeaderError, Side, State};
pub use ring::{Consumer, Nonsense, NotWritten, Producer, Ring, Word};
pub use shape::{Field, Kind, Plain, Shape};
