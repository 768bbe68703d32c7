//! Reads what programs print.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ekiden_bench::{Kind, Measure};

/// What a program did.
pub(super) struct Ran {
    /// Both its outputs.
    pub(super) output: String,
    /// How long it took, its start and end included.
    pub(super) elapsed: Duration,
}

/// Makes figures of it.
pub(super) type Read = fn(&Ran) -> Result<Figures>;

pub(super) type Figures = Vec<(Measure, f64)>;

pub(super) fn measure(name: &str, unit: &str, kind: Kind) -> Measure {
    Measure { measure: name.to_owned(), unit: unit.to_owned(), kind }
}

fn time(ms: f64) -> (Measure, f64) {
    (measure("time", "ms", Kind::Time), ms)
}

fn rate(what: &str, value: f64) -> (Measure, f64) {
    (measure("rate", &format!("{what}/s"), Kind::Rate), value)
}

fn latency(name: &str, us: f64) -> (Measure, f64) {
    (measure(name, "us", Kind::Latency), us)
}

/// A program that prints no figure of its own.
pub(super) fn elapsed(ran: &Ran) -> Result<Figures> {
    Ok(vec![time(ran.elapsed.as_secs_f64() * 1e3)])
}

/// `16.700000 usecs/op`
pub(super) fn perf_pipe(ran: &Ran) -> Result<Figures> {
    Ok(vec![(measure("round trip", "us", Kind::Time), before(&ran.output, " usecs/op")?)])
}

/// `Total time: 0.109 [sec]`
pub(super) fn perf_messaging(ran: &Ran) -> Result<Figures> {
    Ok(vec![time(after(&ran.output, "Total time:")? * 1e3)])
}

/// `Wokeup 4 of 4 threads in 0.1345 ms (+-11.38%)`, the last of the lines that say so.
pub(super) fn perf_futex(ran: &Ran) -> Result<Figures> {
    let line = ran.output.lines().rfind(|line| line.starts_with("Wokeup")).context("no line begins with `Wokeup`")?;
    Ok(vec![time(after(line, "threads in")?)])
}

/// `Averaged 201569 operations/sec (+- 69.39%), total secs = 1`
pub(super) fn perf_epoll(ran: &Ran) -> Result<Figures> {
    Ok(vec![rate("ops", after(&ran.output, "Averaged")?)])
}

/// `Time: 0.037`
pub(super) fn hackbench(ran: &Ran) -> Result<Figures> {
    Ok(vec![time(after(&ran.output, "Time:")? * 1e3)])
}

/// The summary, and of the distribution the first lines that are no less than a percentile.
pub(super) fn redis(ran: &Ran) -> Result<Figures> {
    let mut figures = vec![rate("requests", after(&ran.output, "throughput summary:")?)];
    let (_, distribution) =
        ran.output.split_once("Latency by percentile distribution:").context("there is no distribution")?;
    let lines: Vec<(f64, f64)> = distribution
        .lines()
        .skip(1)
        .map_while(|line| {
            let (percent, rest) = line.split_once("% <= ")?;
            Some((percent.parse().ok()?, rest.split(' ').next()?.parse().ok()?))
        })
        .collect();
    for (name, percent) in PERCENTILES {
        let (_, ms) = lines.iter().find(|(of, _)| *of >= percent).context("the distribution ends too early")?;
        figures.push(latency(name, ms * 1e3));
    }
    Ok(figures)
}

/// `Time to get            2000 keys by    4 threads:     0.030 seconds.`
pub(super) fn memcslap(ran: &Ran) -> Result<Figures> {
    let line = ran.output.lines().find(|line| line.starts_with("Time to get")).context("nothing was got")?;
    let (keys, seconds) = (after(line, "Time to get")?, after(line, "threads:")?);
    ensure!(seconds > 0.0, "it took less than it can tell: {line}");
    Ok(vec![rate("gets", keys / seconds)])
}

/// What our script for wrk prints.
pub(super) fn wrk(ran: &Ran) -> Result<Figures> {
    let line = ran.output.lines().find(|line| line.contains(" requests in ") && line.contains(", 99.9% "));
    let line = line.context("wrk did not come to its end")?;
    let seconds = after(line, "requests in")? / 1e6;
    let mut figures = vec![rate("requests", before(line, " requests in")? / seconds)];
    for (name, after_what) in [("p50", ", 50%"), ("p99", ", 99%"), ("p99.9", ", 99.9%")] {
        figures.push(latency(name, after(line, after_what)?));
    }
    Ok(figures)
}

