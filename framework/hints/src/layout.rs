//! The layout of a queue's memory.
//!
//! It is words of 64 bits, in the byte order of the machine. The first [`HEADER_BYTES`] are the header; then come the
//! ring of hints, which the program writes, and that of notices, which the policy writes. A record begins at a
//! multiple of eight bytes. The number of records that a ring has is a power of two; `head` counts what was written
//! and `tail` what was read, and neither starts over. What the two sides write is in cache lines of their own.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use crate::ring::{Ring, Word};
use crate::shape::{Plain, Shape};

/// What the memory begins with: "ekihints" on a little-endian machine.
pub const MAGIC: u64 = 0x7374_6e69_6869_6b65;

/// The version of the layout that is described here.
pub const VERSION: u64 = 1;

/// Bytes of the header, and what the whole is rounded up to.
pub const HEADER_BYTES: usize = 4096;

/// Most bytes of a record.
pub const RECORD_BYTES_MAX: u32 = 256;

/// Most records of a ring.
pub const RECORDS_MAX: u32 = 4096;

/// Where in the header what is, in words.
pub mod at {
    /// [`MAGIC`](super::MAGIC).
    pub const MAGIC: usize = 0;
    /// [`VERSION`](super::VERSION).
    pub const VERSION: usize = 1;
    /// [`State`](super::State): written by the kernel.
    pub const STATE: usize = 2;
    /// Hints: the fingerprint of their type, bytes of a record, records.
    pub const UP: usize = 3;
    /// Notices: the fingerprint of their type, bytes of a record, records.
    pub const DOWN: usize = 6;
    /// How many hints the program has written, and how often it found no room.
    pub const UP_HEAD: usize = 16;
    /// How many hints were taken.
    pub const UP_TAIL: usize = 32;
    /// How many of them were no value of their type.
    pub const REFUSED: usize = 33;
    /// How often the head made no sense.
    pub const NONSENSE: usize = 34;
    /// How many notices were written, and how often there was no room.
    pub const DOWN_HEAD: usize = 48;
    /// How many notices the program has read.
    pub const DOWN_TAIL: usize = 64;
}

const HEADER_WORDS: usize = HEADER_BYTES / 8;

/// How a queue stands. The numbers are those in memory.
#[repr(u64)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Open.
    Open = 1,
    /// The policy has ended.
    PolicyGone = 2,
    /// A version of the policy with other types has taken over: the program has to open anew.
    OtherTypes = 3,
    /// The program has closed it.
    Closed = 4,
}

impl State {
    /// The state with this number; an unknown one reads as [`State::Closed`].
    pub const fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Open,
            2 => Self::PolicyGone,
            3 => Self::OtherTypes,
            _ => Self::Closed,
        }
    }
}

/// One ring: what its records are, and how many there are.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Side {
    /// [`Shape::fingerprint`](crate::Shape::fingerprint) of the records.
    pub fingerprint: u64,
    /// Bytes of a record; 0 if nothing is said in this direction.
    pub bytes: u32,
    /// How many there is room for: a power of two.
    pub records: u32,
}

impl Side {
    const fn of_type<T: Plain>() -> Self {
        Self::of(&T::SHAPE, 0)
    }

    /// The geometry of a ring of this many records of this shape.
    pub const fn of(shape: &Shape, records: u32) -> Self {
        Self { fingerprint: shape.fingerprint(), bytes: shape.bytes as u32, records }
    }

    /// Words from one record to the next.
    pub const fn record_words(self) -> usize {
        self.bytes.div_ceil(8) as usize
    }

    const fn words(self) -> usize {
        self.record_words() * self.records as usize
    }

    /// Whether it keeps the limits.
    pub const fn is_good(self) -> bool {
        self.bytes <= RECORD_BYTES_MAX && self.records.is_power_of_two() && self.records <= RECORDS_MAX
    }
}

/// Both rings of a queue.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Geometry {
    /// Hints, which the program writes.
    pub up: Side,
    /// Notices, which the policy writes.
    pub down: Side,
}

