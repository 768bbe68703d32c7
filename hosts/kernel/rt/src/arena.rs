//! The allocator: one block of memory, taken before the policy starts.
//!
//! Scheduling calls run under a run-queue lock, where the kernel's own allocator must not be called: it can wake a
//! task and deadlock. Blocks have power-of-two sizes and go back to a list of their size, so that allocating and
//! freeing take a handful of instructions. Free blocks are looked through only for alignments above a page.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;

use spin::mutex::{SpinMutex, SpinMutexGuard};

use crate::wait::{GO_ON, Wait};

/// Smallest block, in bytes: room for the link of its free list.
const SMALLEST: usize = 16;
/// Number of block sizes: up to 2^47 bytes.
const CLASSES: usize = 48;
/// Blocks up to this size, in bytes, are aligned to all of it, and larger ones to this, unless more is asked for.
const PAGE: usize = 4096;

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

    /// The holder needs but a few instructions, if its CPU runs.
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
    /// The memory is readable and writable, is used by nothing else until the next reset, and no reference into the
    /// old memory is used again.
    pub unsafe fn reset(&self, base: *mut u8, len: usize) {
        // SAFETY: the caller promises the memory. All of it counts as not yet carved, so no list leads out of it.
        unsafe {
            self.adopt(Blocks { next: base as usize, end: base as usize + len, used: 0, free: [0; CLASSES] });
        }
    }

    /// Everything that was allocated and what is left, for another arena to go on with.
    pub fn blocks(&self) -> Blocks {
        *self.lock()
    }

    /// Continues where another arena stopped. Whatever was allocated here before is forgotten.
    ///
    /// # Safety
    ///
    /// As for [`reset`](Self::reset); and nothing is allocated in the other arena any more.
    pub unsafe fn adopt(&self, blocks: Blocks) {
        // SAFETY: nothing is allocated here meanwhile, so no call has a guard of the lock that is broken open.
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

/// The size of a block for this layout, and the list that it goes back to.
fn class(layout: Layout) -> (usize, usize) {
    let size = layout.size().max(layout.align()).max(SMALLEST).next_power_of_two();
    (size, size.trailing_zeros() as usize)
}

impl Blocks {
    /// Takes a block off the list of a class.
    #[inline]
    fn take(&mut self, class: usize, align: usize) -> Option<usize> {
        let block = self.free[class];
        if block & (align - 1) != 0 {
            return self.look_for(class, align);
        }
        if block == 0 {
            return None;
        }
        // SAFETY: a block on a list is free and begins with the address of the next one.
        self.free[class] = unsafe { *(block as *const usize) };
        Some(block)
    }

    /// Some blocks above a page are aligned to a page only: takes the first that is aligned to more.
    #[cold]
    #[inline(never)]
    fn look_for(&mut self, class: usize, align: usize) -> Option<usize> {
        let mut link: *mut usize = &mut self.free[class];
        loop {
            // SAFETY: `link` is the head of a list or the first word of a free block on it, which only lists use.
            let block = unsafe { *link };
            if block == 0 {
                return None;
            }
            let next = block as *mut usize;
            if block & (align - 1) == 0 {
                // SAFETY: `link` is the head of the list or in a free block, and `next` begins one. Who has `self` has the lock,
                // so no other CPU changes either.
                unsafe { *link = *next };
                return Some(block);
            }
            link = next;
        }
    }

    /// Cuts a block off the memory that was never used.
    fn carve(&mut self, size: usize, align: usize) -> Option<usize> {
        let start = self.next.checked_next_multiple_of(size.min(PAGE).max(align))?;
        let end = start.checked_add(size).filter(|end| *end <= self.end)?;
        self.next = end;
        Some(start)
    }
}

// SAFETY: blocks lie inside the arena and do not overlap: each is cut off once, and is on one list or in use. `take` and `carve`
// give one that is aligned as asked. The lock keeps CPUs apart; interrupts are off in scheduling calls, so a CPU does not meet
// itself.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, class) = class(layout);
        if class >= CLASSES {
            return null_mut();
        }
        let mut state = self.lock();
        let block = match state.take(class, layout.align()) {
            Some(block) => block,
            None => match state.carve(size, layout.align()) {
                Some(block) => block,
                None => return null_mut(),
            },
        };
        state.used += size;
        block as *mut u8
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let (size, class) = class(layout);
        let mut state = self.lock();
        // SAFETY: the caller gives back a block that `alloc` made for this layout and uses it no more. It has room for a link and is
        // aligned for one: the smallest block has 16 bytes.
        unsafe { *(block as *mut usize) = state.free[class] };
        state.free[class] = block as usize;
        state.used -= size;
    }
}

#[cfg(test)]
#[path = "arena_tests.rs"]
mod tests;
