//! Reads recordings: the calls of all CPUs in the order of time.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io::{self, Read};
use std::string::ToString;
use std::vec::Vec;

use super::{
    BEFORE_MARKS, BLOCK_LEN, BLOCK_RECORDS_MAX, BlockHeader, END, HEADER_MAX, Header, INSTANCE, Instance, MAGIC,
    OLDEST_READ, PASS, PASS_MAX, PREAMBLE_LEN, RECORDS, RecordingError,
};
use crate::{Calls, Entry, RECORD_WORDS, RECORDING_VERSION, Record};

/// Bytes of a record.
const RECORD_LEN: usize = RECORD_WORDS * 8;
/// Most CPUs that a recording has streams of.
const STREAMS_MAX: usize = 1 << 13;
/// Most tasks that there can be, as in the kernel's `PID_MAX_LIMIT`: policies take memory for all of them.
const TASKS_MAX: u32 = 1 << 22;
/// Most instances that a recording tells of.
const INSTANCES_MAX: usize = 1 << 20;

/// What a recording has of one CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A call, or a mark.
    Entry(Entry),
    /// Records that were lost here.
    Gap {
        /// How many.
        lost: u64,
    },
    /// The recording breaks off, or nearly ends. After that, some CPUs lack calls that others have, or the end of one;
    /// then comes the error, if there is one.
    Torn,
}

/// The next thing that a recording tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The CPU in whose stream it is: the one that was busy with it.
    pub cpu: u32,
    /// When it began, on the host's clock.
    pub time_ns: u64,
    /// What it is.
    pub item: Item,
}

/// Reads a recording of any length; it takes as much memory as a pass. An iterator that gives the calls of all CPUs in the
/// order in which they began, and ends with the recording or after its first error.
pub struct RecordingReader<R> {
    source: R,
    version: u32,
    header: Header,
    instances: BTreeMap<u64, Instance>,
    at: u64,
    streams: Vec<Stream>,
    /// Where the stream of each CPU is.
    index: BTreeMap<u32, usize>,
    /// The streams by the time of the next entry, or before which it has none: that time, its CPU, and where it is.
    order: BinaryHeap<Reverse<(u64, u32, usize)>>,
    decompressor: zstd::bulk::Decompressor<'static>,
    pass_ns: u64,
    /// No more passes can be read. The error is the last thing that is reported.
    is_over: bool,
    error: Option<RecordingError>,
    torn: bool,
    /// Entries from here on were not there on all CPUs when they were read the last time.
    is_ragged: bool,
}

/// State of one CPU's stream.
#[derive(Default)]
struct Stream {
    cpu: u32,
    blocks: VecDeque<Packed>,
    /// The block that is being read, as bytes, and where in it the next record is.
    plain: Vec<u8>,
    next: usize,
    calls: Calls,
    ready: Option<Item>,
    /// Items after that.
    following: VecDeque<Item>,
    /// The time of the last entry.
    time_ns: u64,
    /// The number of the next record if none is lost, as far as blocks were looked at and as they were unpacked.
    end: u64,
    unpacked: u64,
}

struct Packed {
    at: u64,
    first: u64,
    count: u32,
    bytes: Vec<u8>,
}

impl<R: Read> RecordingReader<R> {
    /// Reads the header, of this version or of the one before.
    ///
    /// # Errors
    /// When it is something else, of another version, or damaged.
    pub fn new(mut source: R) -> Result<Self, RecordingError> {
        let mut preamble = [0; PREAMBLE_LEN];
        let len = fill(&mut source, &mut preamble)?;
        if !preamble[..len].starts_with(&MAGIC[..len.min(MAGIC.len())]) || len == 0 {
            return Err(RecordingError::Foreign);
        }
        if len < PREAMBLE_LEN {
            return Err(RecordingError::CutOff { at: len as u64 });
        }
        let word = |at: usize| u32::from_le_bytes([preamble[at], preamble[at + 1], preamble[at + 2], preamble[at + 3]]);
        let (version, header_len, checksum) = (word(8), word(12), word(16));
        if !(OLDEST_READ..=RECORDING_VERSION).contains(&version) {
            return Err(RecordingError::Version { found: version });
        }
        let broken = |why: &dyn ToString| RecordingError::Header { why: why.to_string() };
        if header_len > HEADER_MAX {
            return Err(broken(&"it would be longer than one ever is"));
        }
        let mut json = Vec::new();
        source.by_ref().take(header_len.into()).read_to_end(&mut json).map_err(RecordingError::Read)?;
        let at = (PREAMBLE_LEN + json.len()) as u64;
        if json.len() < header_len as usize {
            return Err(RecordingError::CutOff { at });
        }
        let mut actual = crc32fast::Hasher::new();
        actual.update(&preamble[MAGIC.len()..16]);
        actual.update(&json);
        if actual.finalize() != checksum {
            return Err(broken(&"its checksum is wrong"));
        }
        let header: Header = serde_json::from_slice(&json).map_err(|error| broken(&error))?;
        header.topology().map_err(|error| broken(&error))?;
        if header.max_tasks > TASKS_MAX {
            return Err(broken(&"it has room for more tasks than Linux has PIDs"));
        }
        Ok(Self {
            source,
            version,
            header,
            instances: BTreeMap::new(),
            at,
            streams: Vec::new(),
            index: BTreeMap::new(),
            order: BinaryHeap::new(),
            decompressor: zstd::bulk::Decompressor::new().map_err(RecordingError::Read)?,
            pass_ns: 0,
            is_over: false,
            error: None,
            torn: false,
            is_ragged: false,
        })
    }

