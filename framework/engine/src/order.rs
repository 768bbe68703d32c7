//! The order in which policies are asked, as one word: a CPU that looks for work reads it once, and has all of the old one or all of the new.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::policy_slots::POLICY_SLOTS;

/// Behind the last policy slot.
const END: u64 = 0xff;

/// Policy slots, one behind the other. A byte each, from the lowest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order(u64);

impl Order {
    pub(crate) const NONE: Self = Self(u64::MAX);

    /// Policy slot 0 alone.
    pub(crate) const FIRST: Self = Self(u64::MAX << 8);

    /// More policy slots than there are do not fit.
    pub(crate) fn of(policy_slots: impl Iterator<Item = usize>) -> Self {
        let place = |word, (rank, policy_slot): (usize, usize)| {
            word & !(END << (8 * rank)) | ((policy_slot % POLICY_SLOTS) as u64) << (8 * rank)
        };
        Self(policy_slots.take(POLICY_SLOTS).enumerate().fold(Self::NONE.0, place))
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        POLICY_SLOTS - (!self.0).leading_zeros() as usize / 8
    }

    /// The policy slots; what is behind the last one is none.
    #[inline]
    pub(crate) fn to_bytes(self) -> [u8; POLICY_SLOTS] {
        self.0.to_le_bytes()
    }

    #[inline]
    pub(crate) fn policy_slots(self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator {
        self.to_bytes().into_iter().take(self.len()).map(usize::from)
    }

    pub(crate) fn contains(self, policy_slot: usize) -> bool {
        self.policy_slots().any(|other| other == policy_slot)
    }

    pub(crate) fn get(self, rank: usize) -> Option<usize> {
        self.policy_slots().nth(rank)
    }

    /// The order rotated so that the policy at `rank` comes first; those before it are last.
    pub(crate) fn begun_at(self, rank: usize) -> Self {
        Self::of(self.policy_slots().skip(rank).chain(self.policy_slots().take(rank)))
    }
}

/// One that is read while another is put in its place.
#[derive(Debug)]
pub(crate) struct Published(AtomicU64);

impl Default for Published {
    fn default() -> Self {
        Self(AtomicU64::new(Order::NONE.0))
    }
}

impl Published {
    #[inline]
    pub(crate) fn get(&self) -> Order {
        Order(self.0.load(Acquire))
    }

    /// Readers have it in their own time; after a grace period all of them do.
    pub(crate) fn publish(&self, order: Order) {
        self.0.store(order.0, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn an_order_has_the_policy_slots_that_it_was_made_of() {
        for policy_slots in [&[][..], &[0], &[7], &[3, 0, 7], &[7, 6, 5, 4, 3, 2, 1, 0]] {
            let order = Order::of(policy_slots.iter().copied());
            assert_eq!(order.policy_slots().collect::<Vec<_>>(), policy_slots);
            assert_eq!(order.len(), policy_slots.len());
            assert!(
                (0..POLICY_SLOTS).all(|policy_slot| order.contains(policy_slot) == policy_slots.contains(&policy_slot))
            );
            assert_eq!(order.get(0), policy_slots.first().copied());
            assert_eq!(order.get(POLICY_SLOTS), None);
        }
    }

    #[test]
    fn another_one_goes_first() {
        let order = Order::of([3, 0, 7].into_iter());
        let policy_slots = |rank| order.begun_at(rank).policy_slots().collect::<Vec<_>>();
        assert_eq!(
            [policy_slots(0), policy_slots(1), policy_slots(2), policy_slots(3), policy_slots(8)],
            [[3, 0, 7], [0, 7, 3], [7, 3, 0], [3, 0, 7], [3, 0, 7]]
        );
    }
}
