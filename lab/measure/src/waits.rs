//! How long tasks wait for a CPU under one scheduler and another, as percentiles and histograms.

use ekiden_page::Histogram;
use serde::{Deserialize, Serialize};

/// The name of the kernel's own scheduler among those to compare.
pub const OWN: &str = "default";

/// How wide the bar of a full bucket is, and the name of a scheduler in the table. Both leave lines of 80 columns.
const BAR: usize = 39;
const NAME: usize = 16;

/// Waits under one scheduler. All times in nanoseconds.
#[derive(Debug, Serialize, Deserialize)]
pub struct Counted {
    /// Its name.
    pub scheduler: String,
    /// Whether it was still in charge at the end.
    pub stayed: bool,
    count: u64,
    mean_ns: u64,
    /// The end of the bucket that the percentile falls into: at most a quarter more than what it is.
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p99_9_ns: u64,
    max_ns: u64,
    /// Where a bucket begins, where the next does, how many waits are in it; powers of two, without those that are empty.
    buckets: Vec<(u64, u64, u64)>,
}

impl Counted {
    /// The counts under this scheduler.
    pub fn of(scheduler: String, stayed: bool, waits: &Histogram) -> Self {
        Self {
            scheduler,
            stayed,
            count: waits.count,
            mean_ns: waits.mean_ns(),
            p50_ns: waits.percentile_ns(0.5),
            p90_ns: waits.percentile_ns(0.9),
            p99_ns: waits.percentile_ns(0.99),
            p99_9_ns: waits.percentile_ns(0.999),
            max_ns: waits.max_ns,
            buckets: waits.doublings(),
        }
    }
}

/// For people: percentiles, and a histogram of each.
pub fn text(all: &[Counted]) -> String {
    let mut text = format!(
        "{:<NAME$} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n",
        "microseconds", "waits", "mean", "50 %", "90 %", "99 %", "99.9 %", "longest"
    );
    let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
    // From a second on, a tenth of a microsecond has no room and says nothing.
    let short = |ns: u64| if ns < 999_999_950 { us(ns) } else { format!("{:.0}", ns as f64 / 1e3) };
    for counted in all {
        let Counted { scheduler, count, mean_ns, p50_ns, p90_ns, p99_ns, p99_9_ns, max_ns, .. } = counted;
        let times = [mean_ns, p50_ns, p90_ns, p99_ns, p99_9_ns, max_ns];
        let times: Vec<String> = times.iter().map(|ns| format!("{:>8}", short(**ns))).collect();
        // A name that is too long, as that of a file may be, has a line of its own.
        let name =
            if scheduler.chars().count() <= NAME { scheduler } else { &(scheduler.clone() + "\n" + &" ".repeat(NAME)) };
        text += &format!("{name:<NAME$} {count:>9} {}\n", times.join(" "));
        if !counted.stayed {
            text += "  was taken out\n";
        }
    }
    for counted in all {
        let most = counted.buckets.iter().map(|bucket| bucket.2).max().unwrap_or(1);
        text += &format!("\n{}\n", counted.scheduler);
        for (from_ns, to_ns, count) in &counted.buckets {
            let bar = "█".repeat((*count as usize * BAR).div_ceil(most as usize));
            text += &format!("{:>12} – {:>12} us {count:>9} {bar}\n", us(*from_ns), us(*to_ns));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_fits_80_columns() {
        let waits = |from_ns: u64, to_ns, count| {
            let buckets = vec![(from_ns, to_ns, count), (to_ns, 2 * to_ns, 1)];
            let [p50_ns, p90_ns, p99_ns] = [from_ns, to_ns, to_ns];
            let (mean_ns, p99_9_ns, max_ns) = (from_ns, 2 * to_ns, 2 * to_ns);
            Counted {
                scheduler: "wfq".into(),
                stayed: true,
                count,
                mean_ns,
                p50_ns,
                p90_ns,
                p99_ns,
                p99_9_ns,
                max_ns,
                buckets,
            }
        };
        let long = Counted { stayed: false, ..waits(17_179_869_184, 34_359_738_368, 123_456_789) };
        let long = Counted { scheduler: "recordings/of-the-kernel.dat".into(), ..long };
        let text = text(&[waits(4_096, 8_192, 1_000), long]);
        expect_test::expect![[r#"
            microseconds         waits     mean     50 %     90 %     99 %   99.9 %  longest
            wfq                   1000      4.1      4.1      8.2      8.2     16.4     16.4
            recordings/of-the-kernel.dat
                             123456789 17179869 17179869 34359738 34359738 68719477 68719477
              was taken out

            wfq
                     4.1 –          8.2 us      1000 ███████████████████████████████████████
                     8.2 –         16.4 us         1 █

            recordings/of-the-kernel.dat
              17179869.2 –   34359738.4 us 123456789 ███████████████████████████████████████
              34359738.4 –   68719476.7 us         1 █
        "#]]
        .assert_eq(&text);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn nothing_counted_is_nothing_shown() {
        let counted = Counted::of("x".into(), true, &Histogram::default());
        assert_eq!((counted.count, counted.p99_ns, counted.max_ns), (0, 0, 0));
        assert!(text(&[counted]).contains("x "));
    }
}
