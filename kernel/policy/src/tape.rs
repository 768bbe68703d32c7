//! Where the calls of this module's policy are recorded: a ring for each CPU, in memory that `ekiden.ko` owns and that user
//! space maps.

use core::ptr::NonNull;
use core::slice;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::Relaxed};

use ekiden::abi::{Message, Reply};
use ekiden_recording::{Mark, Pen, Place, Record};

use crate::{CreateArgs, HOST, here};

/// Bytes from the place of a CPU to its ring.
const PAGE: usize = 4096;

static TAPE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// Records of a ring.
static RECORDS: AtomicUsize = AtomicUsize::new(0);
static CPUS: AtomicU32 = AtomicU32::new(0);
static INSTANCE: AtomicU32 = AtomicU32::new(0);
/// Whether times are of the processor's counter.
static TICKS: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    /// Has a CPU record there. No call is under way.
    safe fn ekiden_tape_place(cpu: u32, place: *mut u8);
}

/// Begins to record a new instance, if there is a tape.
///
/// # Safety
///
/// The tape is as `args` says, nobody else writes to it, and it lives as long as the instance.
pub(crate) unsafe fn set_up(args: &CreateArgs) {
    TAPE.store(args.tape, Relaxed);
    RECORDS.store(args.tape_records, Relaxed);
    CPUS.store(args.tape_cpus, Relaxed);
    TICKS.store(args.ticks_khz != 0, Relaxed);
    ekiden::tape(learn);
    run(true);
    mark_all(Mark::Begin, args.instance);
}

/// Starts or stops recording.
///
/// # Safety
///
/// No call is under way.
pub(crate) unsafe extern "C" fn switch(on: bool) {
    let ran = !place_of(0).is_null() && ekiden::tape_runs();
    run(on);
    if on && !ran {
        mark_all(Mark::GoOn, INSTANCE.load(Relaxed));
    }
}

fn run(on: bool) {
    let on = on && !TAPE.load(Relaxed).is_null();
    for cpu in 0..CPUS.load(Relaxed) {
        ekiden_tape_place(cpu, if on { place_of(cpu) } else { core::ptr::null_mut() });
    }
    ekiden::run_tape(on);
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
    // SAFETY: the caller's promise; the tape is laid out so, and aligned to pages. Whoever has it mapped only reads.
    unsafe {
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

/// Makes a call, and writes it down if the tape runs.
#[inline]
pub(crate) fn record(message: &Message, payload: &[u8], call: impl FnOnce() -> Reply) -> Reply {
    let place = NonNull::new(here::tape());
    if let Some(place) = place {
        // SAFETY: it is this CPU's, and calls come with interrupts off.
        unsafe { pen(place) }.begin(time(), message, payload);
    }
    let reply = call();
    if let Some(place) = place {
        // SAFETY: as above. The call's own pens are gone.
        unsafe { pen(place) }.end(&reply);
    }
    reply
}

/// For [`ekiden::tape`].
fn learn(value: u64) -> u64 {
    if let Some(place) = NonNull::new(here::tape()) {
        // SAFETY: it is this CPU's, and calls come with interrupts off.
        unsafe { pen(place) }.note(value);
    }
    value
}

/// Puts a mark on every CPU's tape. No call is under way.
pub(crate) fn mark_all(mark: Mark, instance: u32) {
    INSTANCE.store(instance, Relaxed);
    let time = time();
    for place in (0..CPUS.load(Relaxed)).filter_map(|cpu| NonNull::new(place_of(cpu))) {
        if ekiden::tape_runs() {
            // SAFETY: it is a CPU's, and nobody writes there: no call is under way.
            unsafe { pen(place) }.mark(time, mark, u64::from(instance));
        }
    }
}

/// Puts a mark on this CPU's tape, in a call.
pub(crate) fn mark_here(mark: Mark) {
    if let Some(place) = NonNull::new(here::tape()) {
        // SAFETY: it is this CPU's, and calls come with interrupts off.
        unsafe { pen(place) }.mark(time(), mark, u64::from(INSTANCE.load(Relaxed)));
    }
}
