//! Reads traces: the one place that looks at bytes from elsewhere.

use std::io::{self, Read};

use crate::{Header, MAGIC, PREAMBLE_LEN, RECORD_LEN, Record, TRACE_VERSION};

/// Longest header that is believed: 8,192 CPUs take less than 1 MiB.
const HEADER_MAX: u32 = 16 << 20;

/// Most records that are read at once.
const BATCH: usize = 2_730;

/// Why bytes are no trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Not written by Ekiden.
    #[error("this is no trace: it does not begin with EKITRACE; give the file that `ekiden sim --trace` wrote")]
    Foreign,
    /// Of another version of this program.
    #[error("this trace has format {found}, and this program reads {TRACE_VERSION}: use the one that wrote it")]
    Version {
        /// Version of the trace.
        found: u32,
    },
    /// The header cannot be read.
    #[error("the header of the trace is damaged: {why}; record it again")]
    Header {
        /// What is wrong with it.
        why: String,
    },
    /// Cut off, or damaged.
    #[error(
        "the trace is damaged at byte {at}: what comes before it can be used, what comes after it cannot; record it again"
    )]
    Damaged {
        /// Where.
        at: u64,
    },
    /// It cannot be read.
    #[error("cannot read the trace: {0}")]
    Io(#[from] io::Error),
}

/// Reads a trace of any length, with constant memory. An iterator that ends with the trace or after its first error.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    header: Header,
    batch: Vec<u8>,
    /// Where in the batch, and where in the source, the next record begins.
    next: usize,
    at: u64,
    is_over: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// When it is something else, of another version, or damaged.
    pub fn new(mut source: R) -> Result<Self, TraceError> {
        let mut preamble = [0; PREAMBLE_LEN];
        let len = fill(&mut source, &mut preamble)?;
        let damaged = || Err(TraceError::Damaged { at: len as u64 });
        if !preamble[..len].starts_with(&MAGIC[..len.min(MAGIC.len())]) || len == 0 {
            return Err(TraceError::Foreign);
        }
        let Some((version, header_len)) = preamble[8..].split_first_chunk::<4>().filter(|_| len == PREAMBLE_LEN) else {
            return damaged();
        };
        match u32::from_le_bytes(*version) {
            TRACE_VERSION => {}
            found => return Err(TraceError::Version { found }),
        }
        let header_len = header_len.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if header_len > HEADER_MAX {
            return Err(TraceError::Header { why: format!("{header_len} bytes are more than it ever has") });
        }
        let mut json = Vec::new();
        source.by_ref().take(header_len.into()).read_to_end(&mut json)?;
        if json.len() < header_len as usize {
            return Err(TraceError::Damaged { at: (PREAMBLE_LEN + json.len()) as u64 });
        }
        let broken = |why: String| TraceError::Header { why };
        let header: Header = serde_json::from_slice(&json).map_err(|error| broken(error.to_string()))?;
        header.topology().map_err(|error| broken(error.to_string()))?;
        let at = PREAMBLE_LEN as u64 + u64::from(header_len);
        Ok(Self { source, header, batch: Vec::new(), next: 0, at, is_over: false })
    }

    /// What the trace is of.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Whether there is a record that has not been returned.
    fn more(&mut self) -> io::Result<bool> {
        if self.next < self.batch.len() {
            return Ok(true);
        }
        self.batch.resize(BATCH * RECORD_LEN, 0);
        let len = fill(&mut self.source, &mut self.batch)?;
        self.batch.truncate(len);
        self.next = 0;
        Ok(len > 0)
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        match self.more() {
            Ok(true) => {}
            Ok(false) => {
                self.is_over = true;
                return None;
            }
            Err(error) => {
                self.is_over = true;
                return Some(Err(error.into()));
            }
        }
        let bytes = self.batch.get(self.next..).and_then(<[u8]>::first_chunk);
        match bytes
            .and_then(Record::from_bytes)
            .filter(|record| record.cpu < self.header.nr_cpus() || record.is_piece())
        {
            Some(record) => {
                self.next += RECORD_LEN;
                self.at += RECORD_LEN as u64;
                Some(Ok(record))
            }
            None => {
                self.is_over = true;
                Some(Err(TraceError::Damaged { at: self.at }))
            }
        }
    }
}

/// Reads until `bytes` is full or the source ends; returns how much there was.
fn fill(source: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < bytes.len() {
        match source.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
