//! `ekiden runqlat`: how long tasks wait for a CPU, as histograms and percentiles, as in papers/003.

use std::{
    ffi::OsString,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_loader::{RunqLat, Waits, Whom, scheduler};
use serde::Serialize;

use crate::{
    bench::contest::{Contestant, PolicyArgs},
    child::{self, Events},
    failure::{Exit, Failure},
    modules, policies,
    progress::Progress,
    trace::time_ns,
};

/// The name of the kernel's own scheduler among those to compare.
const OWN: &str = "default";

/// How often to look whether it is over.
const LOOK: Duration = Duration::from_millis(50);

/// How wide the bar of a full bucket is.
const BAR: usize = 40;

#[derive(Args)]
#[command(after_help = "\
A wait begins when a task is woken up or loses its CPU, and ends when it runs. Whichever scheduler there is, none included;
it needs root and BTF. The program counts in the kernel, so nothing but the counts is copied.
Examples:
  sudo ekiden runqlat                            all tasks, for 10 s
  sudo ekiden runqlat -c nginx --for 1min        threads of this name
  sudo ekiden runqlat -p 1234 --json             a thread, or all of a process
  sudo ekiden runqlat --compare default,wfq -- ekiden-load messaging
                                                 under one scheduler after another, side by side
It ends early when the process that -p names is gone.")]
pub(crate) struct Runqlat {
    /// Only this thread, or all threads of this process
    #[arg(short, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// Only threads of this name
    #[arg(short, value_name = "COMM")]
    comm: Option<String>,
    /// For this long; 10s if there is no command to wait for
    #[arg(long = "for", value_name = "TIME", value_parser = time_ns)]
    time: Option<u64>,
    /// Under each of these policies, one after another; `default` is the kernel's own scheduler
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    compare: Vec<String>,
    #[command(flatten)]
    source: PolicyArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// A command that runs meanwhile, and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Waits under one scheduler. All times in nanoseconds.
#[derive(Debug, Serialize)]
struct Counted {
    scheduler: String,
    /// Whether it was still in charge at the end.
    stayed: bool,
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

impl Runqlat {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if let Some(pid) = self.pid.filter(|pid| !exists(*pid)) {
            return Err(Failure::new(Exit::Usage, format!("there is no process or thread {pid}; see `ps -eL`")).into());
        }
        let events = Events::listen()?;
        let mut all = Vec::new();
        if self.compare.is_empty() {
            all.push(Counted::of(scheduler(), true, &self.count(&events)?));
        } else {
            for (contestant, modules) in self.contestants()? {
                if !self.json {
                    eprintln!("counting under {}", contestant.name());
                }
                let (waits, stayed) = contestant.run(&modules, || self.count(&events))?;
                all.push(Counted::of(contestant.name().to_owned(), stayed, &waits.unwrap_or_default()));
            }
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&all)?);
        } else {
            print!("{}", text(&all));
        }
        Ok(if all.iter().all(|counted| counted.stayed) { ExitCode::SUCCESS } else { Exit::ThrownOut.into() })
    }

    /// Whom to compare, each with the directory of its modules.
    fn contestants(&self) -> Result<Vec<(Contestant, std::path::PathBuf)>> {
        let mut progress = Progress::new();
        let contestant = |name: &String| {
            if name == OWN {
                return Ok((Contestant::Default, Default::default()));
            }
            policies::check_params(name, "")?;
            let directory = modules::for_this_machine(self.source.modules(), name, &mut progress)?;
            modules::in_directory(&directory, name)?;
            Ok((Contestant::Policy(name.clone()), directory))
        };
        self.compare.iter().map(contestant).collect()
    }

    fn count(&self, events: &Events) -> Result<Waits> {
        let counting = RunqLat::start(&Whom { pid: self.pid, name: self.comm.clone() })?;
        let default_ns = if self.command.is_empty() { 10_000_000_000 } else { u64::MAX };
        let time = Duration::from_nanos(self.time.unwrap_or(default_ns));
        let start = Instant::now();
        child::until(events, &self.command, LOOK, &mut || {
            let gone = self.pid.is_some_and(|pid| !exists(pid));
            if gone {
                eprintln!("ekiden: {} is gone; what follows is of the time before", self.pid.unwrap_or_default());
            }
            gone || start.elapsed() >= time
        })?;
        counting.waits().context("cannot read the counts")
    }
}

