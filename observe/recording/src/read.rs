//! Reads records back as calls. They come from a file or from memory that others write, and are not trusted.

use alloc::vec::Vec;

use ekiden_abi::{Call, Kicks, Message, NO_CPU, NoteName, Noted, Reply, TaskId};

use crate::record::{CALL, END, MARK, MORE, Mark, NOTED, NOTES, NOTES_MAX, RECORD_WORDS, Record, note_at};

/// Most notes that a call is believed to have.
const BELIEVED: usize = 1 << 20;

/// One call, as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCall {
    /// When it began, on the host's clock.
    pub time_ns: u64,
    /// The PID of the thread that ran on this CPU then, not of the task that the call is about; 0 if the CPU was idle.
    pub thread: u32,
    /// The message that was delivered.
    pub message: Message,
    /// What it learnt besides, in order; the payload of hints first: its length in bytes, then its bytes.
    pub notes: Vec<u64>,
    /// What the policy noted in it for people, in order.
    pub noted: Vec<Noted>,
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
    /// Records that make no sense here: the rest of a call whose beginning is not there, or damage.
    Stray(u64),
}

/// Turns the records of one CPU, one after the other, into entries.
#[derive(Debug, Default)]
pub struct Calls {
    open: Option<RecordedCall>,
    /// Rare parts of its reply.
    more: Option<Record>,
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
                let [_, words @ ..] = record.0;
                let mut message: Message = zerocopy::transmute!(words);
                let thread = message.call >> 8;
                message.call &= 0xff;
                let before = self.cut_short();
                if Call::from_number(message.call).is_some() {
                    let (time_ns, notes, noted) = (first >> 8, Vec::new(), Vec::new());
                    self.open = Some(RecordedCall { time_ns, thread, message, notes, noted, reply: None });
                } else {
                    self.waiting = Some(Entry::Stray(1));
                }
                before.map(Entry::Call)
            }
            NOTES => (!self.note(record)).then_some(Entry::Stray(1)),
            MORE if self.open.is_some() => {
                self.more = Some(*record);
                None
            }
            NOTED => (!self.noted(record)).then_some(Entry::Stray(1)),
            END => self.end(record),
            MARK => {
                let before = self.cut_short();
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

    /// The entry that was complete with the last record, besides what it [gave](Self::take).
    #[cfg(feature = "file")]
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
        self.cut_short().map(Entry::Call)
    }

    /// The call that is under way has no end.
    fn cut_short(&mut self) -> Option<RecordedCall> {
        self.more = None;
        self.open.take()
    }

    /// Whether the record belongs to a call, and has as many notes as it says.
    fn note(&mut self, record: &Record) -> bool {
        let notes = record.0[0] >> 8 & 0xff;
        let Some(call) = self.open.as_mut() else { return false };
        let is_believed = notes <= NOTES_MAX && call.notes.len() < BELIEVED;
        if is_believed && notes > 0 {
            if call.notes.capacity() == 0 {
                call.notes.reserve_exact(RECORD_WORDS);
            }
            call.notes.extend((0..notes).map(|number| record.0[note_at(number)]));
        }
        is_believed
    }

    /// Whether the record belongs to a call that has noted no more than is believed.
    fn noted(&mut self, record: &Record) -> bool {
        let call = self.open.as_mut().filter(|call| call.noted.len() < BELIEVED);
        let Record([_, value, a, b, c, d, ..]) = *record;
        call.map(|call| call.noted.push(Noted { name: NoteName([a, b, c, d]), value })).is_some()
    }

    fn end(&mut self, record: &Record) -> Option<Entry> {
        if !self.note(record) {
            return Some(Entry::Stray(1));
        }
        let mut call = self.open.take()?;
        let mut reply = Reply { cpu: NO_CPU, slice_ns: record.0[3], ..Reply::default() };
        reply.token = zerocopy::transmute!([record.0[1], record.0[2]]);
        if let Some(Record([_, task, timer_ns, kicks, cpu, ..])) = self.more.take() {
            reply.task = TaskId::from_bits(task);
            (reply.timer_ns, reply.kicks, reply.cpu) = (timer_ns, Kicks::from_bits(kicks), cpu as u32);
        }
        call.reply = Some(reply);
        Some(Entry::Call(call))
    }
}
