//! Hints: what applications tell a policy (papers/000, section 3.3).

use core::marker::PhantomData;

use zerocopy::{Immutable, KnownLayout, TryFromBytes};

/// Names one hint queue of an application, unique while the policy runs.
pub type QueueId = u32;

/// A policy does not take a hint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HintRefused;

/// Hints that waited in a queue, oldest first. Bytes that are no value of `H` are passed over and counted.
#[derive(Debug)]
pub struct Hints<'a, H> {
    bytes: &'a [u8],
    hint: PhantomData<H>,
}

impl<'a, H: TryFromBytes + KnownLayout + Immutable> Hints<'a, H> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, hint: PhantomData }
    }
}

impl<H: TryFromBytes + KnownLayout + Immutable> Iterator for Hints<'_, H> {
    type Item = H;

    fn next(&mut self) -> Option<H> {
        let size = size_of::<H>();
        // A policy without hints has `()` here, and would otherwise see infinitely many of them.
        if size == 0 {
            return None;
        }
        while self.bytes.len() >= size {
            let (head, rest) = self.bytes.split_at(size);
            self.bytes = rest;
            if let Ok(hint) = H::try_read_from_bytes(head) {
                return Some(hint);
            }
        }
        None
    }
}
