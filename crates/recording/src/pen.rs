//! Writes calls as records.

use core::sync::atomic::{AtomicU64, Ordering::Release};

use ekiden_abi::{Call, Message, NO_CPU, Reply};

use crate::record::{CALL, END, MARK, Mark, NOTES, RECORD_WORDS, Record, field, pack};

/// Where in a ring its CPU writes next. All zeros at first.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Place {
    /// How many records there have been: those before are whole. Whoever reads the ring looks here, before and after.
    pub head: AtomicU64,
    /// The record that is written next.
    at: u64,
    /// How many notes it has already.
    notes: u32,
    /// Whether a call is under way that is being written.
    is_open: u32,
}

/// Writes the calls of one CPU into its ring, one after the other.
#[derive(Debug)]
pub struct Pen<'a> {
    place: &'a mut Place,
    ring: &'a mut [Record],
}

/// Whether a payload belongs to a call with this number, be it empty.
#[inline]
pub(crate) fn has_payload(call: u32) -> bool {
    call == Call::ParseHint as u32 || call == Call::EnterQueue as u32
}

/// Most notes of a record.
const NOTES_MAX: u32 = RECORD_WORDS as u32 - 1;

impl<'a> Pen<'a> {
    /// A pen that goes on where the last one stopped. The ring has a power of two of records.
    #[inline]
    pub fn new(place: &'a mut Place, ring: &'a mut [Record]) -> Self {
        debug_assert!(ring.len().is_power_of_two());
        Self { place, ring }
    }

    #[inline]
    fn next(&mut self) -> &mut [u64; RECORD_WORDS] {
        let mask = self.ring.len() - 1;
        &mut self.ring[self.place.at as usize & mask].0
    }

    /// Those before `at` are whole.
    #[inline]
    fn publish(&mut self) {
        self.place.head.store(self.place.at, Release);
    }

    /// A call begins, at this time. Any call that is still under way on this CPU has no end.
    #[inline]
    pub fn begin(&mut self, time_ns: u64, message: &Message, payload: &[u8]) {
        let [w1, w2, w3, w4, w5, w6, w7] = pack(message);
        *self.next() = [CALL | time_ns << 8, w1, w2, w3, w4, w5, w6, w7];
        self.place.at += 1;
        self.place.notes = 0;
        self.place.is_open = 1;
        self.publish();
        if !payload.is_empty() || has_payload(message.call) {
            self.note_bytes(payload);
        }
    }

    /// The payload of hints comes first among the notes: its length, then its bytes, the last word filled up with zeros.
    #[cold]
    fn note_bytes(&mut self, bytes: &[u8]) {
        self.note(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.note(u64::from_le_bytes(word));
        }
    }

    /// The call that is under way, if one is, has learnt this.
    #[inline]
    pub fn note(&mut self, word: u64) {
        if self.place.is_open == 0 {
            return;
        }
        if self.place.notes == NOTES_MAX {
            self.close_notes();
        }
        let notes = self.place.notes as usize;
        self.next()[notes + 1] = word;
        self.place.notes += 1;
    }

    /// What was noted so far stands in a record of its own.
    #[cold]
    fn close_notes(&mut self) {
        let notes = u64::from(self.place.notes);
        self.next()[0] = NOTES | notes << 8;
        self.place.at += 1;
        self.place.notes = 0;
    }

    /// The call that is under way, if one is, ends with this reply.
    ///
    /// A token that was dropped is not written down: what the engine makes of it are calls, which are.
    #[inline]
    pub fn end(&mut self, reply: &Reply) {
        if self.place.is_open == 0 {
            return;
        }
        let (mut fields, mut words, mut len) = (0, [0; RECORD_WORDS], 0);
        let mut put = |field: u64, word: u64| {
            fields |= field;
            words[len & (RECORD_WORDS - 1)] = word;
            len += 1;
        };
        if !reply.token.is_none() {
            put(field::TOKEN, reply.token.task.to_bits());
            put(field::TOKEN, u64::from(reply.token.cpu) | u64::from(reply.token.serial) << 32);
        }
        if !reply.task.is_none() {
            put(field::TASK, reply.task.to_bits());
        }
        if reply.slice_ns != 0 {
            put(field::SLICE, reply.slice_ns);
        }
        if reply.timer_ns != 0 {
            put(field::TIMER, reply.timer_ns);
        }
        if !reply.kicks.is_empty() {
            put(field::KICKS, reply.kicks.to_bits());
        }
        if reply.cpu != NO_CPU {
            put(field::CPU, u64::from(reply.cpu));
        }
        if self.place.notes as usize + len > NOTES_MAX as usize {
            self.close_notes();
        }
        let notes = self.place.notes as usize;
        let record = self.next();
        record[0] = END | (notes as u64) << 8 | fields << 16;
        for (to, word) in record[notes + 1..].iter_mut().zip(&words[..len]) {
            *to = *word;
        }
        self.place.at += 1;
        self.place.is_open = 0;
        self.publish();
    }

    /// Something that is no call, at this time. `instance` numbers the instances of the policy from 1.
    pub fn mark(&mut self, time_ns: u64, mark: Mark, instance: u64) {
        if self.place.is_open != 0 && self.place.notes > 0 {
            // A call that does not end: what it learnt is worth reading.
            self.close_notes();
        }
        *self.next() = [MARK | time_ns << 8, mark as u64, instance, 0, 0, 0, 0, 0];
        self.place.at += 1;
        self.place.notes = 0;
        self.place.is_open = 0;
        self.publish();
    }
}
