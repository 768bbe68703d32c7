//! `ekiden check --live`: whether this machine wastes CPUs, under whichever scheduler.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::mpsc::{RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use ekiden_check::{Checker, Limits, Verdict};
use ekiden_loader::{Evidence, Finding, LiveChecker, LookCounts, Sum, scheduler};
use ekiden_page::{Builder, Notes};
use serde::Serialize;

use crate::{failure::Exit, flights, output::Output, progress::Progress, report, session, signals};

/// What to look for, and for how long.
pub(crate) struct Live {
    /// S and M of papers/002.
    pub(crate) every: Duration,
    pub(crate) persists: Duration,
    pub(crate) sum: Sum,
    /// Until Ctrl-C without it.
    pub(crate) time: Option<Duration>,
    /// Where to write a page of the first finding.
    pub(crate) report: Option<PathBuf>,
    pub(crate) json: bool,
}

#[derive(Debug, Serialize)]
struct Found {
    /// Since this command began.
    after_ms: u64,
    /// The last calls of the policies that ran, if their flight recorders are on and it is the first finding.
    recordings: Vec<PathBuf>,
    #[serde(flatten)]
    finding: Finding,
}

#[derive(Debug, Serialize)]
struct Summary<'a> {
    scheduler: String,
    #[serde(flatten)]
    counts: LookCounts,
    findings: &'a [Found],
}

impl Live {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let (sender, signal) = channel();
        let _handling =
            signals::handle(move |_| sender.send(()).unwrap_or_default()).context("cannot handle signals")?;
        // A signal that comes during a look ends more than the look.
        let mut has_ended = false;
        let mut pause = |time| {
            has_ended |= signal.recv_timeout(time) != Err(RecvTimeoutError::Timeout);
            !has_ended
        };
        // Fails now if the report cannot be written, not after hours of watching.
        self.report.as_deref().map_or(Ok(()), |path| Output::create(path).map(drop))?;
        let mut checker = LiveChecker::load(self.persists)?.adding_up(self.sum);
        let start = Instant::now();
        let mut findings = Vec::new();
        let watching = Progress::open(format!("watching {}; Ctrl-C ends it", scheduler()));
        let is_over = || self.time.is_some_and(|time| start.elapsed() >= time);
        // The last look is at the end.
        while !is_over() && pause(self.next_look(start)) {
            let Some(evidence) = checker.look(&mut pause)? else { continue };
            let after_ms = start.elapsed().as_millis() as u64;
            if !self.json {
                watching.aside(|| println!("{:.1} s: {}", after_ms as f64 / 1e3, evidence.finding));
            }
            let mut recordings = Vec::new();
            if findings.is_empty() {
                // First, as new calls overwrite it.
                recordings = watching.aside(|| session::save_flights(&flights::usual()));
                watching.aside(|| self.write_report(&evidence))?;
            }
            findings.push(Found { after_ms, recordings, finding: evidence.finding });
        }
        drop(watching);
        self.say(&Summary { scheduler: scheduler(), counts: checker.counts, findings: &findings })
    }

    /// How long until the next look, or the end.
    fn next_look(&self, start: Instant) -> Duration {
        let left = self.time.map_or(self.every, |time| time.saturating_sub(start.elapsed()));
        left.min(self.every)
    }

    fn write_report(&self, evidence: &Evidence) -> Result<()> {
        let Some(path) = &self.report else { return Ok(()) };
        let Evidence { finding, violation, header, trace } = evidence;
        let notes = Notes { heading: Some(finding.to_string()), ..Notes::default() };
        let mut builder = Builder::new(header);
        let mut checker = Checker::new(header, &Limits::default());
        trace.records().for_each(|record| {
            builder.record(&record);
            checker.record(&record);
        });
        // Only what was found: the trace knows no cpusets and limits. What was wasted over time is shown as it knows it.
        let verdict = Verdict { violations: vec![violation.clone()], ..checker.verdict() };
        report::write_page(path, header, &builder.finish(), &verdict, notes)?;
        eprintln!("next: open {} in a browser", path.display());
        Ok(())
    }

    fn say(&self, summary: &Summary<'_>) -> Result<ExitCode> {
        let faults = summary.findings.iter().filter(|found| found.finding.is_schedulers_fault).count();
        if self.json {
            println!("{}", serde_json::to_string_pretty(summary)?);
        } else {
            let LookCounts { looks, suspicions, watched, added_up } = summary.counts;
            println!(
                "{looks} looks, {suspicions} with an idle CPU and a waiting task, {watched} of them watched, {added_up} added up"
            );
            match summary.findings.len() {
                0 => println!("no CPU was wasted"),
                count => println!("{count} times CPUs were wasted, {faults} of them by the scheduler"),
            }
        }
        Ok(if faults > 0 { Exit::BrokenPromise.into() } else { ExitCode::SUCCESS })
    }
}
