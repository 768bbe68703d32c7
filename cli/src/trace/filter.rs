//! The part of a trace that a command line asks for.

use std::collections::BTreeSet;

use clap::Args;
use ekiden::CpuMask;
use ekiden_trace::Record;

/// Part of a trace. Times are those that `ekiden trace info` tells.
#[derive(Args, Clone, Debug)]
pub(super) struct Filter {
    /// From this time on, as in 12.5ms, 3s, 100us
    #[arg(long, value_name = "TIME", value_parser = time_ns)]
    pub(super) from: Option<u64>,
    /// Until right before this time
    #[arg(long, value_name = "TIME", value_parser = time_ns)]
    pub(super) until: Option<u64>,
    /// Only these CPUs, as in 0-3,8
    #[arg(long, value_name = "LIST")]
    pub(super) cpu: Option<CpuMask>,
    /// Only these tasks, as in 1000,1004
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(super) pid: Vec<u32>,
}

impl Filter {
    /// Whether it asks for this record. In some the field of the CPU numbers pieces.
    pub(super) fn has(&self, record: &Record) -> bool {
        self.has_part(record.time_ns, Some(record.cpu).filter(|_| !record.is_piece()), record.task())
    }

    /// Whether it asks for what is about this CPU and these tasks.
    pub(super) fn has_part(&self, time_ns: u64, cpu: Option<u32>, pids: impl IntoIterator<Item = u32>) -> bool {
        self.from.is_none_or(|from_ns| from_ns <= time_ns)
            && self.until.is_none_or(|until_ns| time_ns < until_ns)
            && self.cpu.as_ref().is_none_or(|cpus| cpu.is_some_and(|cpu| cpus.contains(cpu)))
            && (self.pid.is_empty() || pids.into_iter().any(|pid| self.pid.contains(&pid)))
    }

    pub(super) fn pids(&self) -> BTreeSet<u32> {
        self.pid.iter().copied().collect()
    }
}

/// A time with its unit, in nanoseconds.
pub(crate) fn time_ns(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no time: write a number and its unit, as in 12.5ms, 3s, 100us, 40ns or 2min");
    let (number, unit) = text.split_at(text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len()));
    let unit_ns = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" => 60e9,
        "" if number.parse() == Ok(0) => 1.0,
        _ => return Err(wrong()),
    };
    let time_ns = number.trim_end().parse::<f64>().map_err(|_| wrong())? * unit_ns;
    // Beyond, a floating-point number does not count nanoseconds any more.
    if (0.0..9e15).contains(&time_ns) { Ok(time_ns.round() as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, expected_ns) in [
            ("0", 0),
            ("40ns", 40),
            ("100us", 100_000),
            ("12.5ms", 12_500_000),
            ("3s", 3_000_000_000),
            ("12.345678901 s", 12_345_678_901),
            ("2min", 120_000_000_000),
        ] {
            assert_eq!(time_ns(text), Ok(expected_ns), "{text}");
        }
        for text in ["", "12", "ms", "1h", "-1ms", "1e99s", "nans", "infs", "1 2ms"] {
            assert!(time_ns(text).unwrap_err().contains("as in 12.5ms"), "{text}");
        }
    }
}
