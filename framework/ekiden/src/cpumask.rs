//! Sets of CPUs.

use alloc::string::String;
use core::{
    fmt, iter,
    ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, Sub, SubAssign},
    str::FromStr,
};

use smallvec::SmallVec;

use crate::CpuId;

/// CPU numbers are below this everywhere: no architecture's Linux can be configured for more CPUs.
///
/// ```
/// assert_eq!(ekiden::CpuMask::first_n(ekiden::MAX_CPUS).count(), 8192);
/// ```
pub const MAX_CPUS: CpuId = 8192;

const WORD_BITS: u32 = u64::BITS;
/// Sets of CPUs up to number 255 need no memory besides their own.
const INLINE_WORDS: usize = 4;

/// A set of CPUs. Operations take time linear in the highest CPU ÷ 64 unless they say otherwise.
///
/// ```
/// use ekiden::CpuMask;
///
/// let mut cpus: CpuMask = "0-3,8".parse().unwrap();
/// cpus.set(70);
/// cpus.clear(8);
/// assert_eq!(cpus.to_string(), "0-3,70");
/// assert_eq!((cpus.count(), cpus.first(), cpus.is_empty()), (5, Some(0), false));
/// assert!(cpus.contains(70) && cpus.iter().eq([0, 1, 2, 3, 70]));
/// // Round robin: the next member, and from the lowest again.
/// assert_eq!((cpus.next_after(3), cpus.next_after(70), cpus.pick_from(3)), (Some(70), Some(0), Some(3)));
///
/// let (low, high) = (CpuMask::first_n(2), CpuMask::single(70));
/// assert!(low.is_subset(&cpus) && cpus.intersects(&high) && !low.intersects(&high));
/// assert_eq!((&low | &high, &cpus & &high, cpus.first_in(&high)), ([0, 1, 70].into_iter().collect(), high, Some(70)));
/// cpus.intersect(&low);
/// assert_eq!((&cpus - &low, cpus), (CpuMask::new(), low));
///
/// // As words, for a host: CPU n is bit n % 64 of word n ÷ 64.
/// assert_eq!(CpuMask::from_words(&[0b101]), CpuMask::filled(1, |words| words[0] = 0b101));
/// assert_eq!(CpuMask::single(64).as_words(), [0, 1]);
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CpuMask {
    /// CPU n is bit n % 64 of word n ÷ 64. The last word is never zero, so that equal sets are equal words.
    words: SmallVec<[u64; INLINE_WORDS]>,
}

impl CpuMask {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The set of `cpu` alone.
    ///
    /// # Panics
    ///
    /// As [`CpuMask::set`].
    pub fn single(cpu: CpuId) -> Self {
        iter::once(cpu).collect()
    }

    /// The CPUs 0 to `count` − 1.
    ///
    /// # Panics
    ///
    /// If `count` is larger than [`MAX_CPUS`].
    pub fn first_n(count: u32) -> Self {
        assert!(count <= MAX_CPUS, "there are no {count} CPUs: the limit is {MAX_CPUS}");
        let mut words = SmallVec::from_elem(u64::MAX, (count / WORD_BITS) as usize);
        let rest = count % WORD_BITS;
        if rest != 0 {
            words.push((1 << rest) - 1);
        }
        Self { words }
    }

    /// The set whose bits are in `words`, lowest CPUs first. CPUs beyond [`MAX_CPUS`] are left out.
    pub fn from_words(words: &[u64]) -> Self {
        let mut mask = Self { words: words.iter().copied().take((MAX_CPUS / WORD_BITS) as usize).collect() };
        mask.trim();
        mask
    }

    /// The set whose bits `fill` writes into this many words, which are zero before that. It needs no memory for CPUs up to number 255.
    pub fn filled(words: usize, fill: impl FnOnce(&mut [u64])) -> Self {
        let mut mask = Self { words: SmallVec::from_elem(0, words.min((MAX_CPUS / WORD_BITS) as usize)) };
        fill(&mut mask.words);
        mask.trim();
        mask
    }

    /// The bits, lowest CPUs first. The last word is not zero.
    pub fn as_words(&self) -> &[u64] {
        &self.words
    }

