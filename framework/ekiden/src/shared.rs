//! Numbers that CPUs share without a lock.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::call_log::learn;

/// A number, or a flag, that calls on several CPUs read and write without a lock: the length of a run queue for others to
/// look at, or its load.
///
/// A call that reads it may get another value when it is replayed beside other calls, so what is read is an input of the
/// call like its message, and is recorded. Use it for whatever calls about different tasks or CPUs read. What only calls
/// about one task touch needs no more than an atomic of the language: those never overlap.
///
/// Reads and writes are relaxed: they say nothing about other memory. Cost: that of the plain access, and a load and a branch
/// per read.
///
/// ```
/// use ekiden::Shared;
///
/// let waiting = Shared::new(2_u32);
/// waiting.add(3);
/// waiting.sub(1);
/// assert_eq!((waiting.fetch_add(1), waiting.fetch_sub(2), waiting.get()), (4, 5, 3));
/// // Only ever upwards.
/// waiting.raise(2);
/// assert_eq!(waiting.swap(0), 3);
///
/// let is_overloaded = Shared::new(false);
/// is_overloaded.set(true);
/// assert!(is_overloaded.get());
/// ```
#[derive(Default)]
pub struct Shared<T>(AtomicU64, PhantomData<T>);

/// What can be [`Shared`].
///
/// ```
/// use ekiden::{Shared, Word};
///
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// enum Mode { Throughput, Latency }
///
/// impl Word for Mode {
///     fn to_word(self) -> u64 { self as u64 }
///     fn from_word(word: u64) -> Self { if word == 0 { Self::Throughput } else { Self::Latency } }
/// }
///
/// let mode = Shared::new(Mode::Throughput);
/// mode.set(Mode::Latency);
/// assert_eq!(mode.get(), Mode::Latency);
/// ```
pub trait Word: Copy {
    /// The value as a word.
    fn to_word(self) -> u64;
    /// The value that the word stands for.
    fn from_word(word: u64) -> Self;
}

impl<T: Word> Shared<T> {
    /// Holds `value` at first.
    pub fn new(value: T) -> Self {
        Self(AtomicU64::new(value.to_word()), PhantomData)
    }

    /// What it holds.
    #[inline]
    pub fn get(&self) -> T {
        T::from_word(learn(self.0.load(Relaxed)))
    }

    /// Puts `value` there.
    #[inline]
    pub fn set(&self, value: T) {
        self.0.store(value.to_word(), Relaxed);
    }

    /// Puts `value` there, and returns what it held.
    #[inline]
    pub fn swap(&self, value: T) -> T {
        T::from_word(learn(self.0.swap(value.to_word(), Relaxed)))
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Word for $number {
            #[inline]
            fn to_word(self) -> u64 {
                self as u64
            }

            #[inline]
            fn from_word(word: u64) -> Self {
                word as $number
            }
        }

        impl Shared<$number> {
            /// Puts `value` there if that is more. Not atomic: callers that write it hold a lock.
            #[inline]
            pub fn raise(&self, value: $number) {
                if value > <$number>::from_word(self.0.load(Relaxed)) {
                    self.set(value);
                }
            }

            /// Adds `value`, wrapping around.
            #[inline]
            pub fn add(&self, value: $number) {
                self.0.fetch_add(value.to_word(), Relaxed);
            }

            /// Takes `value` away, wrapping around.
            #[inline]
            pub fn sub(&self, value: $number) {
                self.0.fetch_sub(value.to_word(), Relaxed);
            }

            /// Adds `value`, wrapping around, and returns what it held.
            #[inline]
            pub fn fetch_add(&self, value: $number) -> $number {
                <$number>::from_word(learn(self.0.fetch_add(value.to_word(), Relaxed)))
            }

            /// Takes `value` away, wrapping around, and returns what it held.
            #[inline]
            pub fn fetch_sub(&self, value: $number) -> $number {
                <$number>::from_word(learn(self.0.fetch_sub(value.to_word(), Relaxed)))
            }
        }
    )*};
}

numbers!(u32 u64 i64 usize);

impl Word for bool {
    #[inline]
    fn to_word(self) -> u64 {
        u64::from(self)
    }

    #[inline]
    fn from_word(word: u64) -> Self {
        word != 0
    }
}

impl<T: Word + fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Looking at it from outside is no part of a call.
        T::from_word(self.0.load(Relaxed)).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_around_in_their_own_width() {
        let number = Shared::<u32>::new(u32::MAX);
        assert_eq!(number.fetch_add(2), u32::MAX);
        assert_eq!(number.get(), 1);
        number.sub(2);
        assert_eq!(number.fetch_sub(1), u32::MAX);
        number.add(1);
        assert_eq!(number.get(), u32::MAX);
        let signed = Shared::<i64>::new(-7);
        signed.raise(-5);
        signed.raise(-6);
        assert_eq!((signed.swap(3), signed.get()), (-5, 3));
        let flag = Shared::<bool>::default();
        assert!(!flag.swap(true) && flag.get());
    }
}
