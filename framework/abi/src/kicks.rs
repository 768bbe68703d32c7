//! A small set of CPUs in one word.

use core::fmt;

/// CPUs that are to look for work again: up to four of them, or all. One word, because nearly always it is empty and
/// must cost nothing.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Kicks(u64);

impl Kicks {
    /// No CPU.
    pub const NONE: Self = Self(0);
    /// Every CPU.
    pub const ALL: Self = Self(u64::MAX);

    /// The set as one number, for places that store a word.
    #[inline]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The inverse of [`Kicks::to_bits`].
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether every CPU is meant.
    #[inline]
    pub fn is_all(self) -> bool {
        self.0 == u64::MAX
    }

    /// Whether none of them is `nr_cpus` or above. Cheap for one, or none.
    #[inline]
    pub fn are_below(self, nr_cpus: u32) -> bool {
        // The first one stands below all others, and one more than it is.
        self.0 <= u64::from(nr_cpus) || self.iter().all(|cpu| cpu < nr_cpus)
    }

    /// Adds a CPU. Adding one twice is the same as once; a fifth one means all.
    pub fn add(&mut self, cpu: u32) {
        let code = u64::from(cpu as u16).wrapping_add(1) & 0xffff;
        for shift in [0, 16, 32, 48] {
            match self.0 >> shift & 0xffff {
                0 => {
                    self.0 |= code << shift;
                    return;
                }
                taken if taken == code => return,
                _ => {}
            }
        }
        *self = Self::ALL;
    }

    /// Adds all of another set.
    pub fn add_all(&mut self, other: Self) {
        if other.is_all() {
            *self = Self::ALL;
        } else if self.is_empty() {
            *self = other;
        } else {
            other.iter().for_each(|cpu| self.add(cpu));
        }
    }

    /// Whether a CPU is one of them.
    pub fn contains(self, cpu: u32) -> bool {
        self.is_all() || self.iter().any(|other| other == cpu)
    }

    /// The CPUs, if they are not all.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        let word = if self.is_all() { 0 } else { self.0 };
        [0, 16, 32, 48]
            .into_iter()
            .map(move |shift| word >> shift & 0xffff)
            .filter(|code| *code != 0)
            .map(|code| code as u32 - 1)
    }
}

impl fmt::Debug for Kicks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_all() { f.write_str("all CPUs") } else { f.debug_set().entries(self.iter()).finish() }
    }
}
