//! A part of a list, for guest tests that go through one of them at a time.

use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// A part of the list of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    number: usize,
    of: usize,
}

impl Part {
    /// The whole list.
    pub const ALL: Self = Self { number: 0, of: 1 };

    /// Says of one fault after the other whether it belongs to this part.
    pub fn each(self) -> impl FnMut() -> bool {
        let mut numbers = 0..;
        move || numbers.next().is_some_and(|number: usize| number % self.of == self.number)
    }
}

impl FromStr for Part {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (number, of) = text.split_once('/').context("a part is such as 1/3")?;
        let part = Self { number: number.parse()?, of: of.parse()? };
        ensure!(part.number < part.of, "of {} parts, the last one is {}", part.of, part.of.saturating_sub(1));
        Ok(part)
    }
}
