//! `ekiden check`: whether what happened keeps to what schedulers promise.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_check::{Checker, Limits, Violation};
use serde::Serialize;

use crate::{failure::Exit, output::open_trace};

/// How many violations are printed for people.
const SHOWN: usize = 20;

#[derive(Args)]
#[command(after_help = "\
It looks for CPUs that idle while tasks wait elsewhere (papers/002, section 4.1), tasks that run twice, are lost, wait
too long, or run where they may not, kicks that come late, groups that get more than their limit, calls that take too
long, locks taken in two orders, and tasks lost when a policy is replaced; with --lag also for unfairness.
Examples:
  ekiden sim messaging -p fifo --trace out; ekiden check out
  ekiden check out --every 100 --persists 20      looks ten times a second, and is less patient
  ekiden check out --json
It exits with 118 if a promise was not kept. See also: ekiden sim --invariants")]
pub(crate) struct Check {
    /// A trace, as `ekiden sim --trace` writes it
    trace: PathBuf,
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
    /// How long a task that waited when the policy was replaced may go on waiting
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    after_upgrade: u64,
}

impl Bounds {
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            every_ns: self.every * 1_000_000,
            persists_ns: self.persists * 1_000_000,
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
    limits: Limits,
    violations: &'a [Violation],
}

impl Check {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let path = self.trace.display();
        let reader = open_trace(&self.trace)?;
        let mut checker = Checker::new(reader.header(), &self.bounds.limits());
        let mut records = 0;
        for record in reader {
            checker.record(&record.with_context(|| path.to_string())?);
            records += 1;
        }
        let violations = checker.finish();
        if self.json {
            let report = Report { records, limits: self.bounds.limits(), violations: &violations };
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{records} records: {}", describe(&violations));
        }
        Ok(if violations.is_empty() { ExitCode::SUCCESS } else { Exit::BrokenPromise.into() })
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