    /// Adds `cpu`. O(1), apart from growing.
    ///
    /// # Panics
    ///
    /// If `cpu` is not below [`MAX_CPUS`].
    #[inline]
    pub fn set(&mut self, cpu: CpuId) {
        let (word, bit) = place(cpu);
        if word >= self.words.len() {
            assert!(cpu < MAX_CPUS, "there is no CPU {cpu}: the limit is {MAX_CPUS}");
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= bit;
    }

    /// Removes `cpu`, if it is there. O(1), apart from shrinking.
    #[inline]
    pub fn clear(&mut self, cpu: CpuId) {
        let (word, bit) = place(cpu);
        if let Some(word) = self.words.get_mut(word) {
            *word &= !bit;
            if *word == 0 {
                self.trim();
            }
        }
    }

    /// Whether `cpu` is in the set. O(1).
    #[inline]
    pub fn contains(&self, cpu: CpuId) -> bool {
        let (word, bit) = place(cpu);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Whether the set has no member. O(1).
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// How many members there are.
    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// The lowest member.
    #[inline]
    pub fn first(&self) -> Option<CpuId> {
        self.at_or_after(0)
    }

    /// The members, in ascending order.
    pub fn iter(&self) -> Members<'_> {
        Members { mine: &self.words, theirs: &self.words, next: 0, left: 0 }
    }

    /// The next member after `cpu`, from the lowest again after the highest. `cpu` itself comes last.
    pub fn next_after(&self, cpu: CpuId) -> Option<CpuId> {
        cpu.checked_add(1).and_then(|next| self.at_or_after(next)).or_else(|| self.first())
    }

    /// `cpu` if it is a member, and otherwise the next one, as [`next_after`](Self::next_after).
    #[inline]
    pub fn pick_from(&self, cpu: CpuId) -> Option<CpuId> {
        if self.contains(cpu) { Some(cpu) } else { self.next_after(cpu) }
    }

    /// Leaves only the members that are also in `other`. `&=` does this, too.
    pub fn intersect(&mut self, other: &Self) {
        *self &= other;
    }

    /// Whether the two sets have a member in common.
    pub fn intersects(&self, other: &Self) -> bool {
        iter::zip(&self.words, &other.words).any(|(mine, theirs)| mine & theirs != 0)
    }

    /// The members that are also in `other`, in ascending order, without making a set of them.
    pub fn both<'a>(&'a self, other: &'a Self) -> Members<'a> {
        Members { mine: &self.words, theirs: &other.words, next: 0, left: 0 }
    }

    /// The lowest member that is also in `other`.
    #[inline]
    pub fn first_in(&self, other: &Self) -> Option<CpuId> {
        self.both(other).next()
    }

    /// Whether all members are also in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.words.len() <= other.words.len()
            && iter::zip(&self.words, &other.words).all(|(mine, theirs)| mine & !theirs == 0)
    }

    /// The lowest member that is not below `cpu`.
    fn at_or_after(&self, cpu: CpuId) -> Option<CpuId> {
        let (start, bit) = place(cpu);
        let words = self.words.get(start..)?;
        // Bits below `cpu` do not count in its own word.
        let mut wanted = !(bit - 1);
        for (word, base) in words.iter().zip((cpu - cpu % WORD_BITS..).step_by(WORD_BITS as usize)) {
            if word & wanted != 0 {
                return Some(base + (word & wanted).trailing_zeros());
            }
            wanted = u64::MAX;
        }
        None
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

/// The CPUs that are in two sets, in ascending order. A type with a name, as those of nested adapters become symbols that are too long
/// for the kernel's tools.
///
/// ```
/// use ekiden::CpuMask;
///
/// let (idle, near) = (CpuMask::from_words(&[0b1110]), CpuMask::first_n(3));
/// assert!(idle.both(&near).eq([1, 2]));
/// ```
#[derive(Clone, Debug)]
pub struct Members<'a> {
    mine: &'a [u64],
    theirs: &'a [u64],
    /// The word that is looked at next.
    next: usize,
    /// The bits of the word before it that are left.
    left: u64,
}

impl Iterator for Members<'_> {
    type Item = CpuId;

    #[inline]
    fn next(&mut self) -> Option<CpuId> {
        while self.left == 0 {
            self.left = self.mine.get(self.next)? & self.theirs.get(self.next)?;
            self.next += 1;
        }
        let bit = self.left.trailing_zeros();
        // Removes the lowest bit.
        self.left &= self.left - 1;
        Some((self.next as u32 - 1) * WORD_BITS + bit)
    }
}

/// The word of `cpu`, and its bit there.
#[inline]
fn place(cpu: CpuId) -> (usize, u64) {
    ((cpu / WORD_BITS) as usize, 1 << (cpu % WORD_BITS))
}

impl BitAndAssign<&CpuMask> for CpuMask {
    fn bitand_assign(&mut self, other: &CpuMask) {
        self.words.truncate(other.words.len());
        for (mine, theirs) in iter::zip(&mut self.words, &other.words) {
            *mine &= theirs;
        }
        self.trim();
    }
}

