//! The order in which policies are asked, as one word: a CPU that looks for work reads it once, and has all of the old one or all of the new.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::seats::SEATS;

/// Behind the last seat.
const END: u64 = 0xff;

/// Seats, one behind the other. A byte each, from the lowest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order(u64);

impl Order {
    pub(crate) const NONE: Self = Self(u64::MAX);

    /// Seat 0 alone.
    pub(crate) const FIRST: Self = Self(u64::MAX << 8);

    /// More seats than there are do not fit.
    pub(crate) fn of(seats: impl Iterator<Item = usize>) -> Self {
        let place =
            |word, (rank, seat): (usize, usize)| word & !(END << (8 * rank)) | ((seat % SEATS) as u64) << (8 * rank);
        Self(seats.take(SEATS).enumerate().fold(Self::NONE.0, place))
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        SEATS - (!self.0).leading_zeros() as usize / 8
    }

    /// The seats; what is behind the last one is none.
    #[inline]
    pub(crate) fn to_bytes(self) -> [u8; SEATS] {
        self.0.to_le_bytes()
    }

    #[inline]
    pub(crate) fn seats(self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator {
        self.to_bytes().into_iter().take(self.len()).map(usize::from)
    }

    pub(crate) fn contains(self, seat: usize) -> bool {
        self.seats().any(|other| other == seat)
    }

    pub(crate) fn get(self, rank: usize) -> Option<usize> {
        self.seats().nth(rank)
    }

    /// The same with another one first; those before it are last.
    pub(crate) fn begun_at(self, rank: usize) -> Self {
        Self::of(self.seats().skip(rank).chain(self.seats().take(rank)))
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
    fn an_order_has_the_seats_that_it_was_made_of() {
        for seats in [&[][..], &[0], &[7], &[3, 0, 7], &[7, 6, 5, 4, 3, 2, 1, 0]] {
            let order = Order::of(seats.iter().copied());
            assert_eq!(order.seats().collect::<Vec<_>>(), seats);
            assert_eq!(order.len(), seats.len());
            assert!((0..SEATS).all(|seat| order.contains(seat) == seats.contains(&seat)));
            assert_eq!(order.get(0), seats.first().copied());
            assert_eq!(order.get(SEATS), None);
        }
    }

    #[test]
    fn another_one_goes_first() {
        let order = Order::of([3, 0, 7].into_iter());
        let seats = |rank| order.begun_at(rank).seats().collect::<Vec<_>>();
        assert_eq!(
            [seats(0), seats(1), seats(2), seats(3), seats(8)],
            [[3, 0, 7], [0, 7, 3], [7, 3, 0], [3, 0, 7], [3, 0, 7]]
        );
    }
}
