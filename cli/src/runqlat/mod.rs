//! `ekiden runqlat`: how long tasks wait for a CPU, as histograms and percentiles, as in papers/003.

mod recorded;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_loader::{RunqLat, Whom, scheduler};
use ekiden_page::{Compared, Histogram, compare};
use serde::{Deserialize, Serialize};

use crate::{
    bench::contest::{Contestant, PolicyArgs},
    child::{self, Events},
    failure::{Exit, Failure},
    modules::{self, Allowed},
    output, policies,
    progress::Progress,
    trace::time_ns,
};

/// The name of the kernel's own scheduler among those to compare.
pub(crate) const OWN: &str = "default";

/// How often to look whether it is over.
const LOOK: Duration = Duration::from_millis(50);

/// How wide the bar of a full bucket is, and the name of a scheduler in the table. Both leave lines of 80 columns.
const BAR: usize = 39;
const NAME: usize = 16;

#[derive(Args)]
#[command(after_help = "\
A wait begins when a task is woken up or loses its CPU, and ends when it runs.
Whichever scheduler there is, none included; it needs root and BTF. The program
counts in the kernel, so nothing but the counts is copied.
Examples:
  sudo ekiden runqlat                       all tasks, for 10 s
  sudo ekiden runqlat -c nginx --for 1min   threads of this name
  sudo ekiden runqlat -p 1234 --json        a thread, or all of a process
  sudo ekiden runqlat --compare default,wfq -- ekiden-load messaging
      under one scheduler after another, side by side
  sudo ekiden runqlat --report waits.html   the same as a page with pictures
  ekiden runqlat --trace out --trace trace.dat
      what was recorded: traces, and files of trace-cmd and perf
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
    /// Count in this trace instead of on this machine; may be given again, to compare them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["time", "compare", "command"])]
    trace: Vec<PathBuf>,
    /// Write a page with the histograms side by side
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// A command that runs meanwhile, and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Waits under one scheduler. All times in nanoseconds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Counted {
    pub(crate) scheduler: String,
    /// Whether it was still in charge at the end.
    pub(crate) stayed: bool,
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
        let all = if self.trace.is_empty() { self.count_here()? } else { self.count_recorded()? };
        let counted: Vec<Counted> =
            all.iter().map(|(compared, stayed)| Counted::of(compared.name.clone(), *stayed, &compared.waits)).collect();
        if self.json {
            println!("{}", serde_json::to_string_pretty(&counted)?);
        } else {
            print!("{}", text(&counted));
        }
        if let Some(path) = &self.report {
            let compared: Vec<Compared> = all.into_iter().map(|(compared, _)| compared).collect();
            output::write(path, compare(&self.heading(), &compared).as_bytes())?;
            eprintln!("next: open {} in a browser", path.display());
        }
        Ok(if counted.iter().all(|counted| counted.stayed) { ExitCode::SUCCESS } else { Exit::ThrownOut.into() })
    }

    /// Under which schedulers how long was waited, and whether they were in charge to the end.
    fn count_here(&self) -> Result<Vec<(Compared, bool)>> {
        if let Some(pid) = self.pid.filter(|pid| !is_alive(*pid)) {
            return Err(Failure::new(Exit::Usage, format!("there is no process or thread {pid}; see `ps -eL`")).into());
        }
        let events = Events::listen()?;
        if self.compare.is_empty() {
            let waits = self.count(&events)?;
            return Ok(vec![(Compared { name: scheduler(), note: None, waits }, true)]);
        }
        let mut all = Vec::new();
        for (contestant, modules) in self.contestants()? {
            if !self.json {
                eprintln!("counting under {}", contestant.name());
            }
            let (waits, stayed) = contestant.run(&modules, || self.count(&events))?;
            let note = (!stayed).then(|| "was thrown out".to_owned());
            all.push((Compared { name: contestant.name().to_owned(), note, waits: waits.unwrap_or_default() }, stayed));
        }
        Ok(all)
    }

    fn count_recorded(&self) -> Result<Vec<(Compared, bool)>> {
        let whom = Whom { pid: self.pid, name: self.comm.clone() };
        let count =
            |path: &PathBuf| recorded::count(path, &whom, self.trace.len() > 1).map(|compared| (compared, true));
        self.trace.iter().map(count).collect()
    }

    /// What stands above the page.
    fn heading(&self) -> String {
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        let whom = match (&self.comm, self.pid) {
            (Some(name), _) => format!("tasks called {name} wait"),
            (None, Some(pid)) => format!("PID {pid} waits"),
            (None, None) => "tasks wait".into(),
        };
        let meanwhile = if words.is_empty() { String::new() } else { format!(", while {} runs", words.join(" ")) };
        format!("How long {whom} for a CPU{meanwhile}")
    }

    /// Whom to compare, each with the directory of its modules.
    fn contestants(&self) -> Result<Vec<(Contestant, std::path::PathBuf)>> {
        let mut progress = Progress::new();
        let contestant = |name: &String| {
            if name == OWN {
                return Ok((Contestant::Default, Default::default()));
            }
            policies::check_params(name, "")?;
            let directory = modules::for_this_machine(self.source.modules(), name, &Allowed::default(), &mut progress)?;
            modules::in_directory(&directory, name)?;
            Ok((Contestant::Policy(name.clone()), directory))
        };
        self.compare.iter().map(contestant).collect()
    }

    fn count(&self, events: &Events) -> Result<Histogram> {
        let counting = RunqLat::start(&Whom { pid: self.pid, name: self.comm.clone() })?;
        let default_ns = if self.command.is_empty() { 10_000_000_000 } else { u64::MAX };
        let time = Duration::from_nanos(self.time.unwrap_or(default_ns));
        let start = Instant::now();
        let what = format!("counting how long tasks wait under {}", scheduler());
        child::until(events, &self.command, &what, LOOK, &mut || {
            let gone = self.pid.is_some_and(|pid| !is_alive(pid));
            if gone {
                eprintln!("ekiden: {} is gone; what follows is of the time before", self.pid.unwrap_or_default());
            }
            gone || start.elapsed() >= time
        })?;
        let waits = counting.waits().context("cannot read the counts")?;
        Ok(Histogram::from_counts(waits.buckets, waits.sum_ns.into(), waits.max_ns))
    }
}

/// Threads have no entry in the list of /proc, but a directory. A process that has ended, and that nobody has waited for, still has one.
fn is_alive(pid: u32) -> bool {
    let directory = Path::new("/proc").join(pid.to_string());
    let Ok(stat) = fs::read_to_string(directory.join("stat")) else { return false };
    let is_zombie = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']));
    // The first thread may have ended before the others.
    !is_zombie || fs::read_dir(directory.join("task")).is_ok_and(|threads| threads.count() > 1)
}

impl Counted {
    fn of(scheduler: String, stayed: bool, waits: &Histogram) -> Self {
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
pub(crate) fn text(all: &[Counted]) -> String {
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
            text += "  was thrown out\n";
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
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_nobody_has_waited_for_is_gone() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(is_alive(child.id()));
        child.kill().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while is_alive(child.id()) {
            assert!(Instant::now() < deadline, "{} is still there", child.id());
        }
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
    }

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
              was thrown out

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
