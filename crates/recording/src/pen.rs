//! Writes calls as records. This is on the path of every call of a policy, so instructions count.

use core::sync::atomic::{AtomicU64, Ordering::Release};

use ekiden_abi::{Call, Message, NO_CPU, Reply};

use crate::record::{CALL, END, END_NOTES_MAX, MARK, MORE, Mark, NOTES, NOTES_MAX, RECORD_WORDS, Record, note_at};

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

impl<'a> Pen<'a> {
    /// A pen that goes on where the last one stopped. The ring has a power of two of records.
    #[inline]
    pub fn new(place: &'a mut Place, ring: &'a mut [Record]) -> Self {
        debug_assert!(ring.len().is_power_of_two());
        Self { place, ring }
    }

    /// A pen for the same place, to be handed on by value: a reference to this one would have to live in memory.
    #[inline]
    fn again(&mut self) -> Pen<'_> {
        Pen { place: self.place, ring: self.ring }
    }

    #[inline]
    fn next(&mut self) -> &mut [u64; RECORD_WORDS] {
        let mask = self.ring.len().wrapping_sub(1);
        &mut self.ring[self.place.at as usize & mask].0
    }

    /// The record is whole, and so are those before it.
    #[inline]
    fn turn(&mut self) {
        self.place.at = self.place.at.wrapping_add(1);
        self.place.notes = 0;
        self.place.head.store(self.place.at, Release);
    }

    /// A call begins, at this time. Any call that is still under way on this CPU has no end.
    #[inline]
    pub fn begin(&mut self, time: u64, message: &Message, payload: &[u8]) {
        let words: &[u64; 7] = zerocopy::transmute_ref!(message);
        let record = self.next();
        record[0] = time << 8 | CALL;
        record[1..].copy_from_slice(words);
        self.turn();
        self.place.is_open = 1;
        if has_payload(message.call) {
            self.again().note_bytes(payload);
        }
    }

    /// The payload of hints comes first among the notes: its length, then its bytes, the last word filled up with zeros.
    #[cold]
    #[inline(never)]
    fn note_bytes(mut self, bytes: &[u8]) {
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
        let notes = self.place.notes;
        if notes >= END_NOTES_MAX {
            return self.again().note_more(word);
        }
        self.next()[(4 + notes as usize) & (RECORD_WORDS - 1)] = word;
        self.place.notes = notes.wrapping_add(1);
    }

    /// There are more notes than the end of a call has room for.
    #[cold]
    #[inline(never)]
    fn note_more(mut self, word: u64) {
        if self.place.notes >= NOTES_MAX {
            self.close_notes();
        }
        let notes = self.place.notes;
        self.next()[note_at(notes) & (RECORD_WORDS - 1)] = word;
        self.place.notes = notes + 1;
    }

    /// What was noted so far stands in a record of its own.
    fn close_notes(&mut self) {
        let notes = u64::from(self.place.notes);
        self.next()[0] = NOTES | notes << 8;
        self.turn();
    }

    /// What is rarely in a reply, and notes that are too many, stand in records of their own.
    #[cold]
    #[inline(never)]
    fn more(mut self, reply: &Reply) {
        if self.place.notes > 0 {
            self.close_notes();
        }
        if is_plain(reply) {
            return;
        }
        let (task, kicks) = (reply.task.to_bits(), reply.kicks.to_bits());
        *self.next() = [MORE, task, reply.timer_ns, kicks, u64::from(reply.cpu), 0, 0, 0];
        self.turn();
    }

    /// The call that is under way, if one is, ends with this reply.
    ///
    /// A token that was dropped is not written down: what the engine makes of it are calls, which are.
    #[inline]
    pub fn end(&mut self, reply: &Reply) {
        if self.place.is_open == 0 {
            return;
        }
        if !is_plain(reply) || self.place.notes > END_NOTES_MAX {
            self.again().more(reply);
        }
        let notes = u64::from(self.place.notes);
        let token: [u64; 2] = zerocopy::transmute!(reply.token);
        let record = self.next();
        record[0] = notes << 8 | END;
        record[1] = token[0];
        record[2] = token[1];
        record[3] = reply.slice_ns;
        self.place.is_open = 0;
        self.turn();
    }

    /// Something that is no call, at this time. `instance` numbers the instances of the policy from 1.
    #[cold]
    #[inline(never)]
    pub fn mark(&mut self, time: u64, mark: Mark, instance: u64) {
        if self.place.is_open != 0 && self.place.notes > 0 {
            // A call that does not end: what it learnt is worth reading.
            self.close_notes();
        }
        *self.next() = [MARK | time << 8, mark as u64, instance, 0, 0, 0, 0, 0];
        self.place.is_open = 0;
        self.turn();
    }
}

/// Whether there is nothing in a reply but a token and a slice.
#[inline]
fn is_plain(reply: &Reply) -> bool {
    reply.task.to_bits() | reply.timer_ns | reply.kicks.to_bits() | u64::from(reply.cpu ^ NO_CPU) == 0
}