/// `tps = 14404.292479 (…)`, and in lines of six numbers the latency of each transaction, the third of them.
pub(super) fn pgbench(ran: &Ran) -> Result<Figures> {
    let mut figures = vec![rate("transactions", after(&ran.output, "tps =")?)];
    let latency_in = |line: &str| {
        let numbers: Option<Vec<u64>> = line.split(' ').map(|word| word.parse().ok()).collect();
        numbers.filter(|numbers| numbers.len() == 6).map(|numbers| numbers[2] as f64)
    };
    let mut all: Vec<f64> = ran.output.lines().filter_map(latency_in).collect();
    ensure!(!all.is_empty(), "it has no log of transactions");
    all.sort_by(f64::total_cmp);
    for (name, percent) in PERCENTILES {
        figures.push(latency(name, percentile(&all, percent)));
    }
    Ok(figures)
}

/// The line of the one stressor: `stress-ng: metrc: [44] switch  2000  0.01  0.00  0.01  325379.47  151699.03`
pub(super) fn stress_ng(ran: &Ran) -> Result<Figures> {
    let figures = ran.output.lines().filter_map(|line| {
        let (_, rest) = line.split_once("metrc: ")?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        // The heading has words where numbers are here.
        words.get(2)?.parse::<f64>().ok()?;
        words.get(6)?.parse::<f64>().ok()
    });
    let figures: Vec<f64> = figures.collect();
    ensure!(figures.len() == 1 && figures[0] > 0.0, "it has the metrics of {} stressors, not of 1", figures.len());
    Ok(vec![rate("bogo ops", figures[0])])
}

/// `bench: utime=0.006s stime=0.006s rtime=0.013s`
pub(super) fn ffmpeg(ran: &Ran) -> Result<Figures> {
    Ok(vec![time(after(&ran.output, "rtime=")? * 1e3)])
}

/// What our program prints.
pub(super) fn openmp(ran: &Ran) -> Result<Figures> {
    Ok(vec![time(after(&ran.output, "Time =")? * 1e3)])
}

/// The histogram: lines of microseconds and how often.
pub(super) fn cyclictest(ran: &Ran) -> Result<Figures> {
    let bar = |line: &str| {
        let (us, count) = line.split_once(' ')?;
        Some((us.parse::<f64>().ok()?, count.trim().parse::<usize>().ok()?))
    };
    let late: Vec<f64> =
        ran.output.lines().filter_map(bar).flat_map(|(us, count)| std::iter::repeat_n(us, count)).collect();
    ensure!(!late.is_empty(), "there is no histogram");
    Ok([("p50", 50.0), ("p99", 99.0)].map(|(name, percent)| latency(name, percentile(&late, percent))).into())
}

/// Switches and migrations, by `perf stat -x,`.
pub(super) fn perf_stat(text: &str) -> Figures {
    let count = |event: &str| {
        let line = text.lines().find(|line| line.split(',').nth(2) == Some(event))?;
        line.split(',').next()?.parse::<f64>().ok()
    };
    let named = [("migrations", "cpu-migrations"), ("switches, by perf", "context-switches")];
    named.iter().filter_map(|(name, event)| Some((measure(name, "", Kind::Count), count(event)?))).collect()
}

const PERCENTILES: [(&str, f64); 3] = [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9)];

/// Of sorted values.
fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let at = (sorted.len() as f64 * percent / 100.0) as usize;
    sorted[at.min(sorted.len() - 1)]
}

/// The number that comes after a text.
fn after(text: &str, what: &str) -> Result<f64> {
    let rest = text.split_once(what).with_context(|| format!("`{what}` is not in what it printed"))?.1.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..end].trim_end_matches('.').parse().with_context(|| format!("no number comes after `{what}`"))
}

/// The number that comes before a text.
fn before(text: &str, what: &str) -> Result<f64> {
    let rest = text.split_once(what).with_context(|| format!("`{what}` is not in what it printed"))?.0;
    let word = rest.split_whitespace().next_back().unwrap_or_default();
    word.parse().with_context(|| format!("no number comes before `{what}`"))
}
