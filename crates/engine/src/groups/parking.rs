//! Tasks whose groups have used up their CPU time: two queues a group, and one of those that are released.
//!
//! Who was released but did not have a turn before the time was used up again goes before those who had one. Otherwise one
//! task that spins could use up every period, under a policy that serves first who came first.

use alloc::vec::Vec;

/// No task, or no queue.
const NONE: u32 = u32::MAX;

/// The root is never out of time, so that its queue is free for those that are released.
const RELEASED: u32 = 0;

#[derive(Debug)]
pub(super) struct Parking {
    /// By slot.
    links: Vec<Link>,
    /// Of each group: those who did not have a turn, and those who had.
    queues: Vec<Queue>,
    len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    previous: u32,
    queue: u32,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
}

impl Parking {
    pub(super) fn new(groups: u32, tasks: u32) -> Self {
        Self {
            links: alloc::vec![Link { next: NONE, previous: NONE, queue: NONE }; tasks as usize],
            queues: alloc::vec![Queue { first: NONE, last: NONE }; 2 * groups as usize],
            len: 0,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn park(&mut self, slot: u32, group: u32, served: bool) {
        self.take_out(slot);
        self.append(slot, 2 * group + u32::from(served));
    }

    fn append(&mut self, slot: u32, queue: u32) {
        let last = self.queues[queue as usize].last;
        self.links[slot as usize] = Link { next: NONE, previous: last, queue };
        self.queues[queue as usize].last = slot;
        match last {
            NONE => self.queues[queue as usize].first = slot,
            last => self.links[last as usize].next = slot,
        }
        self.len += 1;
    }

    pub(super) fn take_out(&mut self, slot: u32) {
        let Link { next, previous, queue } = self.links[slot as usize];
        if queue == NONE {
            return;
        }
        match previous {
            NONE => self.queues[queue as usize].first = next,
            previous => self.links[previous as usize].next = next,
        }
        match next {
            NONE => self.queues[queue as usize].last = previous,
            next => self.links[next as usize].previous = previous,
        }
        self.links[slot as usize].queue = NONE;
        self.len -= 1;
    }

    /// Releases all tasks of a group, and says how many they are.
    pub(super) fn release(&mut self, group: u32) -> u32 {
        let mut count = 0;
        for queue in [2 * group, 2 * group + 1] {
            while let Some(slot) = self.pop(queue) {
                self.append(slot, RELEASED);
                count += 1;
            }
        }
        count
    }

    /// Who is released next of a group's tasks.
    pub(super) fn first(&self, group: u32) -> Option<u32> {
        let firsts = [2 * group, 2 * group + 1].map(|queue| self.queues[queue as usize].first);
        firsts.into_iter().find(|slot| *slot != NONE)
    }

    pub(super) fn release_one(&mut self, slot: u32) {
        self.take_out(slot);
        self.append(slot, RELEASED);
    }

    pub(super) fn next_released(&mut self) -> Option<u32> {
        self.pop(RELEASED)
    }

    fn pop(&mut self, queue: u32) -> Option<u32> {
        let slot = self.queues[queue as usize].first;
        if slot == NONE {
            return None;
        }
        self.take_out(slot);
        Some(slot)
    }
}
