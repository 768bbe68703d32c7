//! `ekiden replay`: the calls of a recording, given to the policy again.

mod debugger;

use std::{
    fs::File,
    io::{BufReader, BufWriter, IsTerminal},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_recording::{Header, RecordingReader};
use ekiden_replay::{Outcome, ReplayError};
use serde::Serialize;

use crate::{
    failure::{Exit, Failure},
    own::{self, AsRoot, Needs},
    policies,
    progress::Progress,
};

/// How many pieces and remarks are shown; --json has more.
const SHOWN: usize = 20;

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden sim churn -p wfq --record out.ekirec
      records a simulation
  ekiden replay out.ekirec
      whether the policy answers as it did
  ekiden replay out.ekirec --set slice_min_us=50
      what another parameter changes first
  ekiden replay out.ekirec --stop-on-diff
      no further than the first difference
  ekiden replay out.ekirec --stop-at 530
      gdb or lldb, in the policy's method for call 530
  ekiden replay out.ekirec --what-if fifo
      what another policy would have decided
It exits with 118 if the policy answers differently, and with 0 if it does not.")]
pub(crate) struct ReplayCommand {
    /// A recording, as `ekiden record` and `ekiden sim --record` write it
    recording: PathBuf,
    /// Another value of a parameter than the recording says
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// End a few calls after the first difference; in a terminal, stop there under gdb, or lldb
    #[arg(long)]
    stop_on_diff: bool,
    /// Ask another policy what it would have decided, as in fifo or wfq:slice_min_us=500
    #[arg(long, value_name = "POLICY", conflicts_with_all = ["set", "stop_on_diff"])]
    what_if: Option<String>,
    /// Stop under gdb, or lldb, in the policy's method for this call
    #[arg(long, value_name = "N", conflicts_with_all = ["what_if", "json"], value_parser = clap::value_parser!(u64).range(1..))]
    stop_at: Option<u64>,
    /// Says that a debugger runs this program already
    #[arg(long, hide = true, requires = "stop_at")]
    debugged: bool,
    /// End after this call
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    until: Option<u64>,
    /// Say on standard error what the policy says of its decisions by now: what it notes, and the text of `ekiden::debug!`
    #[arg(long, conflicts_with = "what_if")]
    debug: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    as_root: AsRoot,
}

#[derive(Serialize)]
struct Report<'a> {
    recording: &'a Header,
    #[serde(flatten)]
    outcome: &'a Outcome,
    /// How long what was replayed took to happen, and to replay.
    happened_s: f64,
    replay_s: f64,
    /// How long replaying took, divided by how long it took to happen.
    replay_per_happened: f64,
    replay_ns_per_call: f64,
}

impl ReplayCommand {
    /// The policies that have to be in this process.
    pub(crate) fn needs(&self) -> Needs {
        Needs::of(recorded(&self.recording).into_iter().chain(self.what_if.clone()), self.as_root)
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        let header = RecordingReader::new(open(&self.recording)?).with_context(|| self.context())?.header().clone();
        if let Some(policy) = &self.what_if {
            return self.what_if(policy, &header);
        }
        if self.stop_at.is_some() && !self.debugged {
            return debugger::run(&self.recording, self.stop_at.unwrap_or(1), &self.set);
        }
        let mut replay = policies::replay();
        if !self.set.is_empty() {
            let all = format!("{} {}", header.instance.params, self.set.join(" "));
            policies::check_params(&header.instance.policy, &all)?;
            replay = replay.with_params(&all);
        }
        if self.stop_on_diff {
            replay = replay.stop_on_difference();
        }
        if let Some(call) = self.stop_at {
            replay = replay.stop_before(call);
        }
        if let Some(call) = self.until {
            replay = replay.until(call);
        }
        if self.debug {
            replay = replay.debug_into(BufWriter::new(std::io::stderr()));
        }
        // Under a debugger the terminal is the debugger's.
        let busy = (!self.debugged && !self.debug).then(|| Progress::brief(format!("replaying {}", self.context())));
        let begin = Instant::now();
        let outcome = replay.run(open(&self.recording)?).map_err(|error| self.failure(&error))?;
        let replay_s = begin.elapsed().as_secs_f64();
        drop(busy);
        let happened_s = outcome.span_ns as f64 / 1e9;
        let report = Report {
            recording: &header,
            outcome: &outcome,
            happened_s,
            replay_s,
            replay_per_happened: replay_s / happened_s,
            replay_ns_per_call: replay_s * 1e9 / outcome.replayed.max(1) as f64,
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{}", report.to_text());
            if let Some(first) = outcome.first.as_ref().filter(|_| !self.debugged) {
                let number = first.call.number;
                if self.stop_on_diff && std::io::stdin().is_terminal() {
                    return debugger::run(&self.recording, number, &self.set);
                }
                println!("next: ekiden replay {} --stop-at {number}", self.context());
            }
        }
        Ok(if outcome.differences == 0 { ExitCode::SUCCESS } else { Exit::BrokenPromise.into() })
    }

