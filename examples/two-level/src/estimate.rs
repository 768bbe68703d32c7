//! How many CPUs an application needs: the estimate of Arachne (OSDI 2018; papers/000, section 4.2.4), with the thresholds that its source has
//! in `CoreLoadEstimator`.

/// How many threads that run or could run there have to be for each CPU before another CPU is asked for.
const LOAD_FACTOR_MOST: f64 = 1.5;

/// How much less, in CPUs, has to be used than when a CPU was asked for before that CPU is given back.
const HYSTERESIS: f64 = 0.09;

/// A use that counts as none if it is less, in CPUs.
const NOTHING: f64 = 0.01;

/// Observations since the last estimate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// CPUs that the application has.
    pub(crate) given: usize,
    /// How much of them ran user-level threads, in CPUs.
    pub(crate) used: f64,
    /// Threads that ran or could run, for each CPU.
    pub(crate) load_factor: f64,
}

pub(crate) struct Estimator {
    min: usize,
    max: usize,
    /// How much was used of this many CPUs and one less when one more was asked for.
    used_before: Vec<f64>,
}

impl Estimator {
    pub(crate) fn new(min: usize, max: usize) -> Self {
        Self { min, max, used_before: vec![0.0; max + 1] }
    }

    /// How many CPUs there should be: as many as there are, one more or one less.
    pub(crate) fn wanted(&mut self, seen: Seen) -> usize {
        let Seen { given, used, load_factor } = seen;
        let wanted = if given < self.max && load_factor > LOAD_FACTOR_MOST {
            self.used_before[given + 1] = used;
            given + 1
        } else if used < (self.used_before[given.min(self.max)] - HYSTERESIS).max(NOTHING) {
            given.saturating_sub(1)
        } else {
            given
        };
        wanted.clamp(self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(given: usize, used: f64, load_factor: f64) -> Seen {
        Seen { given, used, load_factor }
    }

    #[test]
    fn a_cpu_is_asked_for_when_threads_wait_and_given_back_when_less_is_used_than_then() {
        let mut it = Estimator::new(2, 7);
        assert_eq!(it.wanted(seen(2, 1.9, 1.4)), 2);
        assert_eq!(it.wanted(seen(2, 1.9, 1.6)), 3);
        assert_eq!(it.wanted(seen(3, 1.85, 0.7)), 3, "it was 1.9 when the third was asked for");
        assert_eq!(it.wanted(seen(3, 1.8, 0.6)), 2);
    }

    #[test]
    fn there_are_never_more_or_less_than_allowed() {
        let mut it = Estimator::new(2, 3);
        assert_eq!(it.wanted(seen(2, 0.0, 0.0)), 2);
        assert_eq!(it.wanted(seen(3, 3.0, 9.0)), 3);
        assert_eq!(it.wanted(seen(1, 1.0, 0.5)), 2, "another application has taken one");
        assert_eq!(it.wanted(seen(0, 0.0, 0.0)), 2);
    }
}
