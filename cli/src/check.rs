//! `ekiden check`: whether what happened, or happens on this machine, keeps to what schedulers promise.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_check::{Checker, Limits, Violation};
use ekiden_loader::Sum;
use serde::Serialize;

use crate::{failure::Exit, live::Live, output::open_trace, progress::Progress, trace::time_ns};

/// How much of the CPU time of a window may be wasted on a live machine, in thousandths: looks see moments only, and a busy one is
/// crowded for a moment now and then under any scheduler.
const LIVE_WASTE: u32 = 100;

/// How many violations are printed for people.
const SHOWN: usize = 20;

#[derive(Args)]
#[command(after_help = "\
It looks for CPUs that idle while tasks wait elsewhere (papers/002, section
4.1), for CPU time wasted in pieces too short for that, added up, tasks that run
twice, are lost, wait too long, or run where they may not, kicks that come late,
groups that get more than their limit, calls that take too long, locks taken in
two orders, and tasks lost when a policy is replaced; with --lag also for
unfairness.
Examples:
  ekiden sim messaging -p fifo --trace out; ekiden check out
  ekiden check out --every 100 --persists 20
      looks ten times a second, and is less patient
  ekiden check out --json
  sudo ekiden check --live --for 1min --report waste.html
      this machine, under whichever scheduler: only idle CPUs
--live looks at the run queues every second, at next to no cost. It records only
while a CPU stays idle and a task waits that could use it, and reports what
stays so; where none stays idle, it looks for a window every 20 ms and adds up
what is wasted in turn. It respects affinities, cpusets, bandwidth limits and
isolated CPUs, and says when real-time tasks are in the way. When it finds
something, it saves the last calls of Ekiden's policies that run. It needs root
and BTF, and none of our modules. It exits with 118 if a promise was not kept.
See also: ekiden sim --invariants")]
pub(crate) struct Check {
    /// A trace, as `ekiden sim --trace` writes it
    #[arg(required_unless_present = "live", conflicts_with = "live")]
    trace: Option<PathBuf>,
    /// Watch the kernel of this machine instead
    #[arg(long)]
    live: bool,
    /// For this long, as in 60s; without it, until Ctrl-C
    #[arg(long = "for", value_name = "TIME", requires = "live", value_parser = time_ns)]
    time: Option<u64>,
    /// Write a page that shows the first CPU that was wasted
    #[arg(long, value_name = "FILE", requires = "live")]
    report: Option<PathBuf>,
    #[command(flatten)]
    bounds: Bounds,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// From where on something is a violation.
#[derive(Args, Clone, Debug)]
pub(crate) struct Bounds {
    /// How often to look for idle CPUs (S of papers/002)
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    every: u64,
    /// How long a CPU must be idle while tasks wait elsewhere (M of papers/002)
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    persists: u64,
    /// Over how long CPU time is added up that is wasted, in pieces too short for --persists
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    window: u64,
    /// How much of the CPU time of a window may be wasted, in thousandths; 20 if absent, and 100 with --live
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    waste: Option<u32>,
    /// How long a task has to wait before that counts as waste
    #[arg(long, value_name = "US", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(0..=3_600_000))]
    patience: u64,
    /// How long a task may wait for a CPU
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    wait: u64,
    /// How long an idle CPU may take to notice that a task waits there
    #[arg(long, value_name = "US", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    kick: u64,
    /// By how much a task may be off its share of a CPU in a second; without it, fairness is not looked at
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    lag: Option<u64>,
    /// How long a call into the policy may take
    #[arg(long, value_name = "US", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    call: u64,
    /// How long a task that waited when the policy was replaced may still wait
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    after_upgrade: u64,
}

impl Bounds {
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            every_ns: self.every * 1_000_000,
            persists_ns: self.persists * 1_000_000,
            window_ns: self.window * 1_000_000,
            waste_permille: self.waste.unwrap_or(Limits::default().waste_permille),
            patience_ns: self.patience * 1_000,
            wait_ns: self.wait * 1_000_000,
            kick_ns: self.kick * 1_000,
            lag_ns: self.lag.map(|ms| ms * 1_000_000),
            call_ns: self.call * 1_000,
            upgrade_ns: self.after_upgrade * 1_000_000,
        }
    }
}

#[derive(Serialize)]
struct Report<'a> {
    records: u64,
    /// Records that are missing, at least: what is found there may not have been so.
    lost: u64,
    limits: Limits,
    violations: &'a [Violation],
}

impl Check {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let Some(trace) = &self.trace else { return self.live() };
        let path = trace.display();
        let reader = open_trace(trace)?;
        let busy = Progress::brief(format!("checking {path}"));
        let mut checker = Checker::new(reader.header(), &self.bounds.limits());
        let (mut records, mut lost) = (0, 0_u64);
        for record in reader {
            let record = record.with_context(|| path.to_string())?;
            checker.record(&record);
            records += 1;
            lost = lost.saturating_add(record.lost());
        }
        let violations = checker.finish();
        drop(busy);
        if lost > 0 && !self.json {
            eprintln!(
                "ekiden: at least {lost} records were lost when it was recorded; what is missing was not checked"
            );
        }
        if self.json {
            let report = Report { records, lost, limits: self.bounds.limits(), violations: &violations };
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{records} records: {}", describe(&violations));
        }
        Ok(if violations.is_empty() { ExitCode::SUCCESS } else { Exit::BrokenPromise.into() })
    }

    fn live(&self) -> Result<ExitCode> {
        let live = Live {
            every: Duration::from_millis(self.bounds.every),
            persists: Duration::from_millis(self.bounds.persists),
            sum: Sum {
                window: Duration::from_millis(self.bounds.window),
                permille: self.bounds.waste.unwrap_or(LIVE_WASTE),
                patience: Duration::from_micros(self.bounds.patience),
            },
            time: self.time.map(Duration::from_nanos),
            report: self.report.clone(),
            json: self.json,
        };
        live.run()
    }
}

/// The violations for people, each on a line.
pub(crate) fn describe(violations: &[Violation]) -> String {
    let mut text = match violations.len() {
        0 => "every promise was kept\n".to_owned(),
        1 => "1 violation\n".to_owned(),
        count => format!("{count} violations\n"),
    };
    for violation in violations.iter().take(SHOWN) {
        text += &format!("{violation}\n");
    }
    if violations.len() > SHOWN {
        text += &format!("… and {} more; --json prints all\n", violations.len() - SHOWN);
    }
    text
}
