//! What a policy counts for people, as `ekiden.ko` reads it.

use core::{ffi::c_void, slice};

use ekiden::Scheduler;
use ekiden_host::Adapter;
use ekiden_host::abi::NO_CPU;

use crate::{MUCH_FUEL, here};

/// What an instance counts for people: what that is for [`NO_CPU`], and else what was counted for a CPU.
///
/// # Safety
///
/// `instance` comes from [`create`](crate::create) or [`take`](crate::take), and `room` has space for `len` bytes.
pub(crate) unsafe extern "C" fn write<S: Scheduler>(
    instance: *mut c_void,
    cpu: u32,
    room: *mut u64,
    len: usize,
) -> i64 {
    // SAFETY: `instance` comes from `create` or `take`, and counts with atomics, so calls may be under way on other CPUs.
    let counted = unsafe { &*instance.cast::<Adapter<S>>() }.counted();
    here::refuel(MUCH_FUEL);
    let used = if cpu == NO_CPU {
        // SAFETY: the room has `len` bytes, and bytes need no alignment.
        counted.describe(unsafe { slice::from_raw_parts_mut(room.cast(), len) })
    } else {
        // SAFETY: `room` is aligned for words, and as many are used as are whole in its `len` bytes.
        let words = unsafe { slice::from_raw_parts_mut(room, len / size_of::<u64>()) };
        counted.of_cpu(cpu, words).map(|words| words * size_of::<u64>())
    };
    used.map_or(-1, |used| used as i64)
}
