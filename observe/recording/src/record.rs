//! The unit of a recording.

/// Words of a record.
pub const RECORD_WORDS: usize = 8;

/// One record; a cache line. The lowest byte of the first word says which of these it is:
///
/// | first word | others |
/// | --- | --- |
/// | 1, time in the upper seven bytes | a call begins: the [message](ekiden_abi::Message) as it is in memory, but that the number of its call is one byte; the PID of the thread in the three bytes above it |
/// | 2, number of notes in the second byte | more notes: words 4 to 7, then 1 to 3 |
/// | 3, number of notes in the second byte | the call ends: token of the reply in 1 and 2, slice in 3, notes in 4 to 7 |
/// | 4, time in the upper seven bytes | a [`Mark`] in 1, the number of the instance in 2 |
/// | 5 | before the end, if any is not nothing: task, timer, kicks and CPU of the reply in 1 to 4 |
/// | 6 | the policy [noted](ekiden_abi::Noted) something: its value in 1, its name in 2 to 5 |
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record(pub [u64; RECORD_WORDS]);

pub(crate) const CALL: u64 = 1;
pub(crate) const NOTES: u64 = 2;
pub(crate) const END: u64 = 3;
pub(crate) const MARK: u64 = 4;
pub(crate) const MORE: u64 = 5;
pub(crate) const NOTED: u64 = 6;

/// Most notes of a record, and of one that ends a call.
pub(crate) const NOTES_MAX: u64 = 7;
pub(crate) const END_NOTES_MAX: u64 = 4;

/// Where in a record its note of this number stands: the first few where those of an end do, because it is not known yet
/// whether there will be more.
#[inline]
pub(crate) fn note_at(number: u64) -> usize {
    (if number < END_NOTES_MAX { number + 4 } else { number - 3 }) as usize
}

/// What a mark says.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A new instance begins that knows nothing.
    Begin = 1,
    /// A new instance begins with the state of the one before.
    HandOver = 2,
    /// The policy is taken out: the call that is under way on this CPU does not end.
    Fault = 3,
    /// Recording resumes after a pause: of the calls since the record before there are none here.
    GoOn = 4,
}

impl Mark {
    /// The mark with this number, if there is one.
    pub fn from_number(number: u64) -> Option<Self> {
        [Self::Begin, Self::HandOver, Self::Fault, Self::GoOn].into_iter().find(|mark| *mark as u64 == number)
    }
}

impl Record {
    /// When the call or mark that begins here was, for a reader whose clock is another one than the writer's.
    pub fn time_mut(&mut self, convert: impl FnOnce(u64) -> u64) {
        let kind = self.0[0] & 0xff;
        if kind == CALL || kind == MARK {
            self.0[0] = kind | convert(self.0[0] >> 8) << 8;
        }
    }
}
