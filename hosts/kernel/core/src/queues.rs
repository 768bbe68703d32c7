//! Queues of hints: what C asks of the memory that a program shares.

use core::slice;
use core::sync::atomic::AtomicU64;

use ekiden::NotTold;
use ekiden_host::hints::{Consumer, Geometry, NotWritten, Producer};

/// The words of a queue.
///
/// # Safety
///
/// The memory of a queue of this geometry is there, and stays for as long as it is used.
unsafe fn words<'a>(memory: *const AtomicU64, geometry: &Geometry) -> &'a [AtomicU64] {
    // SAFETY: the memory is there and as long as its geometry says. A program may write there at any time, which is what atomics are for.
    unsafe { slice::from_raw_parts(memory, geometry.bytes() / 8) }
}

/// Bytes of a queue; 0 if its sizes are beyond the limits.
///
/// # Safety
///
/// The geometry is good for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_queue_bytes(geometry: *const Geometry) -> usize {
    // SAFETY: the caller's own geometry, which it is about to make a queue of; a copy is kept, so it may change afterwards.
    let geometry = unsafe { *geometry };
    if geometry.is_good() { geometry.bytes() } else { 0 }
}

/// Writes the header.
///
/// # Safety
///
/// There are zeroed bytes for this geometry, which is good for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_queue_init(memory: *const AtomicU64, geometry: *const Geometry) -> bool {
    // SAFETY: the geometry that the memory was allocated by.
    let geometry = unsafe { *geometry };
    // SAFETY: `ekiden_rs_queue_bytes` has said of this geometry how many bytes to allocate, and no program has them mapped yet.
    geometry.write(unsafe { words(memory, &geometry) })
}

/// Takes hints out, after those that `tail` counts: this many bytes; negative if the program's index made no sense.
///
/// # Safety
///
/// It is the memory of a queue of this geometry; `tail` is used by no other; there are `len` bytes at `room`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_queue_take(
    memory: *const AtomicU64,
    geometry: *const Geometry,
    tail: *mut u64,
    room: *mut u8,
    len: usize,
) -> i64 {
    // SAFETY: geometry and tail are of one queue, which the caller has marked as busy; the room is its CPU's, of `len` bytes.
    let (geometry, tail, room) = unsafe { (*geometry, &mut *tail, slice::from_raw_parts_mut(room, len)) };
    // SAFETY: the kernel's copy of the geometry, so the memory is as long as that says, whatever a program has written into its header.
    let Some(ring) = geometry.up(unsafe { words(memory, &geometry) }) else { return 0 };
    let mut hints = Consumer::at(ring, *tail);
    let taken = hints.take(room);
    *tail = hints.tail();
    taken.map_or(-1, |bytes| bytes as i64)
}

/// Counts hints that were no values of their type.
///
/// # Safety
///
/// It is the memory of a queue of this geometry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_queue_refused(memory: *const AtomicU64, geometry: *const Geometry, records: u64) {
    // SAFETY: the geometry of a queue that has not been freed.
    let geometry = unsafe { *geometry };
    // SAFETY: that queue's memory. Counting is one addition to an atomic, beside anything else that happens to the queue.
    if let Some(ring) = geometry.up(unsafe { words(memory, &geometry) }) {
        Consumer::at(ring, 0).note_refused(records);
    }
}

/// Writes a notice, after those that `head` counts; 0, or the number of [`NotTold`].
///
/// # Safety
///
/// It is the memory of a queue of this geometry; `head` is used by no other meanwhile; there are `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_queue_put(
    memory: *const AtomicU64,
    geometry: *const Geometry,
    head: *mut u64,
    bytes: *const u8,
    len: usize,
) -> u32 {
    // SAFETY: geometry and head are of one queue, whose lock for notices the caller has; the notice has `len` bytes.
    let (geometry, head, notice) = unsafe { (*geometry, &mut *head, slice::from_raw_parts(bytes, len)) };
    // SAFETY: the queue cannot be freed while a notice is written into it, and its memory is as long as the kernel's geometry says.
    let Some(ring) = geometry.down(unsafe { words(memory, &geometry) }) else { return NotTold::Closed as u32 };
    let mut notices = Producer::at(ring, *head);
    let written = notices.push(notice);
    *head = notices.head();
    match written {
        Ok(()) => 0,
        Err(NotWritten::Full) => NotTold::Full as u32,
        Err(NotWritten::Length) => NotTold::Closed as u32,
    }
}

#[cfg(test)]
#[path = "queues_tests.rs"]
mod tests;
