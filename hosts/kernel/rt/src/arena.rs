//! The allocator: one block of memory, taken before the policy starts.
//!
//! Scheduling calls run under a run-queue lock, where the kernel's own allocator must not be called: it can wake a
//! task and deadlock. Blocks have power-of-two sizes and go back to a list of their size, so that allocating and
//! freeing take a handful of instructions and the arena never has to be searched.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;

use spin::mutex::{SpinMutex, SpinMutexGuard};

use crate::wait::{GO_ON, Wait};

/// Smallest block, in bytes: room for the link of its free list.
const SMALLEST: usize = 16;
/// Number of block sizes: up to 2^47 bytes.
const CLASSES: usize = 48;

/// An arena, empty until [`Arena::reset`].
pub struct Arena {
    state: SpinMutex<Blocks>,
}

/// Which memory an arena has, and which of it is free.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Blocks {
    next: usize,
    end: usize,
    used: usize,
    free: [usize; CLASSES],
}

impl Arena {
    /// An arena without memory: every allocation fails.
    pub const fn new() -> Self {
        Self { state: SpinMutex::new(Blocks { next: 0, end: 0, used: 0, free: [0; CLASSES] }) }
    }

    #[inline]
    fn lock(&self) -> SpinMutexGuard<'_, Blocks> {
        self.state.try_lock().unwrap_or_else(|| self.wait())
    }

    /// Whoever has it needs but a few instructions, if its CPU runs.
    #[cold]
    #[inline(never)]
    fn wait(&self) -> SpinMutexGuard<'_, Blocks> {
        let mut wait = Wait::begin();
        while wait.look() == GO_ON {
            if let Some(guard) = self.state.try_lock() {
                wait.end();
                return guard;
            }
            core::hint::spin_loop();
        }
        panic!("the lock of the arena was not released in time: its holder hangs");
    }

    /// Starts over with the `len` bytes at `base`. Whatever was allocated before is forgotten. Also frees the
    /// arena's own lock, which a panic may have left taken.
    ///
    /// # Safety
    ///
    /// The memory is readable and writable, is used by nobody else until the next reset, and no reference into the
    /// old memory is used again.
    pub unsafe fn reset(&self, base: *mut u8, len: usize) {
        // SAFETY: the memory is this arena's alone; a block is free or not yet carved.
        unsafe {
            self.adopt(Blocks { next: base as usize, end: base as usize + len, used: 0, free: [0; CLASSES] });
        }
    }

    /// Everything that was allocated and what is left, for another arena to go on with.
    pub fn blocks(&self) -> Blocks {
        *self.lock()
    }

    /// Goes on where another arena stopped. Whatever was allocated here before is forgotten.
    ///
    /// # Safety
    ///
    /// As for [`reset`](Self::reset); and nothing is allocated in the other arena any more.
    pub unsafe fn adopt(&self, blocks: Blocks) {
        // SAFETY: nobody allocates meanwhile, so nobody relies on the lock that is broken open here.
        unsafe { self.state.force_unlock() };
        *self.lock() = blocks;
    }

    /// Bytes in blocks that are in use.
    pub fn used(&self) -> usize {
        self.lock().used
    }
}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}

fn class(layout: Layout) -> (usize, usize) {
    let size = layout.size().max(layout.align()).max(SMALLEST).next_power_of_two();
    (size, size.trailing_zeros() as usize)
}

// SAFETY: blocks lie inside the arena, do not overlap, and are aligned to their size, which is at least the alignment
// asked for. The lock keeps CPUs apart; interrupts are off in scheduling calls, so a CPU does not meet itself.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, class) = class(layout);
        if class >= CLASSES {
            return null_mut();
        }
        let mut state = self.lock();
        let block = match state.free[class] {
            0 => {
                // Blocks above a page need not be aligned to their whole size.
                let align = size.min(4096).max(layout.align());
                let Some(start) = state.next.checked_next_multiple_of(align) else { return null_mut() };
                match start.checked_add(size) {
                    Some(end) if end <= state.end => state.next = end,
                    _ => return null_mut(),
                }
                start
            }
            head => {
                // SAFETY: a block on a free list starts with the address of the next one.
                state.free[class] = unsafe { *(head as *const usize) };
                head
            }
        };
        state.used += size;
        block as *mut u8
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let (size, class) = class(layout);
        let mut state = self.lock();
        // SAFETY: the caller gives back a block of this class, which has room for a link.
        unsafe { *(block as *mut usize) = state.free[class] };
        state.free[class] = block as usize;
        state.used -= size;
    }
}
