//! The unit of a recording.

use ekiden_abi::{Message, TaskId};

/// Words of a record.
pub const RECORD_WORDS: usize = 8;

/// One record; a cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record(pub [u64; RECORD_WORDS]);

/// The lowest byte of the first word.
pub(crate) const CALL: u64 = 1;
pub(crate) const NOTES: u64 = 2;
pub(crate) const END: u64 = 3;
pub(crate) const MARK: u64 = 4;

/// Bits of the third byte of an end: which fields of the reply follow the notes, in this order.
pub(crate) mod field {
    /// Two words.
    pub(crate) const TOKEN: u64 = 1;
    pub(crate) const TASK: u64 = 2;
    pub(crate) const SLICE: u64 = 4;
    pub(crate) const TIMER: u64 = 8;
    pub(crate) const KICKS: u64 = 16;
    pub(crate) const CPU: u64 = 32;
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
}

impl Mark {
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        [Self::Begin, Self::HandOver, Self::Fault].into_iter().find(|mark| *mark as u64 == number)
    }
}

#[inline]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The words of a message.
#[inline]
pub(crate) fn pack(message: &Message) -> [u64; 7] {
    [
        pair(message.call, message.cpu),
        message.task.to_bits(),
        pair(message.token_cpu, message.token_serial),
        message.runtime_ns,
        pair(message.weight, message.nice as u32),
        pair(message.pid, message.flags),
        message.arg,
    ]
}

/// The inverse of [`pack`].
pub(crate) fn unpack(words: &[u64; 7]) -> Message {
    let (low, high) = (|word: u64| word as u32, |word: u64| (word >> 32) as u32);
    Message {
        call: low(words[0]),
        cpu: high(words[0]),
        task: TaskId::from_bits(words[1]),
        token_cpu: low(words[2]),
        token_serial: high(words[2]),
        runtime_ns: words[3],
        weight: low(words[4]),
        nice: high(words[4]) as i32,
        pid: low(words[5]),
        flags: high(words[5]),
        arg: words[6],
    }
}