    /// What the recording is of.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The version of its format. A recording of version 1 does not say on whose time a call came: [`thread`](crate::RecordedCall::thread) is 0.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// What an instance of a policy is, whose mark has been read; nothing if that is not known. [`BEFORE_MARKS`] is the one to which the calls before the
    /// first mark belong, once something was read.
    pub fn instance(&self, number: u64) -> Option<&Instance> {
        // A recording that says to which instance its first calls belong says it of all that it knows.
        let of_header = || (!self.instances.contains_key(&BEFORE_MARKS)).then_some(&self.header.instance);
        self.instances.get(&number).or_else(of_header).filter(|instance| !instance.policy.is_empty())
    }

    /// How many bytes of the recording were read.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Reads blocks until a pass is whole. Says whether more may follow.
    fn read_pass(&mut self) -> Result<bool, RecordingError> {
        let mut of_pass = 0;
        loop {
            let at = self.at;
            let damaged = |what| Err(RecordingError::Damaged { at, what });
            let mut bytes = [0; BLOCK_LEN];
            let len = fill(&mut self.source, &mut bytes)?;
            if len < BLOCK_LEN {
                return Err(RecordingError::CutOff { at: at + len as u64 });
            }
            let Some(header) = BlockHeader::from_bytes(&bytes) else {
                return damaged("the checksum of a block's header");
            };
            of_pass += u64::from(header.len) + BLOCK_LEN as u64;
            if of_pass > PASS_MAX {
                return damaged("a pass without an end");
            }
            let mut payload = Vec::new();
            self.source.by_ref().take(header.len.into()).read_to_end(&mut payload).map_err(RecordingError::Read)?;
            if payload.len() < header.len as usize {
                return Err(RecordingError::CutOff { at: at + (BLOCK_LEN + payload.len()) as u64 });
            }
            if crc32fast::hash(&payload) != header.checksum {
                return damaged("the checksum of a block");
            }
            self.at += (BLOCK_LEN + payload.len()) as u64;
            match header.kind {
                RECORDS => {
                    if header.count as usize > BLOCK_RECORDS_MAX {
                        return damaged("more records than a block has");
                    }
                    let next = self.streams.len();
                    let index = *self.index.entry(header.cpu).or_insert(next);
                    if index == STREAMS_MAX {
                        return damaged("more CPUs than a machine has");
                    }
                    if index == next {
                        self.streams.push(Stream { cpu: header.cpu, ..Stream::default() });
                    }
                    let stream = &mut self.streams[index];
                    if header.number < stream.end || header.number > u64::MAX / 2 {
                        return damaged("records that were there before");
                    }
                    stream.end = header.number + u64::from(header.count);
                    stream.blocks.push_back(Packed { at, first: header.number, count: header.count, bytes: payload });
                }
                PASS => {
                    self.pass_ns = self.pass_ns.max(header.number);
                    return Ok(true);
                }
                INSTANCE => {
                    let Ok(instance) = serde_json::from_slice(&payload) else { return damaged("an instance") };
                    if self.instances.len() == INSTANCES_MAX {
                        return damaged("more instances than a recording has");
                    }
                    self.instances.insert(header.number, instance);
                }
                END => {
                    return match fill(&mut self.source, &mut bytes[..1])? {
                        0 => Ok(false),
                        _ => Err(RecordingError::Damaged { at: self.at, what: "something follows its end" }),
                    };
                }
                _ => return damaged("a block of a kind that is not known"),
            }
        }
    }

    fn next_pass(&mut self) {
        if !self.is_over {
            match self.read_pass() {
                Ok(more) => self.is_over = !more,
                Err(error) => self.fail(error),
            }
        }
        self.put_in_order();
    }

    /// Nothing more can be read. The entries before it are reported, then this.
    fn fail(&mut self, error: RecordingError) {
        if self.error.is_none() {
            self.is_over = true;
            self.torn = true;
            self.error = Some(error);
        }
    }

    fn put_in_order(&mut self) {
        self.order.clear();
        for index in 0..self.streams.len() {
            if let Some(time_ns) = self.look(index) {
                self.order.push(Reverse((time_ns, self.streams[index].cpu, index)));
            }
        }
    }

