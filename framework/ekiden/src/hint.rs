//! Hints: what applications tell a policy, and what it tells them (papers/000, section 3.3).

use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;

use zerocopy::{Immutable, KnownLayout, TryFromBytes};

/// Names one hint queue of an application, unique while the policy runs.
pub type QueueId = u32;

/// Names a process by its PID, while it lives: the number is another one's later.
pub type ProcessId = u32;

/// A policy does not take a hint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HintRefused;

/// Why a program is not told: see [`Cx::notify`](crate::Cx::notify). The numbers are those on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotTold {
    /// It has not read enough of what it was told before. Counted in its queue.
    Full = 1,
    /// There is no such queue, or it has no room for notices of this type.
    Closed = 2,
}

impl NotTold {
    /// The reason with this number; an unknown one reads as [`NotTold::Closed`].
    pub const fn from_number(number: u32) -> Self {
        if number == Self::Full as u32 { Self::Full } else { Self::Closed }
    }
}

impl fmt::Display for NotTold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the program has not read what it was told before",
            Self::Closed => "the queue is closed",
        })
    }
}

/// Hints that waited in a queue, oldest first. Bytes that are no value of `H` are passed over and counted.
#[derive(Debug)]
pub struct Hints<'a, H> {
    bytes: &'a [u8],
    refused: &'a Cell<u32>,
    hint: PhantomData<H>,
}

impl<'a, H: TryFromBytes + KnownLayout + Immutable> Hints<'a, H> {
    pub(crate) fn new(bytes: &'a [u8], refused: &'a Cell<u32>) -> Self {
        Self { bytes, refused, hint: PhantomData }
    }

    /// Takes the oldest hint; the same as `next`.
    pub fn pop(&mut self) -> Option<H> {
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
            self.refused.set(self.refused.get().saturating_add(1));
        }
        None
    }
}

impl<H: TryFromBytes + KnownLayout + Immutable> Iterator for Hints<'_, H> {
    type Item = H;

    fn next(&mut self) -> Option<H> {
        self.pop()
    }
}
