//! Files of trace-cmd: `trace.dat`, versions 6 and 7.
//!
//! Their manual pages are trace-cmd.dat.v6(5) and trace-cmd.dat.v7(5). Both begin alike and have the same pages. In between,
//! version 6 has one part after the other, and version 7 a list of options that say where its sections are.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, btree_map::BTreeMap},
    io::{Read, Seek},
};

use crate::{
    About, CPUS_MAX, ForeignError,
    bytes::{Bytes, Source},
    event::Moment,
    format::{Formats, PageFormat},
    heading::{formats, page_format, skip_own_formats},
    pages::{Layout, PAGES_BYTES_MAX, Pages},
    unpack::{Packing, unpack},
};

/// Begins each of them.
pub(crate) const MAGIC: &[u8] = b"\x17\x08\x44tracing";

/// Version, compression and the place of the options are within the first bytes.
const PREAMBLE_MAX: u64 = 4_096;

/// Most bytes before the events: descriptions, and names of the kernel's functions. Also of a section that is unpacked.
const HEADING_MAX: u64 = 64 << 20;

/// Most sections of options.
const OPTIONS_MAX: u32 = 1_000;

// Numbers of options; those of sections are the same.
const DONE: u16 = 0;
const BUFFER: u16 = 3;
const TRACECLOCK: u16 = 4;
const UNAME: u16 = 5;
const CPUCOUNT: u16 = 8;
const TSC2NSEC: u16 = 14;
const HEADER_INFO: u16 = 16;
const EVENT_FORMATS: u16 = 18;

/// Marks a section that is compressed.
const COMPRESSED: u16 = 1;

/// A file of trace-cmd.
pub(crate) struct TraceDat<R> {
    source: Source<R>,
    formats: Formats,
    layout: Layout,
    about: String,
    nr_cpus: u32,
    pages: Vec<Pages>,
    /// The next event of each CPU, by time.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    moments: Vec<Option<Moment>>,
    has_begun: bool,
}

/// What the options of a file say.
#[derive(Default)]
struct Options {
    /// Whether the last option says where more of them are, as in version 7.
    has_next: bool,
    nr_cpus: u32,
    uname: String,
    clock: String,
    scale: Option<(u32, u32, u64)>,
    /// Where the sections are.
    sections: BTreeMap<u16, u64>,
    buffers: Vec<Vec<u8>>,
}

/// What version 7 says before all else.
struct Version7 {
    is_big: bool,
    packing: Result<Option<Packing>, String>,
}

impl<R: Read + Seek> TraceDat<R> {
    pub(crate) fn open(mut source: Source<R>) -> Result<Self, ForeignError> {
        let head = source.read(0, source.len().min(PREAMBLE_MAX))?;
        let mut bytes = Bytes::new(&head, false);
        let cut = ForeignError::Damaged { at: source.len() };
        let Some((version, page_len)) = preamble(&mut bytes) else { return Err(cut) };
        let is_big = bytes.is_big;
        let (formats, format, options, pages) = match version.as_str() {
            "6" => {
                let head = source.read(0, source.len().min(HEADING_MAX))?;
                let (formats, format, options, pages) = version_6(&head, is_big, page_len).ok_or(cut)?;
                (formats?, format, options, pages)
            }
            "7" => version_7(&mut source, bytes)?,
            _ => return Err(ForeignError::Version { found: version }),
        };
        let scale = match options.clock.as_str() {
            "" | "local" | "global" | "perf" | "mono" | "mono_raw" | "boot" | "tai" => None,
            "x86-tsc" if options.scale.is_some() => options.scale,
            clock => {
                let why =
                    format!("its clock {clock} does not count nanoseconds; record it with `trace-cmd record -C mono`");
                return Err(ForeignError::Unusable(why));
            }
        };
        let sound = |page_len: u64| (64..=PAGES_BYTES_MAX).contains(&page_len);
        if pages.iter().any(|pages| !sound(pages.page_len())) {
            return Err(ForeignError::Unusable("it says that its pages have no size that pages have".into()));
        }
        let highest = pages.iter().map(|pages| pages.cpu.saturating_add(1)).max().unwrap_or(0);
        let layout = Layout { format, is_big, scale };
        Ok(Self {
            source,
            formats,
            layout,
            about: options.uname,
            nr_cpus: options.nr_cpus.max(highest),
            moments: vec![None; pages.len()],
            pages,
            next: BinaryHeap::new(),
            has_begun: false,
        })
    }

    pub(crate) fn about(&self) -> About {
        let on = if self.about.is_empty() { String::new() } else { format!(" on {}", self.about) };
        About {
            nr_cpus: self.nr_cpus,
            workload: format!("what trace-cmd recorded{on}"),
            has_wakeup: self.formats.has_wakeup,
            has_waking: self.formats.has_waking,
        }
    }