    fn what_if(&self, policy: &str, header: &Header) -> Result<ExitCode> {
        let (policy, params) = policy.split_once(':').unwrap_or((policy, ""));
        policies::check_params(policy, params)?;
        let replay = policies::replay().with_params(params).until(self.until.unwrap_or(u64::MAX));
        let busy = Progress::brief(format!("asking {policy} about {}", self.context()));
        let what_if = replay.what_if(policy, open(&self.recording)?).map_err(|error| self.failure(&error))?;
        drop(busy);
        if self.json {
            println!("{}", serde_json::to_string_pretty(&what_if)?);
        } else {
            println!("{} calls into {}, and what {policy} would have decided:", what_if.calls, header.instance.policy);
            print!("{what_if}");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn failure(&self, error: &ReplayError) -> Failure {
        let exit = match error {
            ReplayError::OtherPolicy { .. } | ReplayError::NoPolicy { .. } => Exit::NoPolicy,
            ReplayError::Params { .. } => Exit::BadParameters,
            _ => Exit::Other,
        };
        if let ReplayError::OtherPolicy { policy, .. } | ReplayError::NoPolicy { policy, .. } = error {
            return Failure::new(exit, format!("{}: {}", self.context(), own::unknown(policy)));
        }
        Failure::new(exit, format!("{}: {error}", self.context()))
    }

    fn context(&self) -> String {
        self.recording.display().to_string()
    }
}

/// The policy of a recording, if it can be read at all: it will be said otherwise what is wrong with it.
pub(crate) fn recorded(path: &Path) -> Option<String> {
    Some(RecordingReader::new(open(path).ok()?).ok()?.header().instance.policy.clone())
}

fn open(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(BufReader::with_capacity(1 << 20, file))
}

impl Report<'_> {
    fn to_text(&self) -> String {
        let Self { recording, outcome, .. } = self;
        let mut text = format!(
            "{} under {}: {} calls in {:.3} s, {} replayed in {:.3} s",
            if recording.workload.is_empty() { "a recording" } else { &recording.workload },
            recording.instance.policy,
            outcome.calls,
            self.happened_s,
            outcome.replayed,
            self.replay_s,
        );
        if outcome.replayed > 0 {
            text += &format!(" ({:.0} ns a call)", self.replay_ns_per_call);
        }
        text.push('\n');
        for exact in outcome.exact.iter().take(SHOWN) {
            let how = if exact.from_beginning { "" } else { ", as far as can be told" };
            text += &format!("exact from call {} to {}{how}\n", exact.from, exact.to);
        }
        if outcome.exact.len() != 1 {
            text += &format!(
                "{} of {} calls exactly, in {} pieces\n",
                outcome.exact_calls,
                outcome.calls,
                outcome.exact.len()
            );
        }
        let (early, late) = outcome.remarks.split_at(outcome.remarks.len().min(SHOWN));
        for remark in early.iter().chain(late.last()) {
            text += &format!("{remark}\n");
        }
        if let Some(first) = &outcome.first {
            text += &format!("first difference: {first}");
        }
        if let (None, Some(first)) = (&outcome.first, &outcome.first_not_exact) {
            text += &format!(
                "after a gap, where the policy's state is not known, the first call with another answer: {first}"
            );
        }
        if outcome.not_exact > 0 {
            text += &format!("{} calls after gaps answered otherwise, maybe because of them\n", outcome.not_exact);
        }
        text + &format!("{} differences\n", outcome.differences)
    }
}
