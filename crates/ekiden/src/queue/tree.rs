//! The balanced tree.

use alloc::collections::BTreeMap;
use core::fmt;

use crate::{Schedulable, TaskId};

/// Tokens in the order of their keys, smallest first, in a balanced tree.
pub struct TreeQueue<P, K> {
    /// The number after the key counts insertions: it keeps equal keys apart, in the order in which they came. At one
    /// insertion per nanosecond it lasts for centuries.
    tokens: BTreeMap<(K, u64), Schedulable<P>>,
    inserted: u64,
}

impl<P, K: Ord> TreeQueue<P, K> {
    /// An empty queue.
    pub const fn new() -> Self {
        Self { tokens: BTreeMap::new(), inserted: 0 }
    }

    /// Puts a token behind all whose keys are not larger. O(log n).
    #[inline]
    pub fn insert(&mut self, key: K, token: Schedulable<P>) {
        self.inserted += 1;
        // The count is new, so there is never an older token under this key to lose.
        self.tokens.insert((key, self.inserted), token);
    }

    /// Takes the token with the smallest key out. O(log n).
    #[inline]
    pub fn pop_first(&mut self) -> Option<(K, Schedulable<P>)> {
        self.tokens.pop_first().map(|((key, _), token)| (key, token))
    }

    /// The smallest key. O(log n).
    #[inline]
    pub fn first_key(&self) -> Option<&K> {
        self.tokens.first_key_value().map(|((key, _), _)| key)
    }

    /// The largest key. O(log n).
    #[inline]
    pub fn last_key(&self) -> Option<&K> {
        self.tokens.last_key_value().map(|((key, _), _)| key)
    }

    /// Takes the token of `task` out, the foremost if there are several. O(n); with its key at hand,
    /// [`remove_at`](Self::remove_at) is faster.
    pub fn remove(&mut self, task: TaskId) -> Option<(K, Schedulable<P>)>
    where
        K: Clone,
    {
        let place = self.tokens.iter().find(|(_, token)| token.task() == task)?.0.clone();
        self.tokens.remove_entry(&place).map(|((key, _), token)| (key, token))
    }

    /// Takes the token of `task` out if it is here under `key`. O(log n), plus the number of tokens with that key.
    pub fn remove_at(&mut self, key: &K, task: TaskId) -> Option<Schedulable<P>>
    where
        K: Clone,
    {
        let same_key = (key.clone(), 0)..=(key.clone(), u64::MAX);
        let place = self.tokens.range(same_key).find(|(_, token)| token.task() == task)?.0.clone();
        self.tokens.remove(&place)
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

    /// The keys and tokens, smallest key first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &Schedulable<P>)> + ExactSizeIterator {
        self.tokens.iter().map(|((key, _), token)| (key, token))
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
