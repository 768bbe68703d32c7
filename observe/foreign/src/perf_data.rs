//! Files of perf: `perf.data`, as `perf record` and `perf sched record` write them.
//!
//! The format is described in the kernel's tools/perf/Documentation/perf.data-file-format.txt, the records in
//! perf_event_open(2). There is a crate for it, linux-perf-data; it takes as much memory as a damaged file says, and leaves
//! the descriptions of events alone, which are most of the work.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    io::{Read, Seek},
};

use crate::{
    About, ForeignError,
    bytes::{Bytes, Source, number},
    event::{Event, Moment},
    format::Formats,
    heading::{formats, page_format, skip_own_formats},
    trace_dat,
    unpack::Unpacker,
};

/// Begins each of them, by the order of bytes of the machine that wrote it.
pub(crate) const MAGICS: [&[u8]; 2] = [b"PERFILE2", b"2ELIFREP"];

/// Length of the header of a file that was not written to a pipe.
const HEADER_LEN: u64 = 104;
/// Most bytes of a part that is not events, and kinds of events.
const PART_MAX: u64 = 64 << 20;
const ATTRS_MAX: u64 = 16_384;
/// Most bytes that one compressed record unpacks to.
const UNPACKED_MAX: usize = 64 << 20;
/// Most bytes that are read from the file at once.
const PIECE: u64 = 1 << 16;

// Numbers of additional parts.
const TRACING_DATA: usize = 1;
const NRCPUS: usize = 7;
const CMDLINE: usize = 11;
const FEATURES: usize = 256;

// Kinds of records.
const LOST: u32 = 2;
const SAMPLE: u32 = 9;
const LOST_SAMPLES: u32 = 13;
const FINISHED_ROUND: u32 = 68;
const COMPRESSED: u32 = 81;
const COMPRESSED2: u32 = 83;

// Bits that say what a sample has.
const IP: u64 = 1 << 0;
const TID: u64 = 1 << 1;
const TIME: u64 = 1 << 2;
const ADDR: u64 = 1 << 3;
const READ: u64 = 1 << 4;
const CALLCHAIN: u64 = 1 << 5;
const ID: u64 = 1 << 6;
const CPU: u64 = 1 << 7;
const PERIOD: u64 = 1 << 8;
const STREAM_ID: u64 = 1 << 9;
const RAW: u64 = 1 << 10;
const IDENTIFIER: u64 = 1 << 16;

/// One kind of events that was recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Attr {
    is_tracepoint: bool,
    holds: u64,
    read_format: u64,
    /// Whether records that are no samples have time and CPU as well.
    has_trailers: bool,
}

/// A file of perf.
pub(crate) struct PerfData<R> {
    source: Source<R>,
    is_big: bool,
    formats: Formats,
    attrs: Vec<Attr>,
    by_id: HashMap<u64, usize>,
    nr_cpus: u32,
    command: String,
    /// Where the events are.
    begin: u64,
    end: u64,
    reading: Reading,
}

/// How far it is read.
#[derive(Default)]
struct Reading {
    at: u64,
    /// Bytes of the file whose records are not taken yet.
    plain: Vec<u8>,
    unpacked: Vec<u8>,
    unpacker: Option<Unpacker>,
    /// Records come in rounds: one is not earlier than what came two rounds before.
    waiting: BinaryHeap<Reverse<(u64, u64, Waiting)>>,
    /// When the last came of each CPU, whose own are in order.
    last_ns: HashMap<u32, u64>,
    count: u64,
    /// The latest so far, that at the end of the last round, and that at the end of the one before.
    latest_ns: u64,
    round_ns: u64,
    ripe_ns: u64,
    /// Nothing more comes from the file.
    is_over: bool,
}

/// A moment in a heap, where only its time and place count.
struct Waiting(Moment);

