//! Where the calls of this module's policy are recorded: a ring for each CPU, in memory that `ekiden.ko` owns and that user
//! space maps.

use core::hint;
use core::ptr::{self, NonNull};
use core::slice;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::Relaxed};

use ekiden_host::abi::{Message, Noted, Reply};
use ekiden_kernel_rt::CallLogArgs;
use ekiden_recording::{CallWriter, Mark, Record, RingHeader};

use crate::{HOST, here};

/// Bytes from the place of a CPU to its ring.
const PAGE: usize = 4096;

static CALL_LOG: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// One less than the records of a ring, which are a power of two.
static LAST_RECORD: AtomicUsize = AtomicUsize::new(0);
static INSTANCE: AtomicU32 = AtomicU32::new(0);
/// Whether times are of the processor's counter.
static TICKS: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    /// Has a CPU record there. No call is under way there.
    safe fn ekiden_call_log_place(cpu: u32, place: *mut u8);
}

/// Stops recording, or starts with the mark of this number, in the rings of all CPUs.
///
/// # Safety
///
/// No call is under way. The call log is as the arguments say, nothing else writes to it, and it lives until recording stops, or
/// the last instance of this module has ended.
pub(crate) unsafe extern "C" fn run(args: *const CallLogArgs, what: u32) {
    // SAFETY: `args` are good for the call.
    let args = unsafe { &*args };
    CALL_LOG.store(args.base, Relaxed);
    LAST_RECORD.store(args.records.saturating_sub(1), Relaxed);
    TICKS.store(args.ticks_khz != 0, Relaxed);
    INSTANCE.store(args.instance, Relaxed);
    #[cfg(not(target_os = "none"))]
    ekiden_host::call_log(learn);
    ekiden_host::hear_notes(hear);
    let mark = Mark::from_number(what.into());
    let time = time();
    for cpu in 0..args.cpus {
        let place = place_of(cpu);
        ekiden_call_log_place(cpu, if mark.is_some() { place } else { ptr::null_mut() });
        if let Some((mark, place)) = mark.zip(NonNull::new(place)) {
            // SAFETY: it is a CPU's, and nothing writes there: no call is under way.
            unsafe { call_writer(place) }.mark(time, mark, args.instance.into());
        }
    }
    ekiden_host::run_call_log(mark.is_some());
    ekiden_host::keep_notes(mark.is_some());
}

/// Does something on this CPU, with interrupts off, that is no call: what it learns is not part of any.
pub(crate) fn pause(cpu: u32, work: impl FnOnce()) {
    let place = here::call_log();
    ekiden_call_log_place(cpu, ptr::null_mut());
    work();
    ekiden_call_log_place(cpu, place);
}

/// Where a CPU records; null without a call log.
fn place_of(cpu: u32) -> *mut u8 {
    let stride = PAGE + (LAST_RECORD.load(Relaxed) + 1) * size_of::<Record>();
    let call_log = CALL_LOG.load(Relaxed);
    // The call log has as many places as there are CPUs.
    if call_log.is_null() { call_log } else { call_log.wrapping_add(cpu as usize * stride) }
}

/// The call writer of a CPU.
///
/// # Safety
///
/// `place` is that of a CPU, and only that CPU writes there until the call_writer is gone: this is that CPU and interrupts are off,
/// or no call is under way.
#[inline]
unsafe fn call_writer<'a>(place: NonNull<u8>) -> CallWriter<'a> {
    let last = LAST_RECORD.load(Relaxed);
    // SAFETY: only this CPU writes there; the call log is laid out so, and aligned to pages. A process that has it mapped only reads. A place is
    // told to a CPU after the number of records.
    unsafe {
        hint::assert_unchecked(last < usize::MAX);
        let ring = place.as_ptr().add(PAGE).cast::<Record>();
        CallWriter::new(place.cast::<RingHeader>().as_mut(), slice::from_raw_parts_mut(ring, last + 1))
    }
}

#[inline]
fn time() -> u64 {
    if TICKS.load(Relaxed) { here::ticks() } else { clock() }
}

/// The time by the kernel's clock, where the processor's counter is not what that is made of.
#[cold]
#[inline(never)]
fn clock() -> u64 {
    // SAFETY: set before the first call, to a table that outlives the instance; callable in any context.
    unsafe { ((*HOST.load(Relaxed)).now_ns)() }
}

/// Where this CPU records, while a call is under way on it.
#[derive(Clone, Copy)]
pub(crate) struct Here(NonNull<u8>);

/// Nothing if it does not.
#[inline]
pub(crate) fn here() -> Option<Here> {
    NonNull::new(here::call_log()).map(Here)
}

impl Here {
    #[inline]
    pub(crate) fn begin(self, message: &Message, payload: &[u8]) {
        // SAFETY: it is this CPU's, calls come with interrupts off, and no call writer is left of the call before.
        unsafe { call_writer(self.0) }.begin(time(), here::thread(), message, payload);
    }

    #[inline]
    pub(crate) fn end(self, reply: &Reply) {
        // SAFETY: it is this CPU's, interrupts are off, and the call's own pens are gone. The reply is the same reply.
        unsafe { call_writer(here::anew(self.0)).end(here::anew(NonNull::from(reply)).as_ref()) };
    }
}

/// The call on this CPU has learnt this. Called by its name from where that is learnt (framework/lock), as it is on the path of each task switch.
#[cfg_attr(target_os = "none", unsafe(no_mangle))]
extern "C" fn ekiden_learn(value: u64) {
    if let Some(place) = NonNull::new(here::call_log()) {
        // SAFETY: it is this CPU's, in a call, so interrupts are off; the call writer that began the call is gone.
        unsafe { call_writer(place) }.note(value);
    }
}

/// For [`ekiden_host::call_log`], where this is a process.
#[cfg(not(target_os = "none"))]
fn learn(value: u64) -> u64 {
    ekiden_learn(value);
    value
}

/// For [`ekiden_host::hear_notes`].
fn hear(_: &Message, noted: Noted) {
    if let Some(place) = NonNull::new(here::call_log()) {
        // SAFETY: it is this CPU's, and calls come with interrupts off.
        unsafe { call_writer(place) }.noted(&noted);
    }
}

/// Puts a mark on this CPU's call log, in a call.
pub(crate) fn mark_here(mark: Mark) {
    if let Some(place) = NonNull::new(here::call_log()) {
        // SAFETY: it is this CPU's, in a call that has failed: what it was writing with is not used any more.
        unsafe { call_writer(place) }.mark(time(), mark, u64::from(INSTANCE.load(Relaxed)));
    }
}

#[cfg(test)]
#[path = "call_log_tests.rs"]
mod tests;
