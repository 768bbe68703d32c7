//! What one CPU recorded for trace-cmd: pages of the kernel's ring buffer.

use std::io::{Read, Seek};

use crate::{
    ForeignError,
    bytes::{Bytes, Source, number},
    event::{Event, Moment},
    format::{Formats, PageFormat},
    unpack::{Packing, unpack},
};

/// Most bytes of a page, or of pages that are compressed together.
pub(crate) const PAGES_BYTES_MAX: u64 = 16 << 20;

// What stands in a page's length besides.
const MISSED: u64 = 1 << 31;
const MISSED_STORED: u64 = 1 << 30;
const COMMIT: u64 = (1 << 27) - 1;

/// How many bits of an event's header say how much later it is.
const DELTA_BITS: u32 = 27;
/// An absolute time lacks the bits from this one on.
const ABSOLUTE_BITS: u32 = 59;

/// How pages are to be read.
pub(crate) struct Layout {
    pub(crate) format: PageFormat,
    pub(crate) is_big: bool,
    /// Multiplier, shift and offset that make nanoseconds of what the clock counts.
    pub(crate) scale: Option<(u32, u32, u64)>,
}

/// What one CPU recorded, in order.
pub(crate) struct Pages {
    pub(crate) cpu: u32,
    page_len: u64,
    /// Where it begins and ends in the file.
    begin: u64,
    end: u64,
    packing: Option<Packing>,
    /// Where the next is.
    at: u64,
    /// Compressed pieces to come, if it is compressed.
    pieces: u32,
    /// Pages that are unpacked.
    unpacked: Vec<u8>,
    unpacked_at: usize,
    page: Vec<u8>,
    /// The part of the page that is left.
    next: usize,
    page_end: usize,
    /// The time as the clock counts it.
    time: u64,
}

impl Pages {
    pub(crate) fn new(cpu: u32, page_len: u64, begin: u64, len: u64, packing: Option<Packing>) -> Self {
        let end = begin.saturating_add(len);
        let mut pages = Self {
            cpu,
            page_len,
            begin,
            end,
            packing,
            at: 0,
            pieces: 0,
            unpacked: Vec::new(),
            unpacked_at: 0,
            page: Vec::new(),
            next: 0,
            page_end: 0,
            time: 0,
        };
        pages.rewind();
        pages
    }

    pub(crate) fn page_len(&self) -> u64 {
        self.page_len
    }

    pub(crate) fn rewind(&mut self) {
        (self.at, self.pieces, self.unpacked_at) = (self.begin, 0, 0);
        (self.next, self.page_end, self.time) = (0, 0, 0);
        self.unpacked.clear();
    }

    /// The next event that is of use.
    pub(crate) fn next<R: Read + Seek>(
        &mut self,
        source: &mut Source<R>,
        layout: &Layout,
        formats: &Formats,
    ) -> Result<Option<Moment>, ForeignError> {
        loop {
            if self.next + 4 > self.page_end {
                let before = self.time;
                let Some(missed) = self.turn(source, layout)? else { return Ok(None) };
                if let Some(count) = missed {
                    // They were lost after what came before.
                    let time = if before == 0 { self.time } else { before };
                    return Ok(Some(self.moment(layout, time, Event::Lost { count })));
                }
            }
            if let Some(event) = self.step(layout, formats).ok_or(ForeignError::Damaged { at: self.at })? {
                return Ok(Some(self.moment(layout, self.time, event)));
            }
        }
    }

    fn moment(&self, layout: &Layout, time: u64, event: Event) -> Moment {
        let time_ns = layout.scale.map_or(time, |(multiplier, shift, offset)| {
            let ns = (u128::from(time) * u128::from(multiplier)).checked_shr(shift).unwrap_or(0);
            (ns as u64).wrapping_add(offset)
        });
        Moment { time_ns, cpu: self.cpu, event }
    }

    /// Gets the next page, if there is one. Tells how many events were missed before it, if any
    /// were; zero is that they were not counted.
    fn turn<R: Read + Seek>(
        &mut self,
        source: &mut Source<R>,
        layout: &Layout,
    ) -> Result<Option<Option<u64>>, ForeignError> {
        if !self.fetch(source, layout.is_big)? {
            return Ok(None);
        }
        let damaged = ForeignError::Damaged { at: self.at };
        self.begin_page(layout).ok_or(damaged).map(Some)
    }