impl BitOrAssign<&CpuMask> for CpuMask {
    fn bitor_assign(&mut self, other: &CpuMask) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (mine, theirs) in iter::zip(&mut self.words, &other.words) {
            *mine |= theirs;
        }
    }
}

impl SubAssign<&CpuMask> for CpuMask {
    fn sub_assign(&mut self, other: &CpuMask) {
        for (mine, theirs) in iter::zip(&mut self.words, &other.words) {
            *mine &= !theirs;
        }
        self.trim();
    }
}

/// The CPUs in both sets.
impl BitAnd for &CpuMask {
    type Output = CpuMask;

    fn bitand(self, other: &CpuMask) -> CpuMask {
        let mut both = self.clone();
        both &= other;
        both
    }
}

/// The CPUs in either set.
impl BitOr for &CpuMask {
    type Output = CpuMask;

    fn bitor(self, other: &CpuMask) -> CpuMask {
        let mut either = self.clone();
        either |= other;
        either
    }
}

/// The CPUs in the first set and not in the second.
impl Sub for &CpuMask {
    type Output = CpuMask;

    fn sub(self, other: &CpuMask) -> CpuMask {
        let mut rest = self.clone();
        rest -= other;
        rest
    }
}

impl FromIterator<CpuId> for CpuMask {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut mask = Self::new();
        mask.extend(cpus);
        mask
    }
}

impl Extend<CpuId> for CpuMask {
    fn extend<I: IntoIterator<Item = CpuId>>(&mut self, cpus: I) {
        cpus.into_iter().for_each(|cpu| self.set(cpu));
    }
}

/// The kernel's list format, as in `/sys/devices/system/cpu/online`: `0-3,8`.
impl fmt::Display for CpuMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last != first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// A text is no list of CPUs.
///
/// ```
/// let error = "0-x".parse::<ekiden::CpuMask>().unwrap_err();
/// assert!(error.to_string().contains("0-x"), "{error}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuListError {
    part: String,
}

impl fmt::Display for CpuListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part } = self;
        write!(f, "{part:?} is neither a CPU nor a range of CPUs below {MAX_CPUS}: write a list such as 0-3,8")
    }
}

impl core::error::Error for CpuListError {}

/// The kernel's list format: `0-3,8`. Nothing but white space is the empty set.
impl FromStr for CpuMask {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let mut mask = Self::new();
        let text = text.trim();
        if text.is_empty() {
            return Ok(mask);
        }
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => mask.extend(first..=last),
                _ => return Err(CpuListError { part: part.into() }),
            }
        }
        Ok(mask)
    }
}

