//! A ring of records with one writer and one reader, in memory that both share and either may fill with anything.

use core::sync::atomic::{
    AtomicU64, Ordering,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::Side;

/// A word of memory that is shared; a model checker has its own.
pub trait Word {
    /// Reads it.
    fn load(&self, order: Ordering) -> u64;
    /// Writes it.
    fn store(&self, value: u64, order: Ordering);
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}

/// Where a ring is. Which side this is, [`Producer`] and [`Consumer`] say.
#[derive(Debug)]
pub struct Ring<'a, W> {
    /// How many records were written, and how often there was no room: the writer's.
    head: &'a [W],
    /// How many were read, how many of them were refused, and how often the head made no sense: the reader's.
    tail: &'a [W],
    records: &'a [W],
    side: Side,
}

impl<W> Clone for Ring<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Ring<'_, W> {}

impl<'a, W: Word> Ring<'a, W> {
    /// `head` has two words, `tail` three, and there are as many of records as the side says.
    pub(crate) fn new(head: &'a [W], tail: &'a [W], records: &'a [W], side: Side) -> Self {
        Self { head, tail, records, side }
    }

    /// The words of a record. The number of records is a power of two, and never 0.
    #[inline]
    fn record(&self, number: u64) -> &'a [W] {
        let words = self.side.record_words();
        let first = (number & u64::from(self.side.records - 1)) as usize * words;
        &self.records[first..first + words]
    }

    fn count(word: &W, more: u64) {
        word.store(word.load(Relaxed).wrapping_add(more), Relaxed);
    }
}

/// Nothing was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotWritten {
    /// The other side has not read enough yet, or its index makes no sense.
    Full,
    /// That is not how long a record is.
    Length,
}

/// The writing side of a ring. There is one at a time.
#[derive(Debug)]
pub struct Producer<'a, W = AtomicU64> {
    ring: Ring<'a, W>,
    head: u64,
}

impl<'a, W: Word> Producer<'a, W> {
    /// Continues after `head` records, which is 0 for a new ring.
    pub fn at(ring: Ring<'a, W>, head: u64) -> Self {
        Self { ring, head }
    }

    /// How many records were written.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Writes a record, if there is room. Never waits.
    ///
    /// # Errors
    /// Without room, which is counted where both sides can see it.
    #[inline]
    pub fn push(&mut self, record: &[u8]) -> Result<(), NotWritten> {
        let Self { ring, head } = self;
        if record.len() != ring.side.bytes as usize || record.is_empty() {
            return Err(NotWritten::Length);
        }
        // A tail beyond the head is a very large number of records, and no room either.
        if head.wrapping_sub(ring.tail[0].load(Acquire)) >= ring.side.records.into() {
            Ring::count(&ring.head[1], 1);
            return Err(NotWritten::Full);
        }
        for (word, bytes) in ring.record(*head).iter().zip(record.chunks(8)) {
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(value), Relaxed);
        }
        *head = head.wrapping_add(1);
        ring.head[0].store(*head, Release);
        Ok(())
    }

    /// How often there was no room, as the memory says.
    pub fn times_full(&self) -> u64 {
        self.ring.head[1].load(Relaxed)
    }
}

/// The other side says that it has written more than there is room for, or has taken something back. All that it had
/// written is passed over, and counted once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nonsense;

/// The reading side of a ring. There is one at a time.
#[derive(Debug)]
pub struct Consumer<'a, W = AtomicU64> {
    ring: Ring<'a, W>,
    tail: u64,
}

impl<'a, W: Word> Consumer<'a, W> {
    /// Continues after `tail` records, which is 0 for a new ring.
    pub fn at(ring: Ring<'a, W>, tail: u64) -> Self {
        Self { ring, tail }
    }

    /// How many records were read.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// How many records wait.
    ///
    /// # Errors
    /// If that cannot be: the reader continues with what is written from now on.
    #[inline]
    pub fn waiting(&mut self) -> Result<u64, Nonsense> {
        let head = self.ring.head[0].load(Acquire);
        let waiting = head.wrapping_sub(self.tail);
        if waiting <= self.ring.side.records.into() && self.ring.side.bytes > 0 {
            return Ok(waiting);
        }
        if waiting == 0 {
            return Ok(0);
        }
        self.tail = head;
        self.ring.tail[0].store(head, Release);
        Ring::count(&self.ring.tail[2], 1);
        Err(Nonsense)
    }

    /// Copies the oldest record, if one waits, and makes room for another. `room` is as long as a record.
    ///
    /// # Errors
    /// As [`waiting`](Self::waiting).
    #[inline]
    pub fn pop(&mut self, room: &mut [u8]) -> Result<bool, Nonsense> {
        if self.waiting()? == 0 {
            return Ok(false);
        }
        for (word, bytes) in self.ring.record(self.tail).iter().zip(room.chunks_mut(8)) {
            let value = word.load(Relaxed).to_ne_bytes();
            bytes.copy_from_slice(&value[..bytes.len()]);
        }
        self.tail = self.tail.wrapping_add(1);
        self.ring.tail[0].store(self.tail, Release);
        Ok(true)
    }

    /// Copies records, oldest first, until `room` has no place for another one or none waits. The number of bytes.
    ///
    /// # Errors
    /// As [`waiting`](Self::waiting), of what is waiting first: what was copied counts.
    pub fn take(&mut self, room: &mut [u8]) -> Result<usize, Nonsense> {
        let bytes = self.ring.side.bytes.max(1) as usize;
        let mut taken = 0;
        // No more than there were at first: a writer that never stops does not keep us here.
        let most = self.waiting()?;
        for record in room.chunks_exact_mut(bytes).take(most as usize) {
            match self.pop(record) {
                Ok(true) => taken += bytes,
                Ok(false) | Err(Nonsense) => break,
            }
        }
        Ok(taken)
    }

    /// Counts records that were no values of their type.
    pub fn note_refused(&self, records: u64) {
        Ring::count(&self.ring.tail[1], records);
    }
}
