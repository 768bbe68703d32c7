//! What an arena promises, one promise at a time, and then all of them against the plainest model.

use std::{boxed::Box, panic, string::ToString, vec, vec::Vec};

use super::*;
use crate::kernel_fakes::{ON_LOOK, PATIENCE, calls};

/// An arena whose memory begins so far behind an address that is aligned to 64 KiB.
fn arena(offset: usize, len: usize) -> Box<Arena> {
    const ALIGN: usize = 1 << 16;
    let memory = vec![0_u8; len + offset + ALIGN].leak().as_mut_ptr();
    let start = memory.wrapping_add(memory.align_offset(ALIGN) + offset);
    let arena = Box::new(Arena::new());
    // SAFETY: the memory is leaked, and given to this arena only.
    unsafe { arena.reset(start, len) };
    arena
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// The address of a block, `None` if there is none.
fn take(arena: &Arena, layout: Layout) -> Option<usize> {
    // SAFETY: an arena takes any layout, also one of no bytes.
    let block = unsafe { arena.alloc(layout) };
    (!block.is_null()).then_some(block as usize)
}

fn give_back(arena: &Arena, block: usize, layout: Layout) {
    // SAFETY: each test gives back what it has taken, once, with the same layout.
    unsafe { arena.dealloc(block as *mut u8, layout) };
}

#[test]
fn an_arena_without_memory_has_no_block() {
    let arena = Arena::new();
    for (size, align) in [(0, 1), (1, 1), (16, 16), (4096, 4096), (1 << 20, 1 << 16)] {
        assert_eq!(take(&arena, layout(size, align)), None, "{size} bytes aligned to {align}");
    }
    assert_eq!(arena.used(), 0);
}

#[test]
fn blocks_are_aligned_as_asked_wherever_the_memory_begins() {
    for offset in [0, 1, 7, 16, 4095] {
        let arena = arena(offset, 1 << 22);
        for align in (0..=16).map(|bit| 1_usize << bit) {
            for size in [1, align - 1, align, align + 1, 3 * align] {
                let block = take(&arena, layout(size.max(1), align)).unwrap();
                assert_eq!(block % align, 0, "{size} bytes aligned to {align}, memory at offset {offset}");
            }
        }
    }
}

#[test]
fn a_block_that_is_used_again_is_aligned_as_asked_too() {
    // The second block of two pages begins in the middle of what is aligned to two pages.
    let arena = arena(4096, 1 << 20);
    let (loose, strict) = (layout(8192, 8), layout(8192, 8192));
    let first = take(&arena, loose).unwrap();
    assert_ne!(first % 8192, 0, "the block that is to be used again is aligned to less");
    give_back(&arena, first, loose);
    let second = take(&arena, strict).unwrap();
    assert_eq!(second % 8192, 0);
    // It is found behind the other one, which stays on the list.
    give_back(&arena, second, strict);
    assert_eq!(take(&arena, loose), Some(second));
    assert_eq!(take(&arena, strict).map(|block| block % 8192), Some(0));
    assert_eq!(take(&arena, loose), Some(first));
}

#[test]
fn an_aligned_block_is_taken_out_of_the_middle_of_its_list() {
    let arena = arena(4096, 1 << 20);
    let (loose, strict) = (layout(8192, 8), layout(8192, 8192));
    let below = take(&arena, loose).unwrap();
    let aligned = take(&arena, strict).unwrap();
    let above = take(&arena, loose).unwrap();
    // Not all three can begin at a multiple of two pages unless the middle one left a gap.
    give_back(&arena, below, loose);
    give_back(&arena, aligned, strict);
    give_back(&arena, above, loose);
    let used_again: Vec<_> = [strict, strict].iter().map(|layout| take(&arena, *layout).unwrap()).collect();
    assert!(used_again.contains(&aligned) && used_again.iter().all(|block| block % 8192 == 0), "{used_again:x?}");
    let rest = take(&arena, loose).unwrap();
    assert!([below, above].contains(&rest) && !used_again.contains(&rest), "no block is on the list twice or lost");
}

#[test]
fn memory_that_is_used_up_gives_no_block_until_one_comes_back() {
    let arena = arena(0, 64 * 16);
    let small = layout(16, 8);
    let blocks: Vec<usize> = core::iter::from_fn(|| take(&arena, small)).collect();
    assert_eq!((blocks.len(), arena.used()), (64, 64 * 16), "all of it is used, to the last byte");
    assert_eq!(take(&arena, layout(1, 1)), None);
    give_back(&arena, blocks[17], small);
    assert_eq!(arena.used(), 63 * 16);
    assert_eq!(take(&arena, small), Some(blocks[17]));
    assert_eq!(take(&arena, small), None);
}

#[test]
fn a_block_that_ends_one_byte_behind_the_memory_is_none() {
    let arena = arena(0, 4095);
    assert_eq!(take(&arena, layout(4096, 1)), None);
    assert_eq!(take(&arena, layout(2048, 1)).map(|block| block % 4096), Some(0), "a refusal takes nothing away");
    assert!(take(&arena, layout(1024, 1)).is_some());
    assert_eq!(take(&arena, layout(1024, 1)), None);
    assert_eq!(arena.used(), 3072);
}

#[test]
fn sizes_that_no_arena_has_are_refused_and_break_nothing() {
    let arena = arena(0, 1 << 16);
    let most = isize::MAX as usize;
    for (size, align) in [(most, 1), (most - 4095, 4096), ((1 << 47) + 1, 1), (1 << 47, 1), (1, 1 << 62), (1, 1 << 47)]
    {
        assert_eq!(take(&arena, layout(size, align)), None, "{size} bytes aligned to {align}");
    }
    assert_eq!(arena.used(), 0);
    assert!(take(&arena, layout(1 << 16, 1)).is_some(), "all of the memory is still there");
}

#[test]
fn memory_at_the_end_of_all_addresses_gives_none_behind_it() {
    let arena = Arena::new();
    // SAFETY: nothing is written to memory that was only cut off.
    unsafe { arena.reset((usize::MAX - 8191) as *mut u8, 8191) };
    assert_eq!(take(&arena, layout(4096, 1)), Some(usize::MAX - 8191));
    assert_eq!(take(&arena, layout(4096, 1)), None);
    assert_eq!(take(&arena, layout(1 << 40, 1)), None);
    assert_eq!(take(&arena, layout(16, 1 << 20)), None);
}

#[test]
fn blocks_of_no_bytes_are_places_of_their_own() {
    let arena = arena(0, 1024);
    let nothing = layout(0, 1);
    let (one, other) = (take(&arena, nothing).unwrap(), take(&arena, nothing).unwrap());
    assert_ne!(one, other);
    give_back(&arena, one, nothing);
    give_back(&arena, other, nothing);
    assert_eq!(arena.used(), 0);
    assert_eq!(take(&arena, layout(16, 16)), Some(other), "they have the smallest size");
}

#[test]
fn blocks_come_back_to_the_list_of_their_size_only() {
    let arena = arena(0, 1 << 16);
    let sizes = [1, 16, 17, 32, 33, 64, 4096, 4097];
    let blocks: Vec<usize> = sizes.iter().map(|size| take(&arena, layout(*size, 1)).unwrap()).collect();
    for (block, size) in blocks.iter().zip(sizes) {
        give_back(&arena, *block, layout(size, 1));
    }
    // The last that came back is the first that goes out. Two sizes of one class share their list.
    for (size, expected) in [(16, 1), (1, 0), (32, 3), (20, 2), (40, 5), (64, 4), (4000, 6), (8192, 7)] {
        assert_eq!(take(&arena, layout(size, 1)), Some(blocks[expected]), "{size} bytes");
    }
}

/// Blocks are never joined: what was cut up small stays small, and is there for its own size in full.
#[test]
fn memory_that_was_cut_up_serves_its_own_sizes_again_without_growing() {
    let arena = arena(0, 1 << 16);
    let layouts = [layout(16, 8), layout(100, 8), layout(700, 64), layout(5000, 8)];
    let round = || -> Vec<usize> { layouts.iter().cycle().map_while(|layout| take(&arena, *layout)).collect() };
    let first = round();
    let used = arena.used();
    for times in 0..20 {
        for (block, layout) in first.iter().zip(layouts.iter().cycle()) {
            give_back(&arena, *block, *layout);
        }
        assert_eq!(arena.used(), 0);
        assert_eq!(take(&arena, layout(1 << 15, 1)), None, "there is no block of half the arena after round {times}");
        let (mut again, mut once) = (round(), first.clone());
        assert_eq!((again.len(), arena.used()), (first.len(), used), "round {times}");
        again.sort_unstable();
        once.sort_unstable();
        assert_eq!(again, once, "round {times}");
    }
}

#[test]
fn what_is_in_blocks_stays_while_others_come_and_go() {
    let arena = arena(0, 1 << 16);
    let mut held: Vec<(usize, Layout, u8)> = Vec::new();
    for turn in 0..2000_usize {
        let layout = layout(turn * 37 % 300 + 1, 1 << (turn % 5));
        if let Some(block) = take(&arena, layout) {
            // SAFETY: the block has room for its layout.
            unsafe { (block as *mut u8).write_bytes(turn as u8, layout.size()) };
            held.push((block, layout, turn as u8));
        }
        if held.len() > 40 {
            let (block, layout, byte) = held.swap_remove(turn * 13 % held.len());
            // SAFETY: it was written when it was taken.
            let bytes = unsafe { core::slice::from_raw_parts(block as *const u8, layout.size()) };
            assert!(bytes.iter().all(|is| *is == byte), "a block of {layout:?} was written by another one");
            give_back(&arena, block, layout);
        }
    }
}

#[test]
fn a_reset_forgets_all_blocks_and_a_lock_that_was_left_taken() {
    let arena = arena(0, 4096);
    let small = layout(16, 8);
    let block = take(&arena, small).unwrap();
    give_back(&arena, block, small);
    // As a call that panicked in the allocator.
    core::mem::forget(arena.state.lock());
    let memory = vec![0_u8; 64].leak();
    // SAFETY: the memory is leaked, and given to this arena only.
    unsafe { arena.reset(memory.as_mut_ptr(), memory.len()) };
    assert_eq!(arena.used(), 0);
    assert!(
        memory.as_ptr_range().contains(&(take(&arena, small).unwrap() as *const u8)),
        "no list leads to the old memory"
    );
}

#[test]
fn another_arena_carries_on_with_all_that_is_used_and_free() {
    let (one, other) = (arena(0, 4096), Arena::new());
    let small = layout(16, 8);
    let (kept, freed) = (take(&one, small).unwrap(), take(&one, small).unwrap());
    give_back(&one, freed, small);
    // SAFETY: nothing is allocated in the first arena any more.
    unsafe { other.adopt(one.blocks()) };
    assert_eq!(other.used(), 16);
    assert_eq!(take(&other, small), Some(freed));
    assert_eq!(take(&other, small), Some(freed + 16), "what was not used yet follows");
    give_back(&other, kept, small);
    assert_eq!(other.used(), 32);
}

#[test]
fn a_call_waits_for_the_lock_and_gets_its_fuel_back() {
    static ARENA: Arena = Arena::new();
    let memory = vec![0_u8; 4096].leak();
    // SAFETY: the memory is leaked, and given to this arena only.
    unsafe { ARENA.reset(memory.as_mut_ptr(), memory.len()) };
    calls();
    assert!(take(&ARENA, layout(16, 8)).is_some());
    assert_eq!(calls(), [], "a lock that is free is not waited for");
    core::mem::forget(ARENA.state.lock());
    // SAFETY: the guard is forgotten, so this is in its place.
    ON_LOOK.set(Some(|| unsafe { ARENA.state.force_unlock() }));
    assert!(take(&ARENA, layout(16, 8)).is_some());
    ON_LOOK.set(None);
    let of = |looks: u64| [1000, looks, 0, 0];
    assert_eq!(calls(), [("begin", of(0)), ("look", of(0)), ("end", of(1))]);
}

#[test]
fn a_call_does_not_wait_for_ever_for_a_holder_that_hangs() {
    let arena = arena(0, 4096);
    let _guard = arena.state.lock();
    PATIENCE.set(3);
    calls();
    let ended = panic::catch_unwind(panic::AssertUnwindSafe(|| take(&arena, layout(16, 8)))).unwrap_err();
    PATIENCE.set(u64::MAX);
    let said = ended.downcast_ref::<&str>().map(|said| said.to_string()).unwrap_or_default();
    assert!(said.contains("was not released in time"), "{said}");
    let names: Vec<_> = calls().iter().map(|call| call.0).collect();
    assert_eq!(names, ["begin", "look", "look", "look", "look"], "it looks as often as it may");
}

/// What an arena has, as the plainest program would keep it: blocks that are free, by their size, and where the rest begins.
struct Model {
    next: usize,
    end: usize,
    free: Vec<(usize, usize)>,
}

impl Model {
    fn size(layout: Layout) -> usize {
        layout.size().max(layout.align()).max(16).next_power_of_two()
    }

    /// The newest free block that fits, or else what is cut off.
    fn take(&mut self, layout: Layout) -> Option<usize> {
        let size = Self::size(layout);
        let fits = |(block, of): &(usize, usize)| *of == size && block % layout.align() == 0;
        if let Some(at) = self.free.iter().rposition(fits) {
            return Some(self.free.remove(at).0);
        }
        let start = self.next.next_multiple_of(size.min(4096).max(layout.align()));
        if start + size > self.end {
            return None;
        }
        self.next = start + size;
        Some(start)
    }
}

#[test]
fn any_order_of_taking_and_giving_back_is_as_in_the_model() {
    // Miri interprets each instruction.
    for seed in 0..if cfg!(miri) { 2 } else { 100 } {
        let mut random = fastrand::Rng::with_seed(seed);
        let (offset, len) = (random.usize(0..5000), random.usize(0..1 << 17));
        let arena = arena(offset, len);
        let Blocks { next, end, .. } = arena.blocks();
        let mut model = Model { next, end, free: Vec::new() };
        let mut held: Vec<(usize, Layout, u8)> = Vec::new();
        for step in 0..300 {
            if random.u8(0..5) < 3 {
                let align = 1_usize << random.u32(0..15).min(random.u32(0..15));
                let most = 1 << random.u32(1..14);
                let layout = layout(random.usize(0..most), align);
                let block = take(&arena, layout);
                assert_eq!(block, model.take(layout), "seed {seed}, step {step}: {layout:?}");
                let Some(block) = block else { continue };
                let ends = block + layout.size();
                assert!(block % align == 0 && block >= next && ends <= end, "seed {seed}, step {step}: {layout:?}");
                // SAFETY: the block has room for its layout.
                unsafe { (block as *mut u8).write_bytes(step as u8, layout.size()) };
                held.push((block, layout, step as u8));
            } else if !held.is_empty() {
                let (block, layout, byte) = held.swap_remove(random.usize(0..held.len()));
                // SAFETY: all of it was written when it was taken.
                let bytes = unsafe { core::slice::from_raw_parts(block as *const u8, layout.size()) };
                assert!(bytes.iter().all(|is| *is == byte), "seed {seed}, step {step}: another block was written here");
                give_back(&arena, block, layout);
                model.free.push((block, Model::size(layout)));
            }
            let used: usize = held.iter().map(|(_, layout, _)| Model::size(*layout)).sum();
            assert_eq!(arena.used(), used, "seed {seed}, step {step}");
        }
    }
}
