//! Reads traces: the one place that looks at bytes from elsewhere.

use std::io::{self, Read};

use ekiden::{MAX_CPUS, Topology};

use crate::{Header, MAGIC, MAY_BE_PASSED_OVER, PREAMBLE_LEN, RECORD_LEN, Record, TRACE_VERSION, record::kind_of};

/// Begins traces of version 1, which only the simulator wrote: version, number of CPUs and seed follow, and then records.
const MAGIC_1: [u8; 8] = *b"EKIDSIM\0";

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
    /// Another version of this program wrote it.
    #[error("this trace has format {found}, and this program reads 1 to {TRACE_VERSION}: use the one that wrote it")]
    Version {
        /// Version of the trace.
        found: u32,
    },
    /// The header cannot be read.
    #[error("the header of the trace is damaged: {why}; record it again")]
    Header {
        /// The mistake in it.
        why: String,
    },
    /// It has a record that cannot be left out and means nothing to this program.
    #[error(
        "the record at byte {at} of the trace is of kind {kind}, which this program does not know: a later version wrote it, or it is damaged there; what comes before it can be used"
    )]
    Unknown {
        /// Its number.
        kind: u16,
        /// Where.
        at: u64,
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
    version: u32,
    passed_over: u64,
    on_unknown: fn(u16),
}

impl<R: Read> Reader<R> {
    /// Reads the header, of this version or of the one before.
    ///
    /// # Errors
    /// When it is something else, of another version, or damaged.
    pub fn new(mut source: R) -> Result<Self, TraceError> {
        let mut preamble = [0; PREAMBLE_LEN];
        let len = fill(&mut source, &mut preamble)?;
        let damaged = || Err(TraceError::Damaged { at: len as u64 });
        if preamble.starts_with(&MAGIC_1) && len == PREAMBLE_LEN {
            return Self::of_version_1(source, &preamble);
        }
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
        Ok(Self::at(PREAMBLE_LEN as u64 + u64::from(header_len), TRACE_VERSION, source, header))
    }

    /// Its machine is described by the number of CPUs alone: cores that share a cache.
    fn of_version_1(mut source: R, preamble: &[u8; PREAMBLE_LEN]) -> Result<Self, TraceError> {
        let number = |at: usize| preamble[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let (version, nr_cpus) = (number(8), number(12));
        if version != 1 {
            return Err(TraceError::Version { found: version });
        }
        if !(1..=MAX_CPUS).contains(&nr_cpus) {
            return Err(TraceError::Header { why: format!("there is no machine with {nr_cpus} CPUs") });
        }
        let mut seed = [0; 8];
        let len = fill(&mut source, &mut seed)?;
        let at = (PREAMBLE_LEN + len) as u64;
        if len < seed.len() {
            return Err(TraceError::Damaged { at });
        }
        // It ran under a policy, and does not say which.
        let policy = Some("unknown".to_owned());
        let header =
            Header { policy, seed: u64::from_le_bytes(seed), ..Header::of(&Topology::regular(1, 1, nr_cpus, 1)) };
        Ok(Self::at(at, 1, source, header))
    }

    fn at(at: u64, version: u32, source: R, header: Header) -> Self {
        let (batch, on_unknown) = (Vec::new(), drop::<u16> as fn(u16));
        Self { source, header, batch, next: 0, at, is_over: false, version, passed_over: 0, on_unknown }
    }

    /// Has the first kind told that is [passed over](MAY_BE_PASSED_OVER).
    #[must_use]
    pub fn on_unknown(self, on_unknown: fn(u16)) -> Self {
        Self { on_unknown, ..self }
    }

    /// The version of its format. A trace of version 1 names no task, and does not say which CPUs one may use.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// How many records of kinds that this program does not know there were until now.
    pub fn passed_over(&self) -> u64 {
        self.passed_over
    }

    /// Where in the source the next record begins.
    pub(crate) fn position(&self) -> u64 {
        self.at
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
        while !self.is_over {
            match self.more() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return self.end(error.into()),
            }
            let Some(bytes) = self.batch.get(self.next..).and_then(<[u8]>::first_chunk) else {
                return self.end(TraceError::Damaged { at: self.at });
            };
            let (record, kind) = (Record::from_bytes(bytes), kind_of(bytes));
            match record {
                Some(record) if record.cpu < self.header.nr_cpus() || record.is_piece() => {
                    self.pass();
                    return Some(Ok(record));
                }
                Some(_) => return self.end(TraceError::Damaged { at: self.at }),
                None if kind < MAY_BE_PASSED_OVER => return self.end(TraceError::Unknown { kind, at: self.at }),
                None => {
                    if self.passed_over == 0 {
                        (self.on_unknown)(kind);
                    }
                    self.passed_over += 1;
                    self.pass();
                }
            }
        }
        self.is_over = true;
        None
    }
}

impl<R> Reader<R> {
    /// The next record is done with.
    #[inline]
    fn pass(&mut self) {
        self.next += RECORD_LEN;
        self.at += RECORD_LEN as u64;
    }

    /// The error is the last thing that is returned.
    fn end(&mut self, error: TraceError) -> Option<Result<Record, TraceError>> {
        self.is_over = true;
        Some(Err(error))
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