    /// When the next thing of a stream begins, or before when nothing does; nothing if it is over.
    #[inline]
    fn look(&mut self, index: usize) -> Option<u64> {
        let stream = &mut self.streams[index];
        if stream.ready.is_none() {
            if let Err(error) = stream.advance(&mut self.decompressor) {
                stream.blocks.clear();
                self.fail(error);
                return None;
            }
            if self.is_over && stream.ready.is_none() {
                // Calls of other CPUs may have learnt of this one what its end would have told.
                let since_ns = stream.calls.open_since_ns().unwrap_or(u64::MAX);
                self.pass_ns = self.pass_ns.min(since_ns.saturating_sub(1));
                stream.ready = stream.calls.finish().map(Item::Entry);
                stream.ready.as_ref()?;
            }
        }
        Some(stream.next_ns(self.pass_ns))
    }
}

impl Stream {
    /// Reads records until there is something to tell, or no record is left.
    fn advance(&mut self, decompressor: &mut zstd::bulk::Decompressor<'static>) -> Result<(), RecordingError> {
        loop {
            self.ready = self.following.pop_front();
            while self.ready.is_none() {
                let Some(bytes) = self.plain.get(self.next..).and_then(<[u8]>::first_chunk) else { break };
                self.ready = self.calls.take(&record(bytes)).map(Item::Entry);
                self.next += RECORD_LEN;
                if let (Some(_), Some(following)) = (&self.ready, self.calls.following()) {
                    self.following.push_back(Item::Entry(following));
                }
            }
            if self.ready.is_some() {
                return Ok(());
            }
            let Some(block) = self.blocks.pop_front() else { return Ok(()) };
            let damaged = |what| Err(RecordingError::Damaged { at: block.at, what });
            self.next = 0;
            self.plain.clear();
            self.plain.reserve(block.count as usize * RECORD_LEN);
            match decompressor.decompress_to_buffer(&block.bytes, &mut self.plain) {
                Ok(len) if len == block.count as usize * RECORD_LEN => {}
                _ => {
                    self.plain.clear();
                    return damaged("records that cannot be unpacked");
                }
            }
            if block.first > self.unpacked {
                self.following.extend(self.calls.finish().map(Item::Entry));
                self.following.push_back(Item::Gap { lost: block.first - self.unpacked });
            }
            self.unpacked = block.first + u64::from(block.count);
        }
    }

    /// When the next thing of this CPU begins, or before when nothing does.
    fn next_ns(&mut self, pass_ns: u64) -> u64 {
        let time_ns = match &self.ready {
            Some(Item::Entry(Entry::Call(call))) => call.time_ns,
            Some(Item::Entry(Entry::Mark(mark))) => mark.time_ns,
            Some(_) => self.time_ns,
            None => self.calls.open_since_ns().unwrap_or(pass_ns),
        };
        // Time does not go back, whatever the file says.
        time_ns.max(self.time_ns)
    }
}

#[inline]
fn record(bytes: &[u8; RECORD_LEN]) -> Record {
    let mut record = Record::default();
    for (word, bytes) in record.0.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.try_into().map_or(0, u64::from_le_bytes);
    }
    record
}

impl<R: Read> Iterator for RecordingReader<R> {
    type Item = Result<Recorded, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.torn {
                self.torn = false;
                return Some(Ok(Recorded { cpu: 0, time_ns: self.pass_ns, item: Item::Torn }));
            }
            let Some(Reverse((time_ns, cpu, index))) = self.order.peek().copied() else {
                if self.is_over {
                    return self.error.take().map(Err);
                }
                self.next_pass();
                continue;
            };
            if self.is_over && !self.is_ragged && time_ns > self.pass_ns && self.streams.len() > 1 {
                // CPUs are read one after the other: of the last moments some have more than others.
                self.is_ragged = true;
                self.torn = self.error.is_none();
                continue;
            }
            let stream = &mut self.streams[index];
            let Some(item) = stream.ready.take() else {
                // What it tells next may come before what the others have.
                self.next_pass();
                continue;
            };
            stream.time_ns = time_ns;
            let next_ns = self.look(index);
            if let Some(mut first) = self.order.peek_mut() {
                match next_ns {
                    Some(next_ns) => first.0.0 = next_ns,
                    None => drop(PeekMut::pop(first)),
                }
            }
            return Some(Ok(Recorded { cpu, time_ns, item }));
        }
    }
}

/// Reads until `bytes` is full or the source ends; returns how much there was.
fn fill(source: &mut impl Read, bytes: &mut [u8]) -> Result<usize, RecordingError> {
    let mut len = 0;
    while len < bytes.len() {
        match source.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(RecordingError::Read(error)),
        }
    }
    Ok(len)
}
