//! What the processor says of itself in an instruction: the time, and where this CPU records its calls.

use core::arch::asm;

/// The processor's own counter, which is the same on all CPUs where the kernel's clock is made of it. A clock of the
/// kernel's takes fifty instructions.
#[inline]
pub(crate) fn ticks() -> u64 {
    // SAFETY: reads a counter that every processor of this architecture has.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The value of `ekiden_tape_here` for this CPU, in policy.c.
#[inline]
pub(crate) fn tape() -> *mut u8 {
    let place;
    // SAFETY: reads a variable of this CPU's, as the kernel does it on this architecture.
    unsafe { asm!("mov {}, gs:[rip + ekiden_tape_here]", out(reg) place, options(nostack, preserves_flags, readonly)) };
    place
}
