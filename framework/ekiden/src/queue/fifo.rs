//! The queue in order of arrival.

use alloc::collections::VecDeque;
use core::fmt;

use super::{INITIAL_CAPACITY, claim_first};
use crate::{Cx, Schedulable, TaskId};

/// Tokens in order of arrival.
///
/// ```
/// use ekiden::prelude::*;
///
/// struct Example(SpinLock<FifoQueue<Self>>);
///
/// #[policy]
/// impl Scheduler for Example {
/// #     fn new(_: &Env) -> Self { Self(SpinLock::new(FifoQueue::new())) }
///     fn enqueue(&self, _: &Cx, task: &Task, token: Schedulable<Self>) {
///         let mut queue = self.0.lock();
///         // Task 5 is urgent.
///         if task.id.slot == 5 { queue.push_front(token) } else { queue.push_back(token) }
///         assert!(!queue.is_empty() && queue.iter().len() == queue.len());
///     }
///
///     fn pick_next_task(&self, cx: &Cx, _: CpuId) -> Option<Schedulable<Self>> {
///         let mut queue = self.0.lock();
///         match queue.front()?.task().slot {
///             5 => queue.pop_front(),
///             _ => queue.claim_first(cx),
///         }
///     }
///
///     fn cpu_offline(&self, _: &Cx, _: CpuId) {
///         let last = self.0.lock().pop_back();
///         assert_eq!(last.map(|token| token.task().slot), Some(6));
///     }
///
///     fn task_departed(&self, _: &Cx, task: &Task) -> Option<Schedulable<Self>> {
///         self.0.lock().remove(task.id)
///     }
/// }
///
/// let mut machine = ekiden_example_host::Machine::<Example>::flat(2);
/// for task in 2..=6 {
///     machine.wake(task, 0);
/// }
/// assert_eq!([machine.pick(0), machine.pick(1), machine.pick(0)], [Some(5), Some(2), Some(3)]);
/// // Tasks 4 and 6 wait. The last goes, and then whichever is asked for.
/// machine.call(ekiden::Call::CpuOffline, 0, 0);
/// machine.call(ekiden::Call::TaskDeparted, 4, 0);
/// assert_eq!(machine.pick(0), None);
/// ```
pub struct FifoQueue<P> {
    tokens: VecDeque<Schedulable<P>>,
}

impl<P> FifoQueue<P> {
    /// An empty queue.
    pub fn new() -> Self {
        Self { tokens: VecDeque::with_capacity(INITIAL_CAPACITY) }
    }

    /// Puts a token behind all others. O(1), apart from growing.
    #[inline]
    pub fn push_back(&mut self, token: Schedulable<P>) {
        self.tokens.push_back(token);
    }

    /// Puts a token before all others. O(1), apart from growing.
    #[inline]
    pub fn push_front(&mut self, token: Schedulable<P>) {
        self.tokens.push_front(token);
    }

    /// Takes the first token out. O(1).
    #[inline]
    pub fn pop_front(&mut self) -> Option<Schedulable<P>> {
        self.tokens.pop_front()
    }

    /// Takes out the first token that can be [claimed](Cx::claim) for the CPU of the call. Tokens before it keep their places;
    /// what is worthless among them is dropped. O(1) if it is the first, and otherwise one question for each of those before it.
    #[inline]
    pub fn claim_first(&mut self, cx: &Cx<'_>) -> Option<Schedulable<P>> {
        let first = self.tokens.pop_front()?;
        if first.cpu() == cx.cpu() {
            return Some(first);
        }
        self.tokens.push_front(first);
        self.claim_after(cx)
    }

    #[inline(never)]
    fn claim_after(&mut self, cx: &Cx<'_>) -> Option<Schedulable<P>> {
        claim_first(&mut self.tokens, |token| {
            cx.claim(token).map_err(|refused| refused.reason.token_is_good().then_some(refused.token))
        })
    }

    /// Takes the last token out, which is the one to give to another CPU. O(1).
    #[inline]
    pub fn pop_back(&mut self) -> Option<Schedulable<P>> {
        self.tokens.pop_back()
    }

    /// The first token.
    #[inline]
    pub fn front(&self) -> Option<&Schedulable<P>> {
        self.tokens.front()
    }

    /// Takes the token of `task` out, the foremost if there are several. O(n).
    pub fn remove(&mut self, task: TaskId) -> Option<Schedulable<P>> {
        let index = self.tokens.iter().position(|token| token.task() == task)?;
        self.tokens.remove(index)
    }

    /// How many tokens there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no token.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The tokens, first to last.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Schedulable<P>> + ExactSizeIterator {
        self.tokens.iter()
    }
}

impl<P> Default for FifoQueue<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P> fmt::Debug for FifoQueue<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.tokens).finish()
    }
}
