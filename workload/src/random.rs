//! Random numbers that never change for a seed, on any machine.

/// SplitMix64 (Steele, Lea and Flood, 2014). Here, and not from a crate, because its sequence must never change: seeds
/// stand in bug reports.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The `stream`th of the independent sequences of a seed.
    pub fn stream(seed: u64, stream: u64) -> Self {
        Self(Self(seed).next() ^ Self(stream).next())
    }

    /// The next number of the sequence.
    #[allow(clippy::should_implement_trait, reason = "it never ends, so it is no iterator that anybody should collect")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number from 0 to `limit`. Its bias is below `limit` in 2⁶⁴.
    pub fn up_to(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * (u128::from(limit) + 1)) >> 64) as u64
    }

    /// A number from `mean` − `percent` % to `mean` + `percent` %.
    pub fn around(&mut self, mean: u64, percent: u64) -> u64 {
        let spread = (u128::from(mean) * u128::from(percent.min(100)) / 100) as u64;
        mean - spread + self.up_to(2 * spread)
    }

    /// A time of an exponential distribution with this mean. By integers alone, since logarithms of floating-point
    /// numbers are not the same on every machine.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        /// The natural logarithm of 2, in parts of 2³².
        const LN_2: u128 = 2_977_044_472;
        let uniform = self.next().max(1);
        // −log₂(uniform ÷ 2⁶⁴) in parts of 2³²: bit by bit, as squaring a number between 1 and 2 tells the next bit of
        // its logarithm.
        let mut mantissa = u128::from(uniform << uniform.leading_zeros());
        let mut log2 = u128::from(uniform.leading_zeros() + 1) << 32;
        for bit in (0..32).rev() {
            mantissa = (mantissa * mantissa) >> 63;
            if mantissa >> 64 != 0 {
                mantissa >>= 1;
                log2 -= 1 << bit;
            }
        }
        ((u128::from(mean) * ((log2 * LN_2) >> 32)) >> 32).min(u64::MAX.into()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        assert_eq!(Random::new(0).next(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn numbers_reach_both_ends_and_go_no_further() {
        let mut random = Random::stream(1, 2);
        let numbers: Vec<u64> = (0..200).map(|_| random.up_to(3)).collect();
        assert!((0..=3).all(|number| numbers.contains(&number)));
        assert!(numbers.iter().all(|number| *number <= 3));
        assert!((0..200).map(|_| random.around(50, 10)).all(|number| (45..=55).contains(&number)));
    }

    #[test]
    fn exponential_times_have_their_mean_and_their_median() {
        let mut random = Random::stream(3, 4);
        let mut times: Vec<u64> = (0..20_000).map(|_| random.exponential(1_000_000)).collect();
        times.sort_unstable();
        let mean = times.iter().sum::<u64>() / 20_000;
        assert!((980_000..1_020_000).contains(&mean), "{mean}");
        assert!((675_000..711_000).contains(&times[10_000]), "ln 2 of the mean, not {}", times[10_000]);
        assert!((4_400_000..4_800_000).contains(&times[19_800]), "ln 100 of the mean, not {}", times[19_800]);
    }
}