    pub(crate) fn rewind(&mut self) -> Result<(), ForeignError> {
        self.pages.iter_mut().for_each(Pages::rewind);
        self.next.clear();
        self.has_begun = false;
        Ok(())
    }

    pub(crate) fn next(&mut self) -> Result<Option<Moment>, ForeignError> {
        if !self.has_begun {
            self.has_begun = true;
            (0..self.pages.len()).try_for_each(|index| self.advance(index))?;
        }
        let Some(Reverse((_, index))) = self.next.pop() else { return Ok(None) };
        let moment = self.moments[index].take();
        self.advance(index)?;
        Ok(moment)
    }

    fn advance(&mut self, index: usize) -> Result<(), ForeignError> {
        self.moments[index] = self.pages[index].next(&mut self.source, &self.layout, &self.formats)?;
        self.next.extend(self.moments[index].map(|moment| Reverse((moment.time_ns, index))));
        Ok(())
    }
}

/// Version and size of pages; from here on, numbers are as the file has them.
fn preamble(bytes: &mut Bytes<'_>) -> Option<(String, u32)> {
    bytes.take(MAGIC.len() as u64)?;
    let version = bytes.text()?;
    bytes.is_big = bytes.number(1)? == 1;
    let _size_of_long = bytes.number(1)?;
    Some((version, bytes.u32()?))
}

type Head = (Result<Formats, ForeignError>, PageFormat, Options, Vec<Pages>);

/// The rest of a file of version 6 up to the pages.
fn version_6(head: &[u8], is_big: bool, page_len: u32) -> Option<Head> {
    let mut bytes = Bytes::new(head, is_big);
    preamble(&mut bytes)?;
    bytes.is_big = is_big;
    let format = page_format(&mut bytes)?;
    skip_own_formats(&mut bytes)?;
    let formats = formats(&mut bytes)?;
    // The kernel's functions, texts of printk, names of tasks.
    for size_len in [4, 4, 8] {
        let len = bytes.number(size_len)?;
        bytes.take(len)?;
    }
    let mut options = Options { nr_cpus: bytes.u32()?, ..Options::default() };
    let nr_cpus = options.nr_cpus;
    let mut kind = bytes.take(10)?;
    if kind == b"options  \0" {
        options.read(&mut bytes)?;
        kind = bytes.take(10)?;
    }
    let mut pages = Vec::new();
    if kind == b"flyrecord\0" {
        read_table(&mut bytes, nr_cpus, page_len, &mut pages)?;
    }
    // Buffers of other instances of the tracer have tables of their own.
    for buffer in &options.buffers {
        let mut table = Bytes::new(head, is_big);
        table.take(Bytes::new(buffer, is_big).u64()?)?;
        if table.take(10)? == b"flyrecord\0" {
            read_table(&mut table, nr_cpus, page_len, &mut pages)?;
        }
    }
    Some((formats, format, options, pages))
}

/// Where the pages of each CPU are.
fn read_table(bytes: &mut Bytes<'_>, nr_cpus: u32, page_len: u32, pages: &mut Vec<Pages>) -> Option<()> {
    for cpu in 0..nr_cpus.min(CPUS_MAX) {
        let (begin, len) = (bytes.u64()?, bytes.u64()?);
        pages.push(Pages::new(cpu, page_len.into(), begin, len, None));
    }
    Some(())
}

type Parts = (Formats, PageFormat, Options, Vec<Pages>);

/// Follows the options of a file of version 7.
fn version_7<R: Read + Seek>(source: &mut Source<R>, mut bytes: Bytes<'_>) -> Result<Parts, ForeignError> {
    let file_len = source.len();
    let cut = || ForeignError::Damaged { at: file_len };
    let packing = bytes.text().ok_or_else(cut)?;
    bytes.text().ok_or_else(cut)?;
    let mut next = bytes.u64().ok_or_else(cut)?;
    let packing = match packing.as_str() {
        "none" => Ok(None),
        "zstd" => Ok(Some(Packing::Zstd)),
        "zlib" => Ok(Some(Packing::Zlib)),
        _ => Err(packing),
    };
    let file = Version7 { is_big: bytes.is_big, packing };
    let mut options = Options { has_next: true, ..Options::default() };
    let mut sections = 0;
    while next != 0 && sections < OPTIONS_MAX {
        let section = file.section(source, next)?;
        let mut bytes = Bytes::new(&section, file.is_big);
        let damaged = ForeignError::Damaged { at: next };
        next = options.read(&mut bytes).ok_or(damaged)?;
        sections += 1;
    }
    let at = |section| {
        let why = "it lacks the descriptions of its events; record it again";
        options.sections.get(&section).copied().ok_or_else(|| ForeignError::Unusable(why.into()))
    };
    let (header_at, formats_at) = (at(HEADER_INFO)?, at(EVENT_FORMATS)?);
    let section = file.section(source, header_at)?;
    let format = page_format(&mut Bytes::new(&section, file.is_big));
    let format = format.ok_or(ForeignError::Damaged { at: header_at })?;
    let section = file.section(source, formats_at)?;
    let formats = formats(&mut Bytes::new(&section, file.is_big));
    let formats = formats.ok_or(ForeignError::Damaged { at: formats_at })??;
    let mut pages = Vec::new();
    for buffer in &options.buffers {
        file.buffer(source, buffer, &mut options.clock, &mut pages)?;
    }
    Ok((formats, format, options, pages))
}

