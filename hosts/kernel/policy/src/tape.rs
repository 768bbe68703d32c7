//! Where the calls of this module's policy are recorded: a ring for each CPU, in memory that `ekiden.ko` owns and that user
//! space maps.

use core::hint;
use core::ptr::{self, NonNull};
use core::slice;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::Relaxed};

use ekiden_host::abi::{Message, Noted, Reply};
use ekiden_kernel_rt::TapeArgs;
use ekiden_recording::{Mark, Pen, Place, Record};

use crate::{HOST, here};

/// Bytes from the place of a CPU to its ring.
const PAGE: usize = 4096;

static TAPE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// Records of a ring.
static RECORDS: AtomicUsize = AtomicUsize::new(0);
static INSTANCE: AtomicU32 = AtomicU32::new(0);
/// Whether times are of the processor's counter.
static TICKS: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    /// Has a CPU record there. No call is under way there.
    safe fn ekiden_tape_place(cpu: u32, place: *mut u8);
}

/// Stops recording, or starts with the mark of this number, in the rings of all CPUs.
///
/// # Safety
///
/// No call is under way. The tape is as the arguments say, nobody else writes to it, and it lives until recording stops, or
/// the last instance of this module has ended.
pub(crate) unsafe extern "C" fn run(args: *const TapeArgs, what: u32) {
    // SAFETY: `args` are good for the call.
    let args = unsafe { &*args };
    TAPE.store(args.base, Relaxed);
    RECORDS.store(args.records, Relaxed);
    TICKS.store(args.ticks_khz != 0, Relaxed);
    INSTANCE.store(args.instance, Relaxed);
    ekiden_host::tape(learn);
    ekiden_host::hear_notes(hear);
    let mark = Mark::from_number(what.into());
    let time = time();
    for cpu in 0..args.cpus {
        let place = place_of(cpu);
        ekiden_tape_place(cpu, if mark.is_some() { place } else { ptr::null_mut() });
        if let Some((mark, place)) = mark.zip(NonNull::new(place)) {
            // SAFETY: it is a CPU's, and nobody writes there: no call is under way.
            unsafe { pen(place) }.mark(time, mark, args.instance.into());
        }
    }
    ekiden_host::run_tape(mark.is_some());
    ekiden_host::keep_notes(mark.is_some());
}

/// Does something on this CPU, with interrupts off, that is no call: what it learns is not part of any.
pub(crate) fn pause(cpu: u32, work: impl FnOnce()) {
    let place = here::tape();
    ekiden_tape_place(cpu, ptr::null_mut());
    work();
    ekiden_tape_place(cpu, place);
}

/// Where a CPU records; null without a tape.
fn place_of(cpu: u32) -> *mut u8 {
    let stride = PAGE + RECORDS.load(Relaxed) * size_of::<Record>();
    let tape = TAPE.load(Relaxed);
    // The tape has as many places as there are CPUs.
    if tape.is_null() { tape } else { tape.wrapping_add(cpu as usize * stride) }
}

/// The pen of a CPU.
///
/// # Safety
///
/// `place` is that of a CPU, and only that CPU writes there until the pen is gone: this is that CPU and interrupts are off,
/// or no call is under way.
#[inline]
unsafe fn pen<'a>(place: NonNull<u8>) -> Pen<'a> {
    let records = RECORDS.load(Relaxed);
    // SAFETY: only this CPU writes there; the tape is laid out so, and aligned to pages. A process that has it mapped only reads. A place is
    // told to a CPU after the number of records, which is not 0.
    unsafe {
        hint::assert_unchecked(records > 0);
        let ring = place.as_ptr().add(PAGE).cast::<Record>();
        Pen::new(place.cast::<Place>().as_mut(), slice::from_raw_parts_mut(ring, records))
    }
}

#[inline]
fn time() -> u64 {
    if TICKS.load(Relaxed) {
        return here::ticks();
    }
    // SAFETY: set before the first call, to a table that outlives the instance; callable in any context.
    unsafe { ((*HOST.load(Relaxed)).now_ns)() }
}

/// Where this CPU records, while a call is under way on it.
#[derive(Clone, Copy)]
pub(crate) struct Here(NonNull<u8>);

/// Nothing if it does not.
#[inline]
pub(crate) fn here() -> Option<Here> {
    NonNull::new(here::tape()).map(Here)
}

impl Here {
    #[inline]
    pub(crate) fn begin(self, message: &Message, payload: &[u8]) {
        // SAFETY: it is this CPU's, calls come with interrupts off, and no pen is left of the call before.
        unsafe { pen(self.0) }.begin(time(), here::thread(), message, payload);
    }

    #[inline]
    pub(crate) fn end(self, reply: &Reply) {
        // SAFETY: it is this CPU's, interrupts are off, and the call's own pens are gone.
        unsafe { pen(self.0) }.end(reply);
    }
}

/// For [`ekiden_host::tape`].
fn learn(value: u64) -> u64 {
    if let Some(place) = NonNull::new(here::tape()) {
        // SAFETY: it is this CPU's, in a call, so interrupts are off; the pen that began the call is gone.
        unsafe { pen(place) }.note(value);
    }
    value
}

/// For [`ekiden_host::hear_notes`].
fn hear(_: &Message, noted: Noted) {
    if let Some(place) = NonNull::new(here::tape()) {
        // SAFETY: it is this CPU's, and calls come with interrupts off.
        unsafe { pen(place) }.noted(&noted);
    }
}

/// Puts a mark on this CPU's tape, in a call.
pub(crate) fn mark_here(mark: Mark) {
    if let Some(place) = NonNull::new(here::tape()) {
        // SAFETY: it is this CPU's, in a call that has failed: what it was writing with is not used any more.
        unsafe { pen(place) }.mark(time(), mark, u64::from(INSTANCE.load(Relaxed)));
    }
}

#[cfg(test)]
#[path = "tape_tests.rs"]
mod tests;
