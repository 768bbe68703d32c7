//! `ekiden explain`: why programs were slower or faster under one scheduler than under another, from a trace of each.

mod account;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_bench::{number, table};
use ekiden_loader::Whom;
use serde::Serialize;

use crate::{output::open_trace, progress::Progress};

use self::account::{Account, Accountant};

/// What differs by less says nothing.
const WORTH_TELLING: f64 = 1.05;

/// And what is less than so much of the CPU time of the tasks.
const WORTH_TELLING_PART: f64 = 0.01;

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden trace record own.trace -- make -j8
  ekiden run wfq -- ekiden trace record wfq.trace -- make -j8
  ekiden explain own.trace wfq.trace
      why the second one took longer, or less long
  ekiden explain own.trace wfq.trace -c cc1
      what it was for the tasks of this name
  ekiden sim hackbench -p eevdf --trace eevdf.trace
  ekiden sim hackbench -p wfq --trace wfq.trace
  ekiden explain eevdf.trace wfq.trace --json

Figures are for each second of CPU time that the tasks had, so that traces of
different lengths can be compared. Reasons are those that differ by 5 % or more,
the largest first. A cold CPU is one that had been idle for 0.1 ms or longer.
See also: ekiden runqlat --trace, ekiden view, ekiden check")]
pub(crate) struct Explain {
    /// Traces of the same load; the others are compared with the first
    #[arg(value_name = "FILE", num_args = 2.., required = true)]
    traces: Vec<PathBuf>,
    /// Only tasks of this name
    #[arg(short, long, value_name = "NAME")]
    comm: Option<String>,
    /// Only this task
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One trace, and how it differs from the first.
#[derive(Serialize)]
struct Explained {
    trace: PathBuf,
    #[serde(flatten)]
    account: Account,
    /// The largest difference first; none for the first trace.
    reasons: Vec<Reason>,
}

/// Something that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Reason {
    what: &'static str,
    /// For each second of CPU time of the tasks, in the unit that `what` says, or as it is.
    first: f64,
    here: f64,
    /// `here` divided by `first`; absent where the first has none.
    ratio: Option<f64>,
}

/// A figure: its name, how much it is, and whether it is a part of the CPU time.
struct Figure {
    what: &'static str,
    of: fn(&Account) -> f64,
    is_part: bool,
}

/// For each second of CPU time of the tasks.
fn each_s(account: &Account, count: u64) -> f64 {
    count as f64 * 1e9 / account.ran_ns.max(1) as f64
}

const FIGURES: &[Figure] = &[
    Figure { what: "ms waited", of: |a| each_s(a, a.waited_ns) / 1e6, is_part: true },
    Figure { what: "ms idle beside a waiting task", of: |a| each_s(a, a.wasted_ns) / 1e6, is_part: true },
    Figure { what: "wait p50, us", of: |a| a.wait_p50_ns as f64 / 1e3, is_part: false },
    Figure { what: "wait p99, us", of: |a| a.wait_p99_ns as f64 / 1e3, is_part: false },
    Figure { what: "longest wait, us", of: |a| a.wait_max_ns as f64 / 1e3, is_part: false },
    Figure { what: "switches", of: |a| each_s(a, a.switches), is_part: false },
    Figure { what: "preemptions", of: |a| each_s(a, a.preemptions), is_part: false },
    Figure { what: "starts on a cold CPU", of: |a| each_s(a, a.cold), is_part: false },
    Figure { what: "moves within a core", of: |a| each_s(a, a.moves.within_core), is_part: false },
    Figure { what: "moves within a cache", of: |a| each_s(a, a.moves.within_llc), is_part: false },
    Figure { what: "moves to another cache", of: |a| each_s(a, a.moves.within_node), is_part: false },
    Figure { what: "moves to another node", of: |a| each_s(a, a.moves.to_other_node), is_part: false },
    Figure { what: "CPUs used", of: |a| f64::from(a.cpus_used), is_part: false },
];

/// Figures that are shown and are no reason: they are what is to be explained, or go with the load.
const SHOWN: &[Figure] = &[
    Figure { what: "length, ms", of: |a| a.span_ns as f64 / 1e6, is_part: false },
    Figure { what: "CPU time of the tasks, ms", of: |a| a.ran_ns as f64 / 1e6, is_part: false },
    Figure { what: "CPUs busy", of: |a| a.busy_ns as f64 / a.span_ns.max(1) as f64, is_part: false },
    Figure { what: "wake-ups", of: |a| each_s(a, a.wakeups), is_part: false },
    Figure { what: "sleeps", of: |a| each_s(a, a.sleeps), is_part: false },
    Figure { what: "yields", of: |a| each_s(a, a.yields), is_part: false },
];

