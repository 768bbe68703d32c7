//! The balanced tree.

use alloc::{collections::BTreeMap, vec::Vec};
use core::fmt;

use crate::{Cx, Schedulable, TaskId};

/// Tokens in the order of their keys, smallest first, in a balanced tree.
///
/// The first one is kept beside the tree, as the kernel's `rb_root_cached` does: looking at it is O(1), and a queue that
/// never holds more than one token, which is what most CPUs have, never touches the tree.
///
/// ```
/// use ekiden::prelude::*;
///
/// struct Example(SpinLock<TreeQueue<Self, u32>>);
///
/// #[policy]
/// impl Scheduler for Example {
/// #     fn new(_: &Env) -> Self { Self(SpinLock::new(TreeQueue::new())) }
///     fn enqueue(&self, _: &Cx, task: &Task, token: Schedulable<Self>) {
///         let mut queue = self.0.lock();
///         // The smallest PID first.
///         queue.insert(task.pid, token);
///         assert!(!queue.is_empty() && queue.iter().count() == queue.len());
///         assert!(queue.first_key() <= queue.last_key());
///     }
///
///     fn pick_next_task(&self, cx: &Cx, _: CpuId) -> Option<Schedulable<Self>> {
///         let mut queue = self.0.lock();
///         let first = match cx.cpu() {
///             0 => queue.pop_first(),
///             1 => queue.claim_first_of(2, cx),
///             _ => queue.claim_first(cx),
///         };
///         first.map(|(_, token)| token)
///     }
///
///     fn task_departed(&self, _: &Cx, task: &Task) -> Option<Schedulable<Self>> {
///         let mut queue = self.0.lock();
///         // Faster with the key.
///         let found = queue.remove_at(&task.pid, task.id);
///         found.or_else(|| queue.remove(task.id).map(|(_, token)| token))
///     }
/// }
///
/// let mut machine = ekiden_example_host::Machine::<Example>::flat(2);
/// for task in [7, 3, 5, 4] {
///     machine.wake(task, 0);
/// }
/// let departed = [4, 5].map(|task| machine.call(ekiden::Call::TaskDeparted, task, 0).token.task.slot);
/// assert_eq!((departed, machine.pick(1), machine.pick(0)), ([4, 5], Some(3), Some(7)));
/// ```
pub struct TreeQueue<P, K> {
    /// Not after anything in `rest`; `None` only if that is empty.
    first: Option<(Place<K>, Schedulable<P>)>,
    rest: BTreeMap<Place<K>, Schedulable<P>>,
    inserted: u64,
}

/// The number after the key counts insertions: it keeps equal keys apart, in the order in which they came. At one
/// insertion per nanosecond it lasts for centuries.
type Place<K> = (K, u64);

impl<P, K: Ord> TreeQueue<P, K> {
    /// An empty queue.
    pub const fn new() -> Self {
        Self { first: None, rest: BTreeMap::new(), inserted: 0 }
    }

    /// Puts a token behind all whose keys are not larger. O(log n); O(1) into an empty queue.
    #[inline]
    pub fn insert(&mut self, key: K, token: Schedulable<P>) {
        self.inserted += 1;
        let new = ((key, self.inserted), token);
        let later = match self.first.take() {
            None => return self.first = Some(new),
            Some(first) if first.0 <= new.0 => {
                self.first = Some(first);
                new
            }
            Some(first) => {
                self.first = Some(new);
                first
            }
        };
        // The count is new, so there is never an older token in this place to lose.
        self.rest.insert(later.0, later.1);
    }

    /// Takes the token with the smallest key out. O(log n); O(1) if it is the only one.
    #[inline]
    pub fn pop_first(&mut self) -> Option<(K, Schedulable<P>)> {
        let ((key, _), token) = self.first.take()?;
        if !self.rest.is_empty() {
            self.first = self.rest.pop_first();
        }
        Some((key, token))
    }

    /// Takes out the token with the smallest key of those that can be [claimed](Cx::claim) for the CPU of the call. The others keep
    /// their places; what is worthless of those before it is dropped. O(log n), and a question, for each that is for another CPU.
    pub fn claim_first(&mut self, cx: &Cx<'_>) -> Option<(K, Schedulable<P>)> {
        self.claim_first_of(usize::MAX, cx)
    }

    /// Looks at the first `most` tokens only, so that a call stays short where many wait that may not run here.
    pub fn claim_first_of(&mut self, most: usize, cx: &Cx<'_>) -> Option<(K, Schedulable<P>)> {
        let mut passed = Vec::new();
        let mut claimed = None;
        for _ in 0..most {
            let Some((place, token)) = self.first.take() else { break };
            self.first = if self.rest.is_empty() { None } else { self.rest.pop_first() };
            match cx.claim(token) {
                Ok(token) => {
                    claimed = Some((place.0, token));
                    break;
                }
                Err(refused) if refused.reason.token_is_good() => passed.push((place, refused.token)),
                Err(_) => {}
            }
        }
        // None of them was after what is the first now.
        if !passed.is_empty() {
            self.rest.extend(passed.into_iter().chain(self.first.take()));
            self.first = self.rest.pop_first();
        }
        claimed
    }

    /// The smallest key. O(1).
    #[inline]
    pub fn first_key(&self) -> Option<&K> {
        self.first.as_ref().map(|((key, _), _)| key)
    }

    /// The largest key. O(log n).
    #[inline]
    pub fn last_key(&self) -> Option<&K> {
        self.rest.last_key_value().map(|((key, _), _)| key).or(self.first_key())
    }

    /// Takes the token of `task` out, the foremost if there are several. O(n); with its key at hand,
    /// [`remove_at`](Self::remove_at) is faster.
    pub fn remove(&mut self, task: TaskId) -> Option<(K, Schedulable<P>)>
    where
        K: Clone,
    {
        if self.first.as_ref()?.1.task() == task {
            return self.pop_first();
        }
        let place = self.rest.iter().find(|(_, token)| token.task() == task)?.0.clone();
        self.rest.remove_entry(&place).map(|((key, _), token)| (key, token))
    }

    /// Takes the token of `task` out if it is here under `key`; of several, the first of the queue or else the last.
    /// O(log n), plus the number of tokens with that key behind it.
    pub fn remove_at(&mut self, key: &K, task: TaskId) -> Option<Schedulable<P>>
    where
        K: Clone,
    {
        let ((first_key, _), first) = self.first.as_ref()?;
        if first.task() == task && first_key == key {
            return self.pop_first().map(|(_, token)| token);
        }
        let same_key = (key.clone(), 0)..=(key.clone(), u64::MAX);
        // From the back, where policies take what they move to another CPU.
        let place = self.rest.range(same_key).rev().find(|(_, token)| token.task() == task)?.0.clone();
        self.rest.remove(&place)
    }

    /// How many tokens there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.rest.len() + usize::from(self.first.is_some())
    }

    /// Whether there is no token.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The keys and tokens, smallest key first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &Schedulable<P>)> {
        let first = self.first.iter().map(|((key, _), token)| (key, token));
        first.chain(self.rest.iter().map(|((key, _), token)| (key, token)))
    }
}

impl<P, K: Ord> Default for TreeQueue<P, K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P, K: Ord + fmt::Debug> fmt::Debug for TreeQueue<P, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