impl PartialEq for Waiting {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

/// Where a part of the file is.
type Part = (u64, u64);

impl<R: Read + Seek> PerfData<R> {
    pub(crate) fn open(mut source: Source<R>) -> Result<Self, ForeignError> {
        let header = source.read(0, HEADER_LEN.min(source.len()))?;
        let is_big = header.starts_with(MAGICS[1]);
        let cut = || ForeignError::Damaged { at: header.len() as u64 };
        let mut bytes = Bytes::new(&header, is_big);
        let sizes = bytes.take(8).and_then(|_| bytes.u64().zip(bytes.u64()));
        let Some((header_len, attr_len)) = sizes else { return Err(cut()) };
        if header_len != HEADER_LEN {
            let why = "it was written to a pipe; record it to a file, with `perf record -o FILE`";
            return Err(ForeignError::Unusable(why.into()));
        }
        let mut part = || bytes.u64().zip(bytes.u64()).ok_or_else(cut);
        let (attrs, events, _types) = (part()?, part()?, part()?);
        let words: Option<Vec<u64>> = (0..FEATURES / 64).map(|_| bytes.u64()).collect();
        let words = words.ok_or_else(cut)?;
        let has = |feature: &usize| words[feature / 64] >> (feature % 64) & 1 == 1;
        let mut features = HashMap::new();
        let mut at = events.0.saturating_add(events.1);
        for feature in (0..FEATURES).filter(has) {
            let entry = source.read(at, 16)?;
            features.insert(feature, (number(&entry[..8], is_big), number(&entry[8..], is_big)));
            at += 16;
        }
        let formats = read_formats(&mut source, features.get(&TRACING_DATA))?;
        let mut file = Self {
            formats,
            is_big,
            attrs: Vec::new(),
            by_id: HashMap::new(),
            nr_cpus: 0,
            command: String::new(),
            begin: events.0,
            end: events.0.saturating_add(events.1).min(source.len()),
            reading: Reading::default(),
            source,
        };
        if events.1 == 0 {
            let why = "it has no events, as perf was not ended properly; record it again, and end perf with Ctrl-C";
            return Err(ForeignError::Unusable(why.into()));
        }
        file.read_attrs(attrs, attr_len)?;
        file.read_features(&features)?;
        file.rewind()?;
        Ok(file)
    }

    fn read_attrs(&mut self, (at, len): Part, attr_len: u64) -> Result<(), ForeignError> {
        let damaged = || ForeignError::Damaged { at };
        let count = len.checked_div(attr_len).filter(|count| *count <= ATTRS_MAX && attr_len >= 64);
        for index in 0..count.ok_or_else(damaged)? {
            let entry = self.source.read(at + index * attr_len, attr_len)?;
            let field = |at: usize, len: usize| number(&entry[at..at + len], self.is_big);
            // Where bits are, when they are told one by one, depends on the order of bytes.
            let flags = field(40, 8);
            let has_trailers = if self.is_big { flags.reverse_bits() } else { flags } >> 18 & 1 == 1;
            let (kind, holds, read_format) = (field(0, 4), field(24, 8), field(32, 8));
            let attr = Attr { is_tracepoint: kind == 2, holds, read_format, has_trailers };
            let ids = &entry[entry.len() - 16..];
            let (ids_at, ids_len) = (number(&ids[..8], self.is_big), number(&ids[8..], self.is_big));
            if ids_len > PART_MAX {
                return Err(damaged());
            }
            for id in self.source.read(ids_at, ids_len)?.chunks_exact(8) {
                self.by_id.insert(number(id, self.is_big), self.attrs.len());
            }
            self.attrs.push(attr);
        }
        if self.attrs.iter().any(|attr| attr.is_tracepoint && attr.holds & (TIME | CPU | RAW) != TIME | CPU | RAW) {
            let why = "its events lack their time, their CPU or what they say; record it with `perf sched record`";
            return Err(ForeignError::Unusable(why.into()));
        }
        let is_alike = self.attrs.windows(2).all(|pair| pair[0] == pair[1]);
        if !is_alike && self.attrs.iter().any(|attr| attr.holds & IDENTIFIER == 0) {
            let why = "it does not tell its kinds of events apart; record only sched events";
            return Err(ForeignError::Unusable(why.into()));
        }
        if self.attrs.is_empty() { Err(damaged()) } else { Ok(()) }
    }

    fn read_features(&mut self, features: &HashMap<usize, Part>) -> Result<(), ForeignError> {
        let mut read = |feature| match features.get(&feature) {
            Some((at, len)) => self.source.read(*at, (*len).min(PART_MAX)),
            None => Ok(Vec::new()),
        };
        let (cpus, command) = (read(NRCPUS)?, read(CMDLINE)?);
        // How many there can be comes first.
        self.nr_cpus = Bytes::new(&cpus, self.is_big).u32().unwrap_or(1);
        let mut bytes = Bytes::new(&command, self.is_big);
        let mut words = Vec::new();
        for _ in 0..bytes.u32().unwrap_or(0) {
            let Some(word) = bytes.u32().and_then(|len| bytes.take(len.into())) else { break };
            words.push(String::from_utf8_lossy(word).trim_end_matches('\0').to_owned());
        }
        self.command = words.join(" ");
        Ok(())
    }

