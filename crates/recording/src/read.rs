//! Reads records back as calls. They come from a file or from memory that others write, and are not trusted.

use alloc::vec::Vec;

use ekiden_abi::{Call, Kicks, Message, NO_CPU, RawToken, Reply, TaskId};

use crate::record::{CALL, END, MARK, Mark, NOTES, RECORD_WORDS, Record, field, unpack};

/// Most notes that a call is believed to have.
const NOTES_MAX: usize = 1 << 20;

/// One call, as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCall {
    /// When it began, on the host's clock.
    pub time_ns: u64,
    /// What was delivered.
    pub message: Message,
    /// What it learnt besides, in order; the payload of hints first: its length in bytes, then its bytes.
    pub notes: Vec<u64>,
    /// What the policy answered; absent if the call did not end.
    pub reply: Option<Reply>,
}

/// Something that is no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedMark {
    /// When, on the host's clock.
    pub time_ns: u64,
    /// What.
    pub mark: Mark,
    /// The instance of the policy that it is about, counted from 1.
    pub instance: u64,
}

/// What records stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A call.
    Call(RecordedCall),
    /// A mark.
    Mark(RecordedMark),
    /// So many records make no sense here: the rest of a call whose beginning is not there, or damage.
    Stray(u64),
}

/// Turns the records of one CPU, one after the other, into entries.
#[derive(Debug, Default)]
pub struct Calls {
    open: Option<RecordedCall>,
    /// An entry that was complete while another one ended.
    waiting: Option<Entry>,
}

impl Calls {
    /// Takes the next record. Some entries are complete with it: none, one, or two.
    pub fn push(&mut self, record: &Record) -> impl Iterator<Item = Entry> + use<> {
        self.take(record).into_iter().chain(self.waiting.take())
    }

    /// The first entry that is complete with the next record. If there is one, another one may [follow](Self::following).
    #[inline]
    pub(crate) fn take(&mut self, record: &Record) -> Option<Entry> {
        let first = record.0[0];
        let entry = match first & 0xff {
            CALL => {
                let words = record.0[1..].first_chunk().expect("a record has eight words");
                let message = unpack(words);
                let before = self.open.take();
                if Call::from_number(message.call).is_some() {
                    self.open = Some(RecordedCall { time_ns: first >> 8, message, notes: Vec::new(), reply: None });
                } else {
                    self.waiting = Some(Entry::Stray(1));
                }
                before.map(Entry::Call)
            }
            NOTES => (!self.note(record, first)).then_some(Entry::Stray(1)),
            END => self.end(record, first),
            MARK => {
                let before = self.open.take();
                self.waiting = Some(match Mark::from_number(record.0[1]) {
                    Some(mark) => Entry::Mark(RecordedMark { time_ns: first >> 8, mark, instance: record.0[2] }),
                    None => Entry::Stray(1),
                });
                before.map(Entry::Call)
            }
            _ => Some(Entry::Stray(1)),
        };
        entry.or_else(|| self.waiting.take())
    }

    /// What was complete with the last record, besides what it [gave](Self::take).
    #[inline]
    pub(crate) fn following(&mut self) -> Option<Entry> {
        self.waiting.take()
    }

    /// When the call began that is under way, if one is.
    pub fn open_since_ns(&self) -> Option<u64> {
        self.open.as_ref().map(|call| call.time_ns)
    }

    /// No record follows: the call that is under way, if one is, has no end.
    pub fn finish(&mut self) -> Option<Entry> {
        self.open.take().map(Entry::Call)
    }

    /// Whether the record belongs to a call, and has as many notes as it says.
    fn note(&mut self, record: &Record, first: u64) -> bool {
        let notes = (first >> 8 & 0xff) as usize;
        let words = record.0.get(1..notes + 1);
        let (Some(call), Some(words)) = (self.open.as_mut(), words) else { return false };
        if words.is_empty() {
            return true;
        }
        let has_room = call.notes.len() < NOTES_MAX;
        if has_room {
            if call.notes.capacity() == 0 {
                call.notes.reserve_exact(RECORD_WORDS);
            }
            call.notes.extend_from_slice(words);
        }
        has_room
    }

    fn end(&mut self, record: &Record, first: u64) -> Option<Entry> {
        if !self.note(record, first) {
            return Some(Entry::Stray(1));
        }
        let mut call = self.open.take()?;
        let (notes, fields) = ((first >> 8 & 0xff) as usize, first >> 16);
        // A damaged record may claim more fields than it has room for; they read as zeros.
        let mut words = record.0[notes + 1..].iter().copied();
        let mut word = |wanted: u64| if fields & wanted != 0 { words.next().unwrap_or_default() } else { 0 };
        let (task, place) = (TaskId::from_bits(word(field::TOKEN)), word(field::TOKEN));
        call.reply = Some(Reply {
            token: RawToken { task, cpu: place as u32, serial: (place >> 32) as u32 },
            dropped: RawToken::NONE,
            task: TaskId::from_bits(word(field::TASK)),
            slice_ns: word(field::SLICE),
            timer_ns: word(field::TIMER),
            kicks: Kicks::from_bits(word(field::KICKS)),
            cpu: if fields & field::CPU != 0 { word(field::CPU) as u32 } else { NO_CPU },
            reserved: 0,
        });
        Some(Entry::Call(call))
    }
}