impl Version7 {
    fn packing(&self) -> Result<Packing, ForeignError> {
        let why = |packing: &str| {
            format!("parts of it are compressed with {packing}, and zstd and zlib can be read; use `trace-cmd convert`")
        };
        match &self.packing {
            Ok(Some(packing)) => Ok(*packing),
            Ok(None) => Err(ForeignError::Unusable(why("nothing that it names"))),
            Err(packing) => Err(ForeignError::Unusable(why(packing))),
        }
    }

    /// Whether a section is compressed, and its size in the file.
    fn section_header<R: Read + Seek>(&self, source: &mut Source<R>, at: u64) -> Result<(bool, u64), ForeignError> {
        let header = source.read(at, 16)?;
        let mut bytes = Bytes::new(&header, self.is_big);
        let header = (|| {
            let (_id, flags, _name, len) = (bytes.u16()?, bytes.u16()?, bytes.u32()?, bytes.u64()?);
            Some((flags & COMPRESSED != 0, len))
        })();
        header.ok_or(ForeignError::Damaged { at })
    }

    /// The bytes of a section, unpacked.
    fn section<R: Read + Seek>(&self, source: &mut Source<R>, at: u64) -> Result<Vec<u8>, ForeignError> {
        let (is_compressed, len) = self.section_header(source, at)?;
        if !is_compressed {
            return source.read(at + 16, len);
        }
        let sizes = source.read(at + 16, 8)?;
        let mut bytes = Bytes::new(&sizes, self.is_big);
        let damaged = || ForeignError::Damaged { at };
        let (packed, len) = bytes.u32().zip(bytes.u32()).ok_or_else(damaged)?;
        let packed = source.read(at + 24, packed.into())?;
        unpack(self.packing()?, &packed, u64::from(len).min(HEADING_MAX)).map_err(|_| damaged())
    }

    /// Where the pages of each CPU are, by what an option says.
    fn buffer<R: Read + Seek>(
        &self,
        source: &mut Source<R>,
        option: &[u8],
        clock: &mut String,
        pages: &mut Vec<Pages>,
    ) -> Result<(), ForeignError> {
        let mut bytes = Bytes::new(option, self.is_big);
        let head = (|| Some((bytes.u64()?, bytes.text()?, bytes.text()?, bytes.u32()?, bytes.u32()?)))();
        let file_len = source.len();
        let damaged = || ForeignError::Damaged { at: file_len };
        let (at, _name, its_clock, page_len, nr_cpus) = head.ok_or_else(damaged)?;
        *clock = its_clock;
        let mut table = Vec::new();
        for _ in 0..nr_cpus.min(CPUS_MAX) {
            let entry = bytes.u32().zip(bytes.u64()).zip(bytes.u64());
            table.push(entry.ok_or_else(damaged)?);
        }
        let (is_compressed, _) = self.section_header(source, at)?;
        let packing = if is_compressed { Some(self.packing()?) } else { None };
        pages
            .extend(table.into_iter().map(|((cpu, begin), len)| Pages::new(cpu, page_len.into(), begin, len, packing)));
        Ok(())
    }
}

impl Options {
    /// Takes options off the front. Says where the next are; zero is nowhere.
    fn read(&mut self, bytes: &mut Bytes<'_>) -> Option<u64> {
        loop {
            let number = bytes.u16()?;
            if number == DONE && !self.has_next {
                return Some(0);
            }
            let len = bytes.u32()?;
            let data = bytes.take(len.into())?;
            let mut data = Bytes::new(data, bytes.is_big);
            match number {
                DONE => return data.u64(),
                BUFFER => self.buffers.push(data.rest.to_vec()),
                TRACECLOCK => {
                    let text = data.text()?;
                    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
                    self.clock = chosen.map(|(clock, _)| clock.to_owned()).unwrap_or_default();
                }
                UNAME => self.uname = data.text()?,
                CPUCOUNT => self.nr_cpus = self.nr_cpus.max(data.u32()?),
                TSC2NSEC => self.scale = Some((data.u32()?, data.u32()?, data.u64()?)),
                HEADER_INFO..=EVENT_FORMATS => drop(self.sections.insert(number, data.u64()?)),
                _ => {}
            }
        }
    }
}
