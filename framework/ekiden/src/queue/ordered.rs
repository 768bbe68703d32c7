//! The ordered list.

use alloc::collections::VecDeque;
use core::fmt;

use super::{INITIAL_CAPACITY, claim_first};
use crate::{Cx, Schedulable, TaskId};

/// Tokens in the order of their keys, smallest first, as one list without gaps. Faster than a
/// [`TreeQueue`](crate::TreeQueue) while a queue holds up to some dozens of tokens, and never allocates once it has
/// grown to its largest length.
///
/// ```
/// use ekiden::prelude::*;
///
/// struct Example(SpinLock<OrderedQueue<Self, u32>>);
///
/// #[policy]
/// impl Scheduler for Example {
/// #     fn new(_: &Env) -> Self { Self(SpinLock::new(OrderedQueue::new())) }
///     fn enqueue(&self, _: &Cx, task: &Task, token: Schedulable<Self>) {
///         let mut queue = self.0.lock();
///         // The smallest PID first.
///         queue.insert(task.pid, token);
///         assert!(!queue.is_empty() && queue.iter().len() == queue.len());
///     }
///
///     fn pick_next_task(&self, cx: &Cx, _: CpuId) -> Option<Schedulable<Self>> {
///         let mut queue = self.0.lock();
///         let is_for_here = queue.first()?.1.cpu() == cx.cpu();
///         let first = if is_for_here { queue.pop_front() } else { queue.claim_first(cx) };
///         first.map(|(_, token)| token)
///     }
///
///     fn task_departed(&self, _: &Cx, task: &Task) -> Option<Schedulable<Self>> {
///         self.0.lock().remove(task.id).map(|(_, token)| token)
///     }
/// }
///
/// let mut machine = ekiden_example_host::Machine::<Example>::flat(2);
/// for task in [7, 3, 5] {
///     machine.wake(task, 0);
/// }
/// let departed = machine.call(ekiden::Call::TaskDeparted, 5, 0).token;
/// assert_eq!((departed.task.slot, machine.pick(1), machine.pick(0)), (5, Some(3), Some(7)));
/// ```
pub struct OrderedQueue<P, K> {
    entries: VecDeque<(K, Schedulable<P>)>,
}

impl<P, K: Ord> OrderedQueue<P, K> {
    /// An empty queue.
    pub fn new() -> Self {
        Self { entries: VecDeque::with_capacity(INITIAL_CAPACITY) }
    }

    /// Puts a token behind all whose keys are not larger. O(log n) comparisons, and at most n ÷ 2 entries move; none
    /// if the key is the largest.
    pub fn insert(&mut self, key: K, token: Schedulable<P>) {
        if self.entries.back().is_none_or(|(last, _)| *last <= key) {
            self.entries.push_back((key, token));
        } else {
            let index = self.entries.partition_point(|(other, _)| *other <= key);
            self.entries.insert(index, (key, token));
        }
    }

    /// Takes the token with the smallest key out. O(1).
    #[inline]
    pub fn pop_front(&mut self) -> Option<(K, Schedulable<P>)> {
        self.entries.pop_front()
    }

    /// Takes out the token with the smallest key of those that can be [claimed](Cx::claim) for the CPU of the call. The others keep
    /// their places; what is worthless of those before it is dropped. One question for each of them that is for another CPU.
    pub fn claim_first(&mut self, cx: &Cx<'_>) -> Option<(K, Schedulable<P>)> {
        claim_first(&mut self.entries, |(key, token)| match cx.claim(token) {
            Ok(token) => Ok((key, token)),
            Err(refused) => Err(refused.reason.token_is_good().then_some((key, refused.token))),
        })
    }

    /// The token with the smallest key, and the key. O(1).
    #[inline]
    pub fn first(&self) -> Option<(&K, &Schedulable<P>)> {
        self.entries.front().map(|(key, token)| (key, token))
    }

    /// Takes the token of `task` out, the foremost if there are several. O(n).
    pub fn remove(&mut self, task: TaskId) -> Option<(K, Schedulable<P>)> {
        let index = self.entries.iter().position(|(_, token)| token.task() == task)?;
        self.entries.remove(index)
    }

    /// How many tokens there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no token.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The keys and tokens, smallest key first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &Schedulable<P>)> + ExactSizeIterator {
        self.entries.iter().map(|(key, token)| (key, token))
    }
}

impl<P, K: Ord> Default for OrderedQueue<P, K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P, K: Ord + fmt::Debug> fmt::Debug for OrderedQueue<P, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.entries).finish()
    }
}
