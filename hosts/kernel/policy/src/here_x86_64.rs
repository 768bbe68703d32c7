//! What takes an instruction or few on this architecture: the time, where this CPU records its calls, which thread it runs,
//! and the fuel of the call.

use core::arch::asm;
use core::ptr::NonNull;

/// The processor's own counter, which is the same on all CPUs where the kernel's clock is made of it. A clock of the
/// kernel's takes fifty instructions.
#[inline]
pub(crate) fn ticks() -> u64 {
    // SAFETY: reads a counter that every processor of this architecture has.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The value of `ekiden_call_log_here` for this CPU, in policy.c.
#[inline]
pub(crate) fn call_log() -> *mut u8 {
    let place;
    // SAFETY: reads a variable of this CPU's, as the kernel does it on this architecture.
    unsafe {
        asm!("mov {}, gs:[rip + ekiden_call_log_here]", out(reg) place, options(nostack, preserves_flags, readonly))
    };
    place
}

/// Gives the call that is under way more fuel: for this many loop iterations.
#[inline]
pub(crate) fn refuel(iterations: i64) {
    // SAFETY: writes a variable of this CPU's, which only the call's own code looks at until it ends.
    unsafe { asm!("mov gs:[rip + ekiden_fuel], {}", in(reg) iterations, options(nostack, preserves_flags)) };
}

/// Where the call under way was entered: an address on the stack that this CPU uses, so no other CPU has the same.
#[inline]
pub(crate) fn guard() -> usize {
    let place;
    // SAFETY: reads a variable of this CPU's.
    unsafe { asm!("mov {}, gs:[rip + ekiden_guard_sp]", out(reg) place, options(nostack, preserves_flags, readonly)) };
    place
}

/// The PID of the thread that runs on this CPU, by `ekiden_current_at` and `ekiden_pid_at` in policy.c.
#[inline]
pub(crate) fn thread() -> u32 {
    let pid: u64;
    // SAFETY: reads a variable of this CPU's, and a field of the task to which it points: the one that runs, which is there.
    unsafe {
        asm!(
            "mov {pid}, [rip + ekiden_current_at]",
            "mov {pid}, gs:[{pid}]",
            "add {pid}, [rip + ekiden_pid_at]",
            "mov {pid:e}, [{pid}]",
            pid = out(reg) pid,
            options(nostack, readonly)
        );
    }
    pid as u32
}

/// The same address, of which the compiler does not know that it is. What is looked at before a call and after it is looked at by way of an
/// address in one register then, and not of one for each field, which all have to be kept meanwhile. No instruction.
#[inline(always)]
pub(crate) fn anew<T>(address: NonNull<T>) -> NonNull<T> {
    let mut same = address.as_ptr();
    // SAFETY: there is nothing in it. What comes out is what went in, which is not null.
    unsafe {
        asm!("/* {} */", inlateout(reg) same, options(nostack, preserves_flags));
        NonNull::new_unchecked(same)
    }
}