    pub(crate) fn about(&self) -> About {
        About {
            nr_cpus: self.nr_cpus,
            workload: self.command.clone(),
            has_wakeup: self.formats.has_wakeup,
            has_waking: self.formats.has_waking,
        }
    }

    pub(crate) fn rewind(&mut self) -> Result<(), ForeignError> {
        self.reading = Reading { at: self.begin, ..Reading::default() };
        Ok(())
    }

    pub(crate) fn next(&mut self) -> Result<Option<Moment>, ForeignError> {
        loop {
            let ripe = |Reverse((time_ns, ..)): &Reverse<(u64, u64, Waiting)>| *time_ns <= self.reading.ripe_ns;
            if self.reading.is_over || self.reading.waiting.peek().is_some_and(ripe) {
                return Ok(self.reading.waiting.pop().map(|Reverse((.., Waiting(moment)))| moment));
            }
            self.read_on()?;
        }
    }

    /// Takes the records of the next piece of the file.
    fn read_on(&mut self) -> Result<(), ForeignError> {
        let mut bytes = std::mem::take(&mut self.reading.plain);
        let len = PIECE.min(self.end - self.reading.at);
        bytes.extend(self.source.read(self.reading.at, len)?);
        self.reading.at += len;
        let taken = self.take_records(&bytes, false)?;
        bytes.drain(..taken);
        if len == 0 {
            self.reading.is_over = true;
            if !bytes.is_empty() {
                // Earlier records have been taken in, but a reader hears of this first; and it is right: rounds are open.
                return Err(ForeignError::Damaged { at: self.end - bytes.len() as u64 });
            }
        }
        self.reading.plain = bytes;
        Ok(())
    }

    /// Takes those that are whole; how many bytes that were.
    fn take_records(&mut self, bytes: &[u8], is_unpacked: bool) -> Result<usize, ForeignError> {
        let mut rest = Bytes::new(bytes, self.is_big);
        loop {
            let taken = bytes.len() - rest.rest.len();
            let mut record = rest;
            let header = (|| Some((record.u32()?, record.u16()?, record.u16()?)))();
            let Some((kind, _misc, len)) = header else { return Ok(taken) };
            let damaged = ForeignError::Damaged { at: self.reading.at };
            let Some(body_len) = u64::from(len).checked_sub(8) else { return Err(damaged) };
            let Some(body) = record.take(body_len) else { return Ok(taken) };
            rest = record;
            match kind {
                // A compressed record in itself would be a trap.
                COMPRESSED | COMPRESSED2 if is_unpacked => return Err(damaged),
                COMPRESSED => self.take_compressed(body)?,
                COMPRESSED2 => {
                    let mut body = Bytes::new(body, self.is_big);
                    let packed = body.u64().and_then(|len| body.take(len));
                    self.take_compressed(packed.ok_or(damaged)?)?;
                }
                kind => self.take_record(kind, body).ok_or(damaged)?,
            }
        }
    }

    fn take_compressed(&mut self, packed: &[u8]) -> Result<(), ForeignError> {
        let mut unpacked = std::mem::take(&mut self.reading.unpacked);
        let unpacker = match &mut self.reading.unpacker {
            Some(unpacker) => unpacker,
            none => none.insert(Unpacker::new()?),
        };
        let done = unpacker.unpack(packed, UNPACKED_MAX, &mut unpacked);
        if !done.is_ok_and(|was_believable| was_believable) {
            return Err(ForeignError::Damaged { at: self.reading.at });
        }
        let taken = self.take_records(&unpacked, true)?;
        unpacked.drain(..taken);
        self.reading.unpacked = unpacked;
        Ok(())
    }

    /// No answer if it is too short for what it is.
    fn take_record(&mut self, kind: u32, body: &[u8]) -> Option<()> {
        let is_big = self.is_big;
        match kind {
            SAMPLE => {
                let id = Bytes::new(body, is_big).u64();
                let index = id.and_then(|id| self.by_id.get(&id)).copied().unwrap_or(0);
                // If they differ, all begin with the number of their kind.
                let attr = *self.attrs.get(index)?;
                let Some((time_ns, cpu, data)) = sample(Bytes::new(body, is_big), attr)? else { return Some(()) };
                if let Some(event) = self.formats.decode(data)? {
                    self.put(Moment { time_ns, cpu, event });
                }
            }
            LOST | LOST_SAMPLES => {
                let mut bytes = Bytes::new(body, is_big);
                let count = match kind {
                    LOST => bytes.u64().and_then(|_| bytes.u64())?,
                    _ => bytes.u64()?,
                };
                let cpu = self.trailer_cpu(bytes.rest).unwrap_or(0);
                // They were lost after what came before. If that is nothing, they are not missed.
                if let Some(time_ns) = self.reading.last_ns.get(&cpu).copied().filter(|_| count > 0) {
                    self.put(Moment { time_ns, cpu, event: Event::Lost { count } });
                }
            }
            FINISHED_ROUND => {
                self.reading.ripe_ns = std::mem::replace(&mut self.reading.round_ns, self.reading.latest_ns)
            }
            _ => {}
        }
        Some(())
    }

