//! Which locks the call on this CPU has, in the kernel: one word of each CPU, `ekiden_held` in hosts/kernel/module/policy.c. The exclusive
//! or of addresses does not care in which order locks are let go of.

use core::arch::asm;

/// The call has taken the lock at this address, or let go of it.
#[inline(always)]
pub(crate) fn change(lock: usize) {
    // SAFETY: changes a variable of this CPU's, which calls keep; there is one call of a program at a time on a CPU.
    unsafe { asm!("xor qword ptr gs:[rip + ekiden_held], {}", in(reg) lock, options(nostack)) };
}

/// The exclusive or of the addresses of all locks that the call has: 0 if there is none, and the lock's if there is one.
#[inline(always)]
pub fn held() -> usize {
    let held;
    // SAFETY: reads a variable of this CPU's.
    unsafe { asm!("mov {}, qword ptr gs:[rip + ekiden_held]", out(reg) held, options(nostack, preserves_flags)) };
    held
}