/// Threads have no entry in the list of /proc, but a directory.
fn exists(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

impl Counted {
    fn of(scheduler: String, stayed: bool, waits: &Waits) -> Self {
        let count: u64 = waits.buckets.iter().sum();
        let percentile = |part: f64| {
            let rank = (count as f64 * part).ceil() as u64;
            let mut before = 0;
            let bucket = waits.buckets.iter().position(|bucket| {
                before += bucket;
                before >= rank
            });
            bucket.filter(|_| count > 0).map_or(0, |bucket| begin_ns(bucket + 1).min(waits.max_ns))
        };
        let mut buckets: Vec<(u64, u64, u64)> = Vec::new();
        for (bucket, in_it) in waits.buckets.iter().enumerate().filter(|(_, in_it)| **in_it > 0) {
            let from_ns = begin_ns(bucket);
            let from_ns = if from_ns == 0 { 0 } else { 1 << from_ns.ilog2() };
            match buckets.last_mut().filter(|last| last.0 == from_ns) {
                Some(last) => last.2 += in_it,
                None => buckets.push((from_ns, (from_ns * 2).max(1), *in_it)),
            }
        }
        Self {
            scheduler,
            stayed,
            count,
            mean_ns: waits.sum_ns.checked_div(count).unwrap_or_default(),
            p50_ns: percentile(0.5),
            p90_ns: percentile(0.9),
            p99_ns: percentile(0.99),
            p99_9_ns: percentile(0.999),
            max_ns: waits.max_ns,
            buckets,
        }
    }
}

/// Where a bucket begins, of four a doubling.
fn begin_ns(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 4 { bucket } else { (4 + bucket % 4).checked_shl((bucket / 4 - 1) as u32).unwrap_or(u64::MAX) }
}

fn text(all: &[Counted]) -> String {
    let mut text = format!(
        "{:<28} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n",
        "scheduler, microseconds", "waits", "mean", "50 %", "90 %", "99 %", "99.9 %", "longest"
    );
    let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
    for counted in all {
        let Counted { scheduler, count, mean_ns, p50_ns, p90_ns, p99_ns, p99_9_ns, max_ns, .. } = counted;
        let times: Vec<String> =
            [mean_ns, p50_ns, p90_ns, p99_ns, p99_9_ns, max_ns].iter().map(|ns| format!("{:>10}", us(**ns))).collect();
        let thrown_out = if counted.stayed { "" } else { "  was thrown out" };
        text += &format!("{scheduler:<28} {count:>9} {}{thrown_out}\n", times.join(" "));
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
    fn percentiles_are_the_ends_of_their_buckets_and_not_beyond_the_longest() {
        // 98 waits of 8 to 9 ns, one of 1024 to 1279, one of 1100 at the longest.
        let mut buckets = vec![0; 256];
        (buckets[8], buckets[36]) = (98, 2);
        let counted = Counted::of("x".into(), true, &Waits { buckets, max_ns: 1_100, sum_ns: 2_980 });
        assert_eq!((counted.count, counted.mean_ns), (100, 29));
        assert_eq!((counted.p50_ns, counted.p90_ns, counted.p99_ns), (10, 10, 1_100));
        assert_eq!(counted.buckets, [(8, 16, 98), (1_024, 2_048, 2)]);
    }

    #[test]
    fn nothing_counted_is_nothing_shown() {
        let counted = Counted::of("x".into(), true, &Waits::default());
        assert_eq!((counted.count, counted.p99_ns, counted.max_ns), (0, 0, 0));
        assert!(text(&[counted]).contains("x "));
    }

    #[test]
    fn buckets_begin_where_the_kernels_program_counts_them() {
        assert_eq!((0..10).map(begin_ns).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]);
        assert_eq!(begin_ns(36), 1_024);
    }
}
