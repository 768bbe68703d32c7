//! Several values of one figure, in short.

use serde::{Deserialize, Serialize};

/// Median and bounds of a figure that was measured several times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The value in the middle, or the mean of the two there.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// How many there were.
    pub n: usize,
}

impl Summary {
    /// Summarises these values; `None` if there is none, or if any is no number.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| value.is_nan()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let median = f64::midpoint(sorted[(n - 1) / 2], sorted[n / 2]);
        Some(Self { median, min: sorted[0], max: sorted[n - 1], n })
    }

    /// How far the values lie apart, as a part of the median.
    pub fn spread(&self) -> f64 {
        (self.max - self.min) / self.median
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_there() {
        assert_eq!(Summary::of(&[3.0, 1.0, 2.0]), Some(Summary { median: 2.0, min: 1.0, max: 3.0, n: 3 }));
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Summary::of(&[7.0]).unwrap().median, 7.0);
    }

    #[test]
    fn nothing_and_no_number_have_no_summary() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn the_spread_is_relative() {
        assert_eq!(Summary::of(&[90.0, 100.0, 110.0]).unwrap().spread(), 0.2);
    }
}
