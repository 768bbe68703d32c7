//! A trace in memory.

use std::fmt;

use crate::{Header, RECORD_LEN, Reader, Record, TraceError};

/// A trace in memory.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Trace {
    bytes: Vec<u8>,
    /// Where the records begin.
    begin: usize,
}

/// Short, because a trace is not.
impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a trace of {} bytes, digest {:016x}", self.bytes.len(), self.digest())
    }
}

impl Trace {
    /// A trace to which records will be added.
    pub fn new(header: &Header) -> Self {
        let bytes = header.to_bytes();
        Self { begin: bytes.len(), bytes }
    }

    /// A trace that was written to a file.
    ///
    /// # Errors
    /// When the bytes are something else, of another version, or damaged; with the place.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, TraceError> {
        let mut reader = Reader::new(bytes.as_slice())?;
        let begin = reader.position() as usize;
        reader.try_for_each(|record| record.map(drop))?;
        Ok(Self { bytes, begin })
    }

    /// Adds a record.
    #[inline]
    pub fn push(&mut self, record: Record) {
        self.bytes.extend_from_slice(&record.to_bytes());
    }

    /// What it is of; absent if nothing was traced.
    pub fn header(&self) -> Option<Header> {
        Reader::new(self.bytes.as_slice()).ok().map(|reader| reader.header().clone())
    }

    /// The trace as it is written to a file; empty if nothing was traced.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What happened, in order.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        let records = self.bytes.get(self.begin..).unwrap_or(&[]);
        records.chunks_exact(RECORD_LEN).filter_map(|bytes| Record::from_bytes(bytes.try_into().ok()?))
    }

    /// A number that two traces share only if they are the same, for all practical purposes: FNV-1a of 64 bits.
    pub fn digest(&self) -> u64 {
        self.bytes
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
    }
}
