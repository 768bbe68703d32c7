//! Queues as the C half has them: memory, a geometry, and its own count of what was read or written.

use core::sync::atomic::Ordering::Relaxed;
use std::{vec, vec::Vec};

use ekiden_host::hints::{Side, layout::at};

use super::*;

const GEOMETRY: Geometry = Geometry {
    up: Side { fingerprint: 5, bytes: 12, records: 4 },
    down: Side { fingerprint: 6, bytes: 8, records: 2 },
};

fn bytes(geometry: Geometry) -> usize {
    // SAFETY: the geometry is good for the call.
    unsafe { ekiden_rs_queue_bytes(&geometry) }
}

struct Queue {
    memory: Vec<AtomicU64>,
    tail: u64,
    head: u64,
}

impl Queue {
    fn new() -> Self {
        let memory: Vec<_> = (0..bytes(GEOMETRY) / 8).map(|_| AtomicU64::new(0)).collect();
        // SAFETY: there are zeroed bytes for this geometry.
        assert!(unsafe { ekiden_rs_queue_init(memory.as_ptr(), &GEOMETRY) });
        Self { memory, tail: 0, head: 0 }
    }

    /// The program writes a hint.
    fn hint(&self, head: u64, byte: u8) {
        let mut program = Producer::at(GEOMETRY.up(&self.memory).unwrap(), head);
        program.push(&[byte; 12]).unwrap();
    }

    /// What the C half takes into a room of `len` bytes.
    fn take(&mut self, len: usize) -> Result<Vec<u8>, i64> {
        let mut room = vec![0; len + 8];
        // SAFETY: it is the memory of this geometry; nothing else uses the tail, and the room has `len` bytes.
        let taken =
            unsafe { ekiden_rs_queue_take(self.memory.as_ptr(), &GEOMETRY, &mut self.tail, room.as_mut_ptr(), len) };
        assert_eq!(room[len..], [0; 8], "nothing is written behind the room");
        room.truncate(usize::try_from(taken).map_err(|_| taken)?);
        Ok(room)
    }

    fn put(&mut self, notice: &[u8]) -> u32 {
        // SAFETY: it is the memory of this geometry, and nothing else uses the head.
        unsafe { ekiden_rs_queue_put(self.memory.as_ptr(), &GEOMETRY, &mut self.head, notice.as_ptr(), notice.len()) }
    }
}

#[test]
fn a_queue_has_whole_pages_and_none_beyond_the_limits() {
    assert_eq!(bytes(GEOMETRY), 2 * 4096, "the header, and less than a page of records");
    let with = |up: Side| bytes(Geometry { up, ..GEOMETRY });
    assert_eq!(with(Side { bytes: 256, records: 4096, ..GEOMETRY.up }), 4096 + (1 << 20) + 4096);
    for up in [
        Side { bytes: 257, ..GEOMETRY.up },
        Side { bytes: u32::MAX, records: 1 << 31, ..GEOMETRY.up },
        Side { records: 0, ..GEOMETRY.up },
        Side { records: 3, ..GEOMETRY.up },
        Side { records: 8192, ..GEOMETRY.up },
    ] {
        assert_eq!(with(up), 0, "{up:?}");
    }
}

#[test]
fn hints_are_taken_in_order_as_far_as_there_is_room_and_once() {
    let mut queue = Queue::new();
    assert_eq!(queue.take(36), Ok(vec![]));
    (0..3).for_each(|at| queue.hint(at, at as u8 + 1));
    assert_eq!(queue.take(11), Ok(vec![]), "there is no room for one");
    assert_eq!(queue.take(35), Ok([[1; 12], [2; 12]].concat()));
    assert_eq!((queue.tail, queue.memory[at::UP_TAIL].load(Relaxed)), (2, 2), "the program sees the room that it has");
    assert_eq!(queue.take(36), Ok(vec![3; 12]));
    assert_eq!(queue.take(36), Ok(vec![]));
}

#[test]
fn an_index_that_makes_no_sense_passes_over_all_that_was_written() {
    let mut queue = Queue::new();
    queue.hint(0, 1);
    for head in [6, 1 << 63, u64::MAX] {
        queue.memory[at::UP_HEAD].store(head, Relaxed);
        assert_eq!(queue.take(36), Err(-1), "a head of {head}");
        assert_eq!(queue.tail, head);
    }
    assert_eq!(queue.memory[at::NONSENSE].load(Relaxed), 3);
    queue.hint(u64::MAX, 9);
    assert_eq!(queue.take(36), Ok(vec![9; 12]), "it serves what is written from then on");
}

/// The reader goes by its own count: what the program writes there changes nothing.
#[test]
fn a_tail_in_memory_is_not_believed() {
    let mut queue = Queue::new();
    queue.hint(0, 1);
    queue.memory[at::UP_TAIL].store(77, Relaxed);
    assert_eq!(queue.take(12), Ok(vec![1; 12]));
    assert_eq!(queue.memory[at::UP_TAIL].load(Relaxed), 1);
}

#[test]
fn hints_that_were_refused_are_counted_where_the_program_sees_it() {
    let queue = Queue::new();
    for records in [2, 3] {
        // SAFETY: it is the memory of this geometry.
        unsafe { ekiden_rs_queue_refused(queue.memory.as_ptr(), &GEOMETRY, records) };
    }
    assert_eq!(queue.memory[at::REFUSED].load(Relaxed), 5);
}

#[test]
fn notices_are_written_until_there_is_no_room_and_of_their_length_only() {
    let mut queue = Queue::new();
    for wrong in [&[][..], &[1; 7], &[1; 9]] {
        assert_eq!(queue.put(wrong), NotTold::Closed as u32);
    }
    assert_eq!((queue.put(&[1; 8]), queue.put(&[2; 8]), queue.put(&[3; 8])), (0, 0, NotTold::Full as u32));
    assert_eq!((queue.head, queue.memory[at::DOWN_HEAD].load(Relaxed)), (2, 2));
    let mut room = [0; 16];
    let mut program = Consumer::at(GEOMETRY.down(&queue.memory).unwrap(), 0);
    assert_eq!(program.take(&mut room), Ok(16));
    assert_eq!(room, [[1; 8], [2; 8]].concat()[..]);
    assert_eq!((queue.put(&[4; 8]), queue.head), (0, 3), "there is room again");
}

#[test]
fn a_program_that_claims_to_have_read_the_future_gets_no_more_notices() {
    let mut queue = Queue::new();
    queue.memory[at::DOWN_TAIL].store(5, Relaxed);
    assert_eq!(queue.put(&[1; 8]), NotTold::Full as u32);
    assert_eq!(queue.head, 0);
}