impl Explain {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let whom = Whom { pid: self.pid, name: self.comm.clone() };
        let accounts = self.traces.iter().map(|path| account(path, &whom)).collect::<Result<Vec<_>>>()?;
        let explained: Vec<Explained> = self
            .traces
            .iter()
            .zip(&accounts)
            .enumerate()
            .map(|(place, (trace, account))| Explained {
                trace: trace.clone(),
                account: account.clone(),
                reasons: if place == 0 { Vec::new() } else { reasons(&accounts[0], account) },
            })
            .collect();
        if self.json {
            println!("{}", serde_json::to_string_pretty(&explained)?);
        } else {
            print!("{}", text(&explained));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn account(path: &Path, whom: &Whom) -> Result<Account> {
    let _busy = Progress::brief(format!("reading {}", path.display()));
    let trace = open_trace(path)?;
    let mut accountant = Accountant::new(trace.header(), whom);
    for record in trace {
        accountant.record(&record.with_context(|| path.display().to_string())?);
    }
    let account = accountant.finish();
    if account.lost > 0 {
        eprintln!(
            "ekiden: {}: at least {} records were lost, so that figures are too low",
            path.display(),
            account.lost
        );
    }
    if account.ran_ns == 0 {
        eprintln!("ekiden: {}: no task that is asked for ran", path.display());
    }
    Ok(account)
}

/// The differences, the largest first.
fn reasons(first: &Account, here: &Account) -> Vec<Reason> {
    let mut reasons: Vec<(f64, Reason)> = FIGURES
        .iter()
        .filter_map(|figure| {
            let (before, after) = ((figure.of)(first), (figure.of)(here));
            let ratio = (before > 0.0).then(|| after / before);
            let size = ratio.map_or(f64::INFINITY, |ratio| if ratio < 1.0 { 1.0 / ratio } else { ratio });
            let is_small = figure.is_part && (after - before).abs() < 1e3 * WORTH_TELLING_PART;
            let differs = before != after && size >= WORTH_TELLING && !is_small;
            differs.then_some((size, Reason { what: figure.what, first: before, here: after, ratio }))
        })
        .collect();
    reasons.sort_by(|a, b| b.0.total_cmp(&a.0));
    reasons.into_iter().map(|(_, reason)| reason).collect()
}

fn text(explained: &[Explained]) -> String {
    let mut heading = vec!["for each second of CPU time"];
    heading.extend(explained.iter().map(|one| one.account.scheduler.as_str()));
    let row = |figure: &Figure| {
        let values = explained.iter().map(|one| number((figure.of)(&one.account)));
        [figure.what.to_owned()].into_iter().chain(values).collect::<Vec<_>>()
    };
    let mut text = table(&heading, SHOWN.iter().chain(FIGURES).map(row));
    text.push('\n');
    for one in explained.iter().skip(1) {
        let Explained { account, reasons, .. } = one;
        if reasons.is_empty() {
            text += &format!("{}: nothing differs by 5 % or more\n", account.scheduler);
            continue;
        }
        text += &format!("{} differs from {} by:\n", account.scheduler, explained[0].account.scheduler);
        for Reason { what, first, here, ratio } in reasons {
            let times = ratio.map_or_else(|| "there were none".to_owned(), |ratio| format!("{ratio:.2} times"));
            text += &format!("  {what}: {} instead of {}, {times}\n", number(*here), number(*first));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_what_differs_most_and_is_worth_telling() {
        let first =
            Account { ran_ns: 1_000_000_000, waited_ns: 100_000_000, switches: 1000, cold: 10, ..Account::default() };
        let here = Account {
            ran_ns: 2_000_000_000,
            waited_ns: 800_000_000,
            switches: 2050,
            cold: 0,
            wasted_ns: 9_000_000,
            ..first.clone()
        };
        let what: Vec<_> = reasons(&first, &here).into_iter().map(|reason| (reason.what, reason.ratio)).collect();
        // Switches differ by 2.5 %, and what was wasted is less than a hundredth of the CPU time.
        assert_eq!(what, [("starts on a cold CPU", Some(0.0)), ("ms waited", Some(4.0))]);
        assert!(reasons(&first, &first.clone()).is_empty());
    }
}
