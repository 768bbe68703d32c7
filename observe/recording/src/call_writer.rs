//! Writes calls as records. This is on the path of every call of a policy, so instructions count.

use core::sync::atomic::{AtomicU64, Ordering::Release, fence};

use ekiden_abi::{Calls, Message, NO_CPU, Noted, Reply};

use crate::record::{
    CALL, END, END_NOTES_MAX, MARK, MORE, Mark, NOTED, NOTES, NOTES_MAX, RECORD_WORDS, Record, note_at,
};

/// Where in a ring its CPU writes next. All zeros at first.
#[repr(C)]
#[derive(Debug, Default)]
pub struct RingHeader {
    /// How many records there have been: those before are whole. A reader of the ring looks here, before and after.
    pub head: AtomicU64,
    /// While a call is under way that is being written, one more than the notes that the next record has already; or else 0.
    open: u64,
}

/// Writes the calls of one CPU into its ring, one after the other.
#[derive(Debug)]
pub struct CallWriter<'a> {
    place: &'a mut RingHeader,
    ring: &'a mut [Record],
}

impl<'a> CallWriter<'a> {
    /// A call writer that continues where the last one stopped. The ring has a power of two of records.
    #[inline]
    pub fn new(place: &'a mut RingHeader, ring: &'a mut [Record]) -> Self {
        debug_assert!(ring.len().is_power_of_two());
        Self { place, ring }
    }

    #[inline]
    fn next(&mut self) -> &mut [u64; RECORD_WORDS] {
        let mask = self.ring.len().wrapping_sub(1);
        &mut self.ring[*self.place.head.get_mut() as usize & mask].0
    }

    /// How many notes the next record has already; more than any has if no call is under way, so that both are one question.
    #[inline]
    fn notes(&self) -> u64 {
        self.place.open.wrapping_sub(1)
    }

    /// The record is whole, and so are those before it. Whether a call is under way now.
    #[inline]
    fn turn(&mut self, is_open: bool) {
        self.place.open = is_open.into();
        let head = self.place.head.get_mut().wrapping_add(1);
        self.place.head.store(head, Release);
        // A reader of any part of the next record sees this head as well, and throws away what that record overwrites. No
        // instruction where stores are seen in their order.
        fence(Release);
    }

    /// A call begins, at this time, while the thread with this PID runs on this CPU. Any call that is still under way here has
    /// no end.
    #[inline]
    pub fn begin(&mut self, time: u64, thread: u32, message: &Message, payload: &[u8]) {
        let words: &[u64; 7] = zerocopy::transmute_ref!(message);
        let record = self.next();
        record[0] = time << 8 | CALL;
        record[1..].copy_from_slice(words);
        // The number of a call uses one byte, and the kernel's PIDs have 22 bits.
        record[1] |= u64::from(thread << 8);
        self.turn(true);
        // Those of a task switch have smaller numbers than all of them.
        let is_beyond = message.call >= Calls::WITH_PAYLOAD.0.trailing_zeros();
        if is_beyond && Calls::WITH_PAYLOAD.has_number(message.call) {
            Self::note_bytes(self.place, self.ring, payload);
        }
    }

    // The rare ones take the call writer apart: as a whole it would have to live in memory.

    /// The payload of hints comes first among the notes: its length, then its bytes, the last word filled up with zeros.
    #[cold]
    #[inline(never)]
    fn note_bytes(place: &mut RingHeader, ring: &mut [Record], bytes: &[u8]) {
        let mut call_writer = CallWriter { place, ring };
        call_writer.note(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            call_writer.note(u64::from_le_bytes(word));
        }
    }

    /// The call that is under way, if one is, has learnt this.
    #[inline]
    pub fn note(&mut self, word: u64) {
        let notes = self.notes();
        if notes >= END_NOTES_MAX {
            return Self::note_more(self.place, self.ring, word);
        }
        self.next()[(4 + notes as usize) & (RECORD_WORDS - 1)] = word;
        self.place.open = notes.wrapping_add(2);
    }

    /// There are more notes than the end of a call has room for, or no call is under way.
    #[cold]
    #[inline(never)]
    fn note_more(place: &mut RingHeader, ring: &mut [Record], word: u64) {
        let mut call_writer = CallWriter { place, ring };
        if call_writer.place.open == 0 {
            return;
        }
        if call_writer.notes() >= NOTES_MAX {
            call_writer.close_notes();
        }
        let notes = call_writer.notes();
        call_writer.next()[note_at(notes) & (RECORD_WORDS - 1)] = word;
        call_writer.place.open += 1;
    }

    /// Closes the record with the notes so far.
    fn close_notes(&mut self) {
        let notes = self.notes();
        self.next()[0] = NOTES | notes << 8;
        self.turn(true);
    }

    /// The policy has noted something in the call that is under way, if one is. It stands in a record of its own.
    #[cold]
    #[inline(never)]
    pub fn noted(&mut self, noted: &Noted) {
        if self.place.open == 0 {
            return;
        }
        if self.notes() > 0 {
            self.close_notes();
        }
        let [a, b, c, d] = noted.name.0;
        *self.next() = [NOTED, noted.value, a, b, c, d, 0, 0];
        self.turn(true);
    }

    /// Rare parts of a reply, and notes beyond its room, stand in records of their own. Returns whether a call is under
    /// way.
    #[cold]
    #[inline(never)]
    fn more(place: &mut RingHeader, ring: &mut [Record], reply: &Reply) -> bool {
        let mut call_writer = CallWriter { place, ring };
        if call_writer.place.open == 0 {
            return false;
        }
        if call_writer.notes() > 0 {
            call_writer.close_notes();
        }
        if !is_plain(reply) {
            let (task, kicks) = (reply.task.to_bits(), reply.kicks.to_bits());
            *call_writer.next() = [MORE, task, reply.timer_ns, kicks, u64::from(reply.cpu), 0, 0, 0];
            call_writer.turn(true);
        }
        true
    }

    /// The call that is under way, if one is, ends with this reply.
    ///
    /// A token that was dropped is not written down: what the engine makes of it are calls, which are.
    #[inline]
    pub fn end(&mut self, reply: &Reply) {
        let is_rare = !is_plain(reply) || self.notes() > END_NOTES_MAX;
        if is_rare && !Self::more(self.place, self.ring, reply) {
            return;
        }
        let notes = self.notes();
        let token: [u64; 2] = zerocopy::transmute!(reply.token);
        let record = self.next();
        record[0] = notes << 8 | END;
        record[1] = token[0];
        record[2] = token[1];
        record[3] = reply.slice_ns;
        self.turn(false);
    }

    /// Something that is no call, at this time. `instance` numbers the instances of the policy from 1.
    #[cold]
    #[inline(never)]
    pub fn mark(&mut self, time: u64, mark: Mark, instance: u64) {
        if self.place.open > 1 {
            // A call that does not end: what it learnt is worth reading.
            self.close_notes();
        }
        *self.next() = [MARK | time << 8, mark as u64, instance, 0, 0, 0, 0, 0];
        self.turn(false);
    }
}

/// Whether there is nothing in a reply but a token and a slice.
#[inline]
fn is_plain(reply: &Reply) -> bool {
    reply.task.to_bits() | reply.timer_ns | reply.kicks.to_bits() | u64::from(reply.cpu ^ NO_CPU) == 0
}