    fn put(&mut self, moment: Moment) {
        let reading = &mut self.reading;
        reading.last_ns.insert(moment.cpu, moment.time_ns);
        reading.latest_ns = reading.latest_ns.max(moment.time_ns);
        reading.count += 1;
        reading.waiting.push(Reverse((moment.time_ns, reading.count, Waiting(moment))));
    }

    /// The CPU of a record that is no sample, if it says so: in what stands at the end of all.
    fn trailer_cpu(&self, body: &[u8]) -> Option<u32> {
        let attr = self.attrs.first().filter(|attr| attr.has_trailers)?;
        let fields = [TID, TIME, ID, STREAM_ID, CPU, IDENTIFIER].into_iter().filter(|field| attr.holds & field != 0);
        let before = fields.clone().take_while(|field| *field != CPU).count();
        let trailer = body.get(body.len().checked_sub(fields.clone().count() * 8)?..)?;
        let mut bytes = Bytes::new(trailer.get(before * 8..)?, self.is_big);
        bytes.u32().filter(|_| attr.holds & CPU != 0)
    }
}

/// Reads the descriptions of events.
fn read_formats<R: Read + Seek>(source: &mut Source<R>, part: Option<&Part>) -> Result<Formats, ForeignError> {
    let Some((at, len)) = part.copied() else {
        let why = "it has no tracepoints; record those of the scheduler, with `perf sched record`";
        return Err(ForeignError::Unusable(why.into()));
    };
    let tracing = source.read(at, len.min(PART_MAX))?;
    let mut bytes = Bytes::new(&tracing, false);
    let read = (|| {
        // It begins as a file of trace-cmd does, with a version of its own.
        let magic = bytes.take(trace_dat::MAGIC.len() as u64)?;
        let _version = bytes.text()?;
        bytes.is_big = bytes.number(1)? == 1;
        let _sizes = bytes.take(5)?;
        page_format(&mut bytes)?;
        skip_own_formats(&mut bytes)?;
        let formats = formats(&mut bytes)?;
        (magic == trace_dat::MAGIC).then_some(formats)
    })();
    read.ok_or(ForeignError::Damaged { at })?
}

/// Time, CPU and what the event says; nothing if it is of no tracepoint. No answer if it is too short.
fn sample(mut bytes: Bytes<'_>, attr: Attr) -> Option<Option<(u64, u32, &[u8])>> {
    let has = |field| attr.holds & field != 0;
    if !attr.is_tracepoint {
        return Some(None);
    }
    let (mut time_ns, mut cpu) = (0, 0);
    for field in [IDENTIFIER, IP, TID, TIME, ADDR, ID, STREAM_ID, CPU, PERIOD].into_iter().filter(|field| has(*field)) {
        match field {
            TIME => time_ns = bytes.u64()?,
            CPU => {
                cpu = bytes.u32()?;
                bytes.u32()?;
            }
            _ => drop(bytes.u64()?),
        }
    }
    if has(READ) {
        skip_counters(&mut bytes, attr.read_format)?;
    }
    if has(CALLCHAIN) {
        let len = bytes.u64()?;
        bytes.take(len.checked_mul(8)?)?;
    }
    let len = bytes.u32()?;
    Some(Some((time_ns, cpu, bytes.take(len.into())?)))
}

/// Skips the counters of a sample.
fn skip_counters(bytes: &mut Bytes<'_>, format: u64) -> Option<()> {
    let (times, id, group, lost) = ((format & 3).count_ones(), format >> 2 & 1, format >> 3 & 1 == 1, format >> 4 & 1);
    let count = if group { bytes.u64()? } else { 1 };
    let words = count.checked_mul(1 + id + lost)?.checked_add(times.into())?;
    bytes.take(words.checked_mul(8)?).map(drop)
}
