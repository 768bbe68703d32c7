//! What must be reached: a figure, its limit, and the verdict.

use serde::{Deserialize, Serialize};

use crate::number;

/// A figure that must not be greater than something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// The figure that is limited.
    pub name: &'static str,
    /// How much there may be of it.
    pub at_most: f64,
}

/// A figure that was compared with its limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// The figure that was measured.
    pub name: String,
    /// How much it is; absent if it could not be had, which is never good enough.
    pub figure: Option<f64>,
    /// How much it may be.
    pub limit: f64,
    /// Whether it is no more than that.
    pub met: bool,
}

impl Limit {
    /// Compares.
    pub fn judge(&self, figure: Option<f64>) -> Judged {
        let met = figure.is_some_and(|figure| figure <= self.at_most);
        Judged { name: self.name.to_owned(), figure, limit: self.at_most, met }
    }
}

impl Judged {
    /// Figure, limit and verdict, for a table.
    pub fn cells(&self) -> [String; 4] {
        let figure = self.figure.map_or("none".to_owned(), number);
        [self.name.clone(), figure, number(self.limit), if self.met { "met" } else { "MISSED" }.to_owned()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Limit = Limit { name: "a ÷ b", at_most: 1.03 };

    #[test]
    fn a_limit_is_met_up_to_itself() {
        assert!(LIMIT.judge(Some(1.03)).met);
        assert!(!LIMIT.judge(Some(1.030_000_1)).met);
    }

    #[test]
    fn what_was_not_measured_is_missed() {
        assert!(!LIMIT.judge(None).met);
        assert!(!LIMIT.judge(Some(f64::NAN)).met);
        assert_eq!(LIMIT.judge(None).cells()[3], "MISSED");
    }
}
