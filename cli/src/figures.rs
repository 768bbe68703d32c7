//! What a policy counts itself, for people.

use ekiden_host::{Figure, Value};

/// A line for each figure, which begin with `indent`.
pub(crate) fn in_words(figures: &[Figure], indent: &str) -> String {
    let width = figures.iter().map(|figure| figure.name.len()).max().unwrap_or(0).max(10);
    let line = |figure: &Figure| format!("{indent}{:width$}  {}\n", figure.name, amount(&figure.value));
    figures.iter().map(line).collect()
}

/// How much it is, in a few words.
pub(crate) fn amount(value: &Value) -> String {
    match value {
        Value::Count(count) => count.to_string(),
        Value::Buckets(buckets) => {
            let all = buckets.iter().map(|(_, count)| count).sum::<u64>();
            match (below(buckets, 50), below(buckets, 99)) {
                (Some(half), Some(most)) => format!("{all} values; 50 % below {half}, 99 % below {most}"),
                _ => "no values".to_owned(),
            }
        }
    }
}

/// The end of the bucket in which this many percent of the values end: the next power of two.
fn below(buckets: &[(u64, u64)], percent: u64) -> Option<u64> {
    let all: u64 = buckets.iter().map(|(_, count)| count).sum();
    let mut seen = 0;
    let (least, _) = buckets.iter().find(|(_, count)| {
        seen += count;
        seen * 100 >= all * percent
    })?;
    Some(if *least == 0 { 1 } else { least.saturating_mul(2) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_told_by_the_ends_of_its_buckets() {
        let figure = |name: &str, value| Figure { name: name.into(), help: String::new(), value };
        let figures = [
            figure("steals", Value::Count(17)),
            figure("wait_ns", Value::Buckets(vec![(0, 1), (512, 98), (4096, 1)])),
            figure("never_happens", Value::Buckets(Vec::new())),
        ];
        let expected = "  steals         17\n  wait_ns        100 values; 50 % below 1024, 99 % below 1024\n  \
                        never_happens  no values\n";
        assert_eq!(in_words(&figures, "  "), expected);
    }
}