/// Why memory is no queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderError {
    /// It does not begin with [`MAGIC`].
    NoQueue,
    /// Another [`VERSION`].
    Version(u64),
    /// Sizes beyond the limits, or beyond the memory.
    Sizes,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoQueue => f.write_str("this memory is no queue of hints; map the descriptor that opening one gave"),
            Self::Version(other) => {
                write!(
                    f,
                    "the queue has version {other}, and this program knows {VERSION}; build it with the same Ekiden"
                )
            }
            Self::Sizes => f.write_str("the queue's sizes are beyond its memory; map all of it"),
        }
    }
}

impl core::error::Error for HeaderError {}

impl Geometry {
    /// The geometry of types that are not in any ring yet: both sides have no records.
    pub const fn of_types<Up: Plain, Down: Plain>() -> Self {
        Self { up: Side::of_type::<Up>(), down: Side::of_type::<Down>() }
    }

    /// Whether both rings keep the limits.
    pub const fn is_good(self) -> bool {
        self.up.is_good() && self.down.is_good()
    }

    /// Bytes of the whole.
    pub const fn bytes(self) -> usize {
        (HEADER_BYTES + (self.up.words() + self.down.words()) * 8).next_multiple_of(HEADER_BYTES)
    }

    /// Writes the header of a queue that is open, into zeroed memory. False if there is too little of it.
    pub fn write<W: Word>(self, words: &[W]) -> bool {
        if !self.is_good() || words.len() < self.bytes() / 8 {
            return false;
        }
        let sides = [(at::UP, self.up), (at::DOWN, self.down)];
        for (at, Side { fingerprint, bytes, records }) in sides {
            words[at].store(fingerprint, Relaxed);
            words[at + 1].store(bytes.into(), Relaxed);
            words[at + 2].store(records.into(), Relaxed);
        }
        words[at::STATE].store(State::Open as u64, Relaxed);
        words[at::VERSION].store(VERSION, Relaxed);
        words[at::MAGIC].store(MAGIC, Relaxed);
        true
    }

    /// Reads the header, once: a caller keeps what was read, as the other side may change it.
    ///
    /// # Errors
    /// If this is no queue, or not all of it.
    pub fn read<W: Word>(words: &[W]) -> Result<Self, HeaderError> {
        if words.len() < HEADER_WORDS || words[at::MAGIC].load(Relaxed) != MAGIC {
            return Err(HeaderError::NoQueue);
        }
        match words[at::VERSION].load(Relaxed) {
            VERSION => {}
            other => return Err(HeaderError::Version(other)),
        }
        let side = |at: usize| {
            let [fingerprint, bytes, records] = [0, 1, 2].map(|word| words[at + word].load(Relaxed));
            let small = |number: u64| u32::try_from(number).map_err(|_| HeaderError::Sizes);
            Ok(Side { fingerprint, bytes: small(bytes)?, records: small(records)? })
        };
        let geometry = Self { up: side(at::UP)?, down: side(at::DOWN)? };
        if !geometry.is_good() || words.len() < geometry.bytes() / 8 {
            return Err(HeaderError::Sizes);
        }
        Ok(geometry)
    }

    /// The ring of hints in the memory of a queue of this geometry; `None` if there is too little of it.
    pub fn up<W: Word>(self, words: &[W]) -> Option<Ring<'_, W>> {
        self.ring(words, HEADER_WORDS, self.up, at::UP_HEAD, at::UP_TAIL)
    }

    /// The ring of notices.
    pub fn down<W: Word>(self, words: &[W]) -> Option<Ring<'_, W>> {
        self.ring(words, HEADER_WORDS + self.up.words(), self.down, at::DOWN_HEAD, at::DOWN_TAIL)
    }

    fn ring<W: Word>(self, words: &[W], first: usize, side: Side, head: usize, tail: usize) -> Option<Ring<'_, W>> {
        if !self.is_good() {
            return None;
        }
        let records = words.get(first..first + side.words())?;
        Some(Ring::new(&words[head..head + 2], &words[tail..tail + 3], records, side))
    }
}
