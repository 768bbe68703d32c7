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

    /// The buckets that are not empty: where each begins, in nanoseconds, where the next does, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let counts = self.counts.iter().copied().enumerate();
        counts.filter(|(_, count)| *count > 0).map(|(bucket, count)| (begin(bucket), begin(bucket + 1), count))
    }
}

/// As the page reads it.
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