fn number(text: &str) -> Option<CpuId> {
    // `parse` alone would take a sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|cpu| digits && *cpu < MAX_CPUS)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use alloc::{collections::BTreeSet, string::ToString, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    /// Few enough CPUs for sets to meet, and enough to go beyond the words that are inline.
    fn cpus() -> impl Strategy<Value = BTreeSet<CpuId>> {
        prop_oneof![prop::collection::btree_set(0..130u32, 0..40), prop::collection::btree_set(0..MAX_CPUS, 0..8),]
    }

    fn mask(cpus: &BTreeSet<CpuId>) -> CpuMask {
        cpus.iter().copied().collect()
    }

    fn set(mask: &CpuMask) -> BTreeSet<CpuId> {
        mask.iter().collect()
    }

    proptest! {
        #[test]
        fn it_has_the_members_of_a_set(cpus in cpus(), other in 0..MAX_CPUS) {
            let mask = mask(&cpus);
            prop_assert_eq!(mask.iter().collect::<Vec<_>>(), cpus.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(mask.count() as usize, cpus.len());
            prop_assert_eq!(mask.is_empty(), cpus.is_empty());
            prop_assert_eq!(mask.first(), cpus.first().copied());
            prop_assert_eq!(mask.contains(other), cpus.contains(&other));
            prop_assert!(cpus.iter().all(|cpu| mask.contains(*cpu)));
        }

        #[test]
        fn it_combines_as_sets_do(a in cpus(), b in cpus()) {
            let (x, y) = (mask(&a), mask(&b));
            prop_assert_eq!(set(&(&x & &y)), &a & &b);
            prop_assert_eq!(set(&(&x | &y)), &a | &b);
            prop_assert_eq!(set(&(&x - &y)), &a - &b);
            prop_assert_eq!(x.both(&y).collect::<BTreeSet<_>>(), &a & &b);
            prop_assert_eq!(x.first_in(&y), a.intersection(&b).next().copied());
            prop_assert_eq!(x.intersects(&y), !a.is_disjoint(&b));
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
            prop_assert!((&x & &y).is_subset(&x));
        }

        #[test]
        fn equal_sets_are_equal_whatever_was_in_them_before(a in cpus(), b in cpus()) {
            let mut one_by_one = mask(&(&a | &b));
            b.iter().for_each(|cpu| one_by_one.clear(*cpu));
            let mut at_once = mask(&a);
            at_once -= &mask(&b);
            prop_assert_eq!(&one_by_one, &at_once);
            prop_assert_eq!(&at_once, &mask(&(&a - &b)));
            let mut met = mask(&a);
            met.intersect(&mask(&b));
            prop_assert_eq!(met, mask(&(&a & &b)));
        }

        #[test]
        fn searches_wrap_around(cpus in cpus(), from: CpuId, near in 0..140u32) {
            let mask = mask(&cpus);
            for from in [from, near] {
                let after = cpus.iter().copied().find(|cpu| *cpu > from).or(cpus.first().copied());
                prop_assert_eq!(mask.next_after(from), after);
                prop_assert_eq!(mask.pick_from(from), if cpus.contains(&from) { Some(from) } else { after });
            }
        }

        #[test]
        fn words_carry_it(cpus in cpus(), zeros in 0..3usize) {
            let mask = mask(&cpus);
            let mut words = mask.as_words().to_vec();
            words.resize(words.len() + zeros, 0);
            prop_assert_eq!(CpuMask::filled(words.len(), |room| room.copy_from_slice(&words[..room.len()])), mask.clone());
            prop_assert_eq!(CpuMask::from_words(&words), mask);
        }

        #[test]
        fn its_text_reads_back(cpus in cpus()) {
            let mask = mask(&cpus);
            prop_assert_eq!(mask.to_string().parse::<CpuMask>(), Ok(mask));
        }

        #[test]
        fn no_text_makes_it_panic(text in "[0-9,\\- \n+x]{0,12}") {
            if let Ok(mask) = text.parse::<CpuMask>() {
                prop_assert!(mask.iter().all(|cpu| cpu < MAX_CPUS));
            }
        }
    }

    #[test]
    fn the_list_format_is_the_kernels() {
        for (cpus, text) in [
            (&[][..], ""),
            (&[0], "0"),
            (&[0, 1], "0-1"),
            (&[0, 1, 2, 3, 8], "0-3,8"),
            (&[1, 3, 5, 63, 64, 65], "1,3,5,63-65"),
        ] {
            let mask: CpuMask = cpus.iter().copied().collect();
            assert_eq!(mask.to_string(), text);
            assert_eq!(std::format!("{text}\n").parse(), Ok(mask));
        }
        assert_eq!(std::format!("{:?}", CpuMask::first_n(3)), "{0-2}");
    }

    #[test]
    fn other_texts_are_refused_with_the_part_that_is_wrong() {
        for (text, part) in [
            ("a", "a"),
            ("0,,1", ""),
            ("0-3,", ""),
            ("2,3-1", "3-1"),
            ("+1", "+1"),
            ("-1", "-1"),
            ("0,8192", "8192"),
            ("0-4294967295", "0-4294967295"),
        ] {
            let error = text.parse::<CpuMask>().unwrap_err();
            assert_eq!(error.part, part, "{text}");
            assert!(error.to_string().ends_with("write a list such as 0-3,8"));
        }
    }

    #[test]
    fn the_first_cpus_are_those_below() {
        for count in [0, 1, 63, 64, 65, 256, 257, MAX_CPUS] {
            assert!(CpuMask::first_n(count).iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn words_beyond_the_limit_are_left_out() {
        let words = [u64::MAX; (MAX_CPUS / WORD_BITS) as usize + 1];
        assert_eq!(CpuMask::from_words(&words), CpuMask::first_n(MAX_CPUS));
    }

    #[test]
    fn up_to_256_cpus_need_no_memory_of_their_own() {
        assert!(!CpuMask::first_n(256).words.spilled());
        assert!(CpuMask::first_n(257).words.spilled());
    }

    #[test]
    fn what_a_host_fills_in_may_name_the_last_cpu_there_may_be() {
        let mask = CpuMask::filled(usize::MAX, |words| *words.last_mut().unwrap() = 1 << 63);
        assert_eq!(mask, CpuMask::single(MAX_CPUS - 1));
        assert_eq!(CpuMask::filled(usize::MAX, |_| ()), CpuMask::new());
    }

    #[test]
    #[should_panic(expected = "there is no CPU 8192")]
    fn a_cpu_beyond_the_limit_cannot_be_a_member() {
        CpuMask::single(MAX_CPUS);
    }
}
