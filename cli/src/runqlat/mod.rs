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
use ekiden_measure::{
    Candidate, PolicyArgs,
    waits::{Counted, OWN, text},
};
use ekiden_page::{Compared, Histogram, compare};

use crate::{
    child::{self, Events},
    failure::{Exit, Failure},
    output,
    progress::Progress,
    trace::time_ns,
};

/// How often to look whether it is over.
const LOOK: Duration = Duration::from_millis(50);

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
        Ok(if counted.iter().all(|counted| counted.stayed) { ExitCode::SUCCESS } else { Exit::TakenOut.into() })
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
        for (candidate, modules) in self.candidates()? {
            if !self.json {
                eprintln!("counting under {}", candidate.name());
            }
            let (waits, stayed) = candidate.run(&modules, || self.count(&events))?;
            let note = (!stayed).then(|| "was taken out".to_owned());
            all.push((Compared { name: candidate.name().to_owned(), note, waits: waits.unwrap_or_default() }, stayed));
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
    fn candidates(&self) -> Result<Vec<(Candidate, std::path::PathBuf)>> {
        let mut progress = Progress::new();
        let candidate = |name: &String| {
            if name == OWN {
                return Ok((Candidate::Default, Default::default()));
            }
            let directory = self.source.for_this_machine(name, &mut progress)?;
            Ok((Candidate::Policy(name.clone()), directory))
        };
        self.compare.iter().map(candidate).collect()
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

/// Threads have no entry in the list of /proc, but a directory. A zombie still has one.
fn is_alive(pid: u32) -> bool {
    let directory = Path::new("/proc").join(pid.to_string());
    let Ok(stat) = fs::read_to_string(directory.join("stat")) else { return false };
    let is_zombie = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']));
    // The first thread may have ended before the others.
    !is_zombie || fs::read_dir(directory.join("task")).is_ok_and(|threads| threads.count() > 1)
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
}
