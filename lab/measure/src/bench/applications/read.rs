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
    ensure!(figures.len() == 1, "it has the metrics of {} stressors, not of 1", figures.len());
    ensure!(figures[0] > 0.0, "it was interrupted before it had done anything");
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

/// A percentile of values that are sorted.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures of what a program has really printed, each with two digits.
    fn check(read: Read, output: &str, expected: &[&str]) {
        let ran = Ran { output: output.to_owned(), elapsed: Duration::from_millis(50) };
        let figures = read(&ran).unwrap();
        let text: Vec<String> =
            figures.iter().map(|(what, value)| format!("{} {value:.2} {}", what.measure, what.unit)).collect();
        assert_eq!(text, expected);
        // A program that has printed nothing has no figures.
        assert!(read(&Ran { output: String::new(), ..ran }).is_err());
    }

    #[test]
    fn what_perf_bench_and_hackbench_print_is_read() {
        let pipe = "# Executed 1000 pipe operations between two processes\n\n     Total time: 0.008 [sec]\n\n       \
                    8.787000 usecs/op\n         113804 ops/sec\n";
        check(perf_pipe, pipe, &["round trip 8.79 us"]);
        let messaging = "# 2 groups == 80 processes run\n\n     Total time: 0.109 [sec]\n";
        check(perf_messaging, messaging, &["time 109.00 ms"]);
        let futex = "[Run 10]: Wokeup 4 of 4 threads in 0.1160 ms\nWokeup 4 of 4 threads in 0.1345 ms (+-11.38%)\n";
        check(perf_futex, futex, &["time 0.13 ms"]);
        let epoll = "[thread  1] fdmap: 0x55db3e655180 ... 0x55db3e65527c [ 61708 ops/sec ]\n\n\
                     Averaged 201569 operations/sec (+- 69.39%), total secs = 1\n";
        check(perf_epoll, epoll, &["rate 201569.00 ops/s"]);
        let hackbench_text = "Each sender will pass 20 messages of 100 bytes\nTime: 0.037\n";
        check(hackbench, hackbench_text, &["time 37.00 ms"]);
    }

    #[test]
    fn what_servers_clients_print_is_read() {
        let redis_text = "Latency by percentile distribution:\n0.000% <= 0.095 milliseconds (cumulative count 1)\n\
            50.000% <= 0.223 milliseconds (cumulative count 1042)\n98.438% <= 0.511 milliseconds (cumulative count 1969)\n\
            99.219% <= 3.887 milliseconds (cumulative count 1985)\n99.902% <= 4.047 milliseconds (cumulative count 1999)\n\
            100.000% <= 4.063 milliseconds (cumulative count 2000)\n\nCumulative distribution of latencies:\n\
            0.150% <= 0.103 milliseconds (cumulative count 3)\n\nSummary:\n  throughput summary: 52631.58 requests per second\n";
        check(redis, redis_text, &["rate 52631.58 requests/s", "p50 223.00 us", "p99 3887.00 us", "p99.9 4047.00 us"]);
        let memcached = "Time to set             500 keys:                     0.023 seconds.\n\
            Time to get            2000 keys by    4 threads:     0.030 seconds.\n";
        check(memcslap, memcached, &["rate 66666.67 gets/s"]);
        let postgres = "number of transactions actually processed: 800/800\nlatency average = 0.278 ms\n\
            tps = 14404.292479 (without initial connection time)\n0 1 1030 0 1795618699 540727\n0 2 164 0 1795618699 540937\n\
            0 3 76 0 1795618699 541015\n";
        check(
            pgbench,
            postgres,
            &["rate 14404.29 transactions/s", "p50 164.00 us", "p99 1030.00 us", "p99.9 1030.00 us"],
        );
    }

    #[test]
    fn what_stressors_and_computing_programs_print_is_read() {
        let stress = "stress-ng: info:  [44] dispatching hogs: 2 switch\n\
            stress-ng: metrc: [44] stressor       bogo ops real time  usr time  sys time   bogo ops/s     bogo ops/s\n\
            stress-ng: metrc: [44]                           (secs)    (secs)    (secs)   (real time) (usr+sys time)\n\
            stress-ng: metrc: [44] switch             2000      0.01      0.00      0.01    325379.47      151699.03\n";
        check(stress_ng, stress, &["rate 325379.47 bogo ops/s"]);
        let late = stress.replace("325379.47      151699.03", "0.00           0.00");
        let error = stress_ng(&Ran { output: late, elapsed: Duration::from_millis(50) }).unwrap_err();
        assert_eq!(error.to_string(), "it was interrupted before it had done anything");
        check(ffmpeg, "bench: utime=0.006s stime=0.006s rtime=0.013s\nbench: maxrss=57416KiB\n", &["time 13.00 ms"]);
        check(openmp, "Time = 0.007620 s, sum 1.67501e+11\n", &["time 7.62 ms"]);
    }

    #[test]
    fn what_perf_stat_counts_is_read() {
        let text = "# started on Wed Nov 25 14:58:19 2026\n\n78,,context-switches,205102160,100.00,380.301,/sec\n\
                    5,,cpu-migrations,205102030,100.00,24.378,/sec\n";
        let values: Vec<f64> = perf_stat(text).into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, [5.0, 78.0]);
    }
}
