//! The few system calls for which no safe wrapper exists, and instructions that do nothing. All unsafe code of this crate is in this file.
#![allow(unsafe_code)]

use std::io;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Pid;

/// Number of the scheduling class that sched_ext schedulers serve; libc has no name for it yet.
const SCHED_EXT: libc::c_int = 7;

/// Exit status of a child whose code panicked, as Rust programs have it.
const PANICKED: i32 = 101;

/// How many instructions [`do_nothing`] is.
pub(crate) const NOTHING: u32 = 32;

/// Goes through this many instructions that do nothing.
#[inline]
pub(crate) fn do_nothing() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the processor is as it was.
    unsafe {
        std::arch::asm!(".rept {nothing}", "nop", ".endr", nothing = const NOTHING, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    (0..NOTHING / 4).for_each(|pass| _ = std::hint::black_box(pass));
}

/// Starts a child process that does `body` and exits with what it returns.
///
/// The caller must have one thread only: a lock that another thread holds would stay locked in the child.
pub(crate) fn spawn(body: impl FnOnce() -> i32) -> io::Result<Pid> {
    // SAFETY: fork itself has no memory-safety precondition. The child never returns from this function: it either
    // exits below, or panics into `catch_unwind` and then exits, so no frame of the caller runs twice.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let status = catch_unwind(AssertUnwindSafe(body)).unwrap_or(PANICKED);
            // SAFETY: `_exit` takes no pointers. It skips exit handlers and buffered output, which are the parent's.
            unsafe { libc::_exit(status) }
        }
        pid => Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork gave no process id")),
    }
}

/// Puts the caller into class SCHED_EXT; its nice value stays. `EINVAL` means that the kernel has no such class.
pub(crate) fn enter_ext_class() -> io::Result<()> {
    set_scheduler(SCHED_EXT, 0)
}

fn set_scheduler(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    // SAFETY: an all-zero `sched_param` is a valid value of that plain struct.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = priority;
    // SAFETY: `param` lives through the call, which only reads it; pid 0 is the caller.
    match unsafe { libc::sched_setscheduler(0, policy, &param) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// While this lives, the caller runs before all ordinary tasks, so that a scheduler under test cannot hold up the
/// watchdog that watches it. Without the privilege for that, nothing changes.
pub(crate) struct AheadOfOthers {
    policy_before: Option<libc::c_int>,
}

impl AheadOfOthers {
    pub(crate) fn enter() -> Self {
        // SAFETY: takes no pointers; pid 0 is the caller.
        let before = unsafe { libc::sched_getscheduler(0) };
        // Only from a class without a priority of its own is the way back known.
        let ordinary = matches!(before, libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE | SCHED_EXT);
        let entered = ordinary && set_scheduler(libc::SCHED_FIFO, 1).is_ok();
        AheadOfOthers { policy_before: entered.then_some(before) }
    }
}

impl Drop for AheadOfOthers {
    fn drop(&mut self) {
        if let Some(policy) = self.policy_before {
            // Failing would leave the runner, which has nothing left to do but report, at a high priority.
            let _ = set_scheduler(policy, 0);
        }
    }
}

/// Counters of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) cpu_ns: u64,
    pub(crate) voluntary_switches: u64,
    pub(crate) involuntary_switches: u64,
}

impl Usage {
    /// The caller's own, children left out.
    pub(crate) fn of_self() -> Usage {
        // SAFETY: an all-zero `rusage` is a valid value of that plain struct.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is writable through the call. With a valid `who` and pointer it cannot fail.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
        Usage {
            cpu_ns: own_cpu_ns(),
            voluntary_switches: usage.ru_nvcsw as u64,
            involuntary_switches: usage.ru_nivcsw as u64,
        }
    }
}

/// CPU time of another process, a dead one that has not been waited for included.
pub(crate) fn cpu_ns_of(pid: Pid) -> Option<u64> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is writable through the call.
    match unsafe { libc::clock_getcpuclockid(pid.as_raw_nonzero().get(), &mut clock) } {
        0 => clock_ns(clock),
        _ => None,
    }
}

fn clock_ns(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable through the call.
    match unsafe { libc::clock_gettime(clock, &mut time) } {
        0 => Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64),
        _ => None,
    }
}

/// CPU time of the caller.
pub(crate) fn own_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0)
}

/// Types of which all zeros are a value, and which processes may access at the same time.
///
/// # Safety
/// Both must be true, and no alignment larger than a page.
pub(crate) unsafe trait Word {}

// SAFETY: zero is a valid number, and all access is atomic.
unsafe impl Word for AtomicU32 {}
// SAFETY: zero is a valid number of 64 bits, too, and all access is atomic.
unsafe impl Word for AtomicU64 {}

/// Words of memory, zero at first, that children started later share with their parent.
pub(crate) struct Shared<T: Word> {
    words: *mut T,
    count: usize,
}

impl<T: Word> Shared<T> {
    pub(crate) fn new(count: usize) -> io::Result<Self> {
        let count = count.max(1);
        let bytes = count * size_of::<T>();
        // SAFETY: a null hint without MAP_FIXED lets the kernel choose a place, so no mapping in use is replaced.
        let place = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
        }?;
        Ok(Shared { words: place.cast(), count })
    }
}

impl<T: Word> Deref for Shared<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping has room for `count` words, is page-aligned, zeroed (a valid `T`) and lives as long as
        // `self`. Other processes access it through `T` only, which is atomic.
        unsafe { std::slice::from_raw_parts(self.words, self.count) }
    }
}

impl<T: Word> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`; the borrow of every slice of it has ended. A failure leaks it.
        let _ = unsafe { rustix::mm::munmap(self.words.cast(), self.count * size_of::<T>()) };
    }
}