    /// Puts the next page into `page`; whether there is one.
    fn fetch<R: Read + Seek>(&mut self, source: &mut Source<R>, is_big: bool) -> Result<bool, ForeignError> {
        let Some(packing) = self.packing else {
            let len = self.page_len.min(self.end - self.at);
            source.read_into(self.at, len, &mut self.page)?;
            self.at += len;
            return Ok(len > 0);
        };
        while self.unpacked_at == self.unpacked.len() {
            if self.at == self.begin && self.begin < self.end {
                self.pieces = number(&source.read(self.at, 4)?, is_big) as u32;
                self.at += 4;
            }
            let Some(left) = self.pieces.checked_sub(1) else { return Ok(false) };
            self.pieces = left;
            let sizes = source.read(self.at, 8)?;
            let (packed, len) = (number(&sizes[..4], is_big), number(&sizes[4..], is_big));
            let damaged = ForeignError::Damaged { at: self.at };
            if len > PAGES_BYTES_MAX {
                return Err(damaged);
            }
            let packed = source.read(self.at + 8, packed)?;
            self.unpacked = unpack(packing, &packed, len).map_err(|_| damaged)?;
            self.unpacked_at = 0;
            self.at += 8 + packed.len() as u64;
        }
        let end = self.unpacked.len().min(self.unpacked_at + self.page_len as usize);
        self.page.clear();
        self.page.extend_from_slice(&self.unpacked[self.unpacked_at..end]);
        self.unpacked_at = end;
        Ok(true)
    }

    /// Reads what stands at the beginning of a page. No answer if it is too short.
    fn begin_page(&mut self, layout: &Layout) -> Option<Option<u64>> {
        let PageFormat { commit_at, commit_size, data_at } = layout.format;
        let at = |at: usize, len: usize| Some(number(self.page.get(at..at.checked_add(len)?)?, layout.is_big));
        let (time, commit) = (at(0, 8)?, at(commit_at, commit_size)?);
        let end = data_at.checked_add((commit & COMMIT) as usize).filter(|end| *end <= self.page.len())?;
        let missed = match commit {
            _ if commit & MISSED == 0 => None,
            _ if commit & MISSED_STORED == 0 => Some(0),
            // A place for it, behind what is in the page.
            _ => Some(at(end, commit_size).unwrap_or(0)),
        };
        (self.time, self.next, self.page_end) = (time, data_at, end);
        Some(missed)
    }

    /// Steps over an event; nothing if it is of no use. No answer if it goes beyond the page.
    fn step(&mut self, layout: &Layout, formats: &Formats) -> Option<Option<Event>> {
        let mut bytes = Bytes::new(self.page.get(self.next..self.page_end)?, layout.is_big);
        // A page may be empty.
        if bytes.rest.is_empty() {
            return Some(None);
        }
        let header = bytes.u32()?;
        let (kind, delta) = match layout.is_big {
            false => (header & 31, header >> 5),
            true => (header >> DELTA_BITS, header & ((1 << DELTA_BITS) - 1)),
        };
        let delta = u64::from(delta);
        let event = match kind {
            // Nothing more is in this page.
            29 if delta == 0 => {
                self.next = self.page_end;
                return Some(None);
            }
            // An event that was taken back.
            29 => {
                let len = bytes.u32()?;
                bytes.take(u64::from(len).checked_sub(4)?)?;
                self.time = self.time.wrapping_add(delta);
                None
            }
            30 => {
                let more = u64::from(bytes.u32()?) << DELTA_BITS;
                self.time = self.time.wrapping_add(more | delta);
                None
            }
            31 => {
                let time = u64::from(bytes.u32()?) << DELTA_BITS | delta;
                self.time = time | self.time >> ABSOLUTE_BITS << ABSOLUTE_BITS;
                None
            }
            kind => {
                let data = match kind {
                    0 => {
                        let len = u64::from(bytes.u32()?).checked_sub(4)?;
                        bytes.take(len.next_multiple_of(4))?
                    }
                    kind => bytes.take(u64::from(kind) * 4)?,
                };
                self.time = self.time.wrapping_add(delta);
                formats.decode(data)?
            }
        };
        self.next = self.page_end - bytes.rest.len();
        Some(event)
    }
}
