//! How long tasks waited, counted in buckets whose width grows with the time.

use serde::{Serialize, Serializer};

/// Buckets per doubling: a bucket is at most a quarter wider than where it begins.
const PER_DOUBLING: u64 = 4;

/// Counts times; memory does not grow with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    /// How many there are.
    pub count: u64,
    /// All of them together, in nanoseconds.
    pub sum_ns: u128,
    /// The longest.
    pub max_ns: u64,
}

impl Histogram {
    /// A histogram of counts from elsewhere, in equal buckets: one each for 0 to 3 nanoseconds, then four a doubling.
    pub fn from_counts(counts: Vec<u64>, sum_ns: u128, max_ns: u64) -> Self {
        let count = counts.iter().sum();
        Self { counts, count, sum_ns, max_ns }
    }

    /// Counts one.
    pub fn add(&mut self, ns: u64) {
        let bucket = bucket(ns);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.count += 1;
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Counts all that another did.
    pub fn merge(&mut self, other: &Self) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// The mean, in nanoseconds; zero of none.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count.into()).unwrap_or_default() as u64
    }

    /// What this part of all is not longer than, in nanoseconds, rounded up to where its bucket ends: by a quarter at most.
    pub fn percentile_ns(&self, part: f64) -> u64 {
        let rank = (self.count as f64 * part).ceil() as u64;
        let mut before = 0;
        let bucket = self.counts.iter().position(|count| {
            before += count;
            before >= rank
        });
        bucket.filter(|_| self.count > 0).map_or(0, |bucket| begin(bucket + 1).min(self.max_ns))
    }

    /// Buckets of a doubling each, as in papers/003: where each begins, where the next does, and its count.
    pub fn doublings(&self) -> Vec<(u64, u64, u64)> {
        let mut doublings: Vec<(u64, u64, u64)> = Vec::new();
        for (from_ns, _, count) in self.buckets() {
            let from_ns = if from_ns == 0 { 0 } else { 1 << from_ns.ilog2() };
            match doublings.last_mut().filter(|last| last.0 == from_ns) {
                Some(last) => last.2 += count,
                None => doublings.push((from_ns, (from_ns * 2).max(1), count)),
            }
        }
        doublings
    }

    /// The buckets that are not empty: where each begins, in nanoseconds, where the next does, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let counts = self.counts.iter().copied().enumerate();
        counts.filter(|(_, count)| *count > 0).map(|(bucket, count)| (begin(bucket), begin(bucket + 1), count))
    }
}

/// The form that the page reads.
impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown {
            count: u64,
            mean_ns: f64,
            max_ns: u64,
            buckets: Vec<(u64, u64, u64)>,
        }
        let mean_ns = self.sum_ns as f64 / self.count.max(1) as f64;
        let buckets = self.buckets().collect();
        Shown { count: self.count, mean_ns, max_ns: self.max_ns, buckets }.serialize(serializer)
    }
}

/// Short times have a bucket each.
fn bucket(ns: u64) -> usize {
    if ns < PER_DOUBLING {
        return ns as usize;
    }
    let doublings = u64::from(ns.ilog2()) - 2;
    ((doublings + 1) * PER_DOUBLING + ((ns >> doublings) - PER_DOUBLING)) as usize
}

fn begin(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < PER_DOUBLING {
        return bucket;
    }
    let doublings = bucket / PER_DOUBLING - 1;
    let begin = u128::from(PER_DOUBLING + bucket % PER_DOUBLING) << doublings;
    begin.min(u64::MAX.into()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_the_bucket_that_says_so() {
        let near_powers = (0..64).flat_map(|bits| [1 << bits, (1_u64 << bits) + 1, (1 << bits) - 1]);
        for ns in near_powers.chain(0..2_000).chain([u64::MAX]) {
            let mut histogram = Histogram::default();
            histogram.add(ns);
            let (from, to, count) = histogram.buckets().next().unwrap();
            assert!(count == 1 && from <= ns && (ns < to || to == u64::MAX), "{ns} in {from} to {to}");
            assert!(ns < 8 || to == u64::MAX || (to - from) * 4 <= from, "{ns} in {from} to {to}");
        }
    }

    #[test]
    fn percentiles_are_the_ends_of_their_buckets_and_not_beyond_the_longest() {
        // 98 waits of 8 to 9 ns, one of 1024 to 1279, one of 1100 at the longest.
        let mut counts = vec![0; 256];
        (counts[8], counts[36]) = (98, 2);
        let histogram = Histogram::from_counts(counts, 2_980, 1_100);
        assert_eq!((histogram.count, histogram.mean_ns()), (100, 29));
        assert_eq!([0.5, 0.9, 0.99].map(|part| histogram.percentile_ns(part)), [10, 10, 1_100]);
        assert_eq!(histogram.doublings(), [(8, 16, 98), (1_024, 2_048, 2)]);
        let none = Histogram::default();
        assert_eq!((none.mean_ns(), none.percentile_ns(0.99), none.doublings()), (0, 0, vec![]));
    }

    #[test]
    fn two_histograms_together_hold_what_one_would() {
        let (mut one, mut other, mut both) = <(Histogram, Histogram, Histogram)>::default();
        for ns in [0, 3, 900, 1 << 40] {
            one.add(ns);
            both.add(ns);
        }
        for ns in [3, 7, 1 << 50] {
            other.add(ns);
            both.add(ns);
        }
        one.merge(&other);
        assert_eq!(one, both);
    }
}
