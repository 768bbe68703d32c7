//! Tasks whose groups have used up their CPU time: two queues a group, one of groups that have time again, and one of tasks
//! that are released although theirs have none.
//!
//! A task that was released but did not have a turn before the time was used up again goes before those that
//! had one. Otherwise one task that spins could use up every period, under a policy that is first come,
//! first served. For the same reason a task that was not released while there was time keeps its place.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// No task, or no queue.
const NONE: u32 = u32::MAX;

/// The root is never out of time, so that its queue is free for those that are released.
const RELEASED: u32 = 0;

#[derive(Debug)]
pub(super) struct ThrottledQueues {
    /// The neighbours of each throttled task, by the task's index.
    links: Vec<Link>,
    /// By group: the tasks that did not have a turn, and those that had one.
    queues: Vec<Queue>,
    /// Groups whose tasks are released, one of each in turn. Has room for all, and each is in it once at most.
    due: VecDeque<u32>,
    is_due: Vec<bool>,
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
    len: u32,
}

impl ThrottledQueues {
    pub(super) fn new(groups: u32, tasks: u32) -> Self {
        Self {
            links: alloc::vec![Link { next: NONE, previous: NONE, queue: NONE }; tasks as usize],
            queues: alloc::vec![Queue { first: NONE, last: NONE, len: 0 }; 2 * groups as usize],
            due: VecDeque::with_capacity(groups as usize),
            is_due: alloc::vec![false; groups as usize],
            len: 0,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn throttle(&mut self, index: u32, group: u32, served: bool) {
        self.take_out(index);
        self.append(index, 2 * group + u32::from(served));
    }

    fn append(&mut self, index: u32, queue: u32) {
        let last = self.queues[queue as usize].last;
        self.links[index as usize] = Link { next: NONE, previous: last, queue };
        self.queues[queue as usize].last = index;
        self.queues[queue as usize].len += 1;
        match last {
            NONE => self.queues[queue as usize].first = index,
            last => self.links[last as usize].next = index,
        }
        self.len += 1;
    }

    pub(super) fn take_out(&mut self, index: u32) {
        let Link { next, previous, queue } = self.links[index as usize];
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
        self.links[index as usize].queue = NONE;
        self.queues[queue as usize].len -= 1;
        self.len -= 1;
    }

    /// The tasks of a group are released from now on, as they are asked for. Says how many they are.
    pub(super) fn release(&mut self, group: u32) -> u32 {
        if !core::mem::replace(&mut self.is_due[group as usize], true) {
            self.due.push_back(group);
        }
        self.queues[2 * group as usize].len + self.queues[2 * group as usize + 1].len
    }

    /// The task of a group that is released next.
    pub(super) fn first(&self, group: u32) -> Option<u32> {
        let firsts = [2 * group, 2 * group + 1].map(|queue| self.queues[queue as usize].first);
        firsts.into_iter().find(|index| *index != NONE)
    }

    pub(super) fn release_one(&mut self, index: u32) {
        self.take_out(index);
        self.append(index, RELEASED);
    }

    /// The next task that is released. Tasks of a group that again `has_no_time` stay until it is released anew.
    pub(super) fn next_released(&mut self, has_no_time: impl Fn(u32) -> bool) -> Option<u32> {
        if let Some(index) = self.pop(RELEASED) {
            return Some(index);
        }
        while let Some(group) = self.due.pop_front() {
            let next = if has_no_time(group) { None } else { self.first(group) };
            if let Some(index) = next {
                self.due.push_back(group);
                self.take_out(index);
                return Some(index);
            }
            self.is_due[group as usize] = false;
        }
        None
    }

    /// Whether there may be another one.
    pub(super) fn releases(&self) -> bool {
        self.queues[RELEASED as usize].first != NONE || !self.due.is_empty()
    }

    fn pop(&mut self, queue: u32) -> Option<u32> {
        let index = self.queues[queue as usize].first;
        if index == NONE {
            return None;
        }
        self.take_out(index);
        Some(index)
    }
}
