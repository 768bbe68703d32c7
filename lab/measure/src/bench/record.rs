//! `ekiden bench record`: what it costs to write down every call, and how fast that is replayed.

use std::{
    fs::File,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use ekiden_bench::{Comparison, Limit, Measurements};
use serde::{Deserialize, Serialize};

use super::{
    Unit,
    asked::Benchmark,
    candidates::{Candidate, Candidates, PolicyArgs, Values, under},
    guest::{Clock, InVm},
    load,
};
use crate::{
    policies,
    progress::Progress,
    recording::{RECORDING_KIB, ToFile},
    request::{Measurement, ask},
    session::Plan,
};

/// What a replay of a pipe's calls may take, by the time that the pipe takes under this machine's own scheduler.
const REPLAY: Limit = Limit { name: "wfq: replaying a round trip ÷ its time on this machine", at_most: 1.0 };

/// Round trips that are recorded for that.
const REPLAYED: u64 = 20_000;

/// Where the two processes are.
const PLACES: [(&str, &str); 2] = [("one_cpu", "0,0"), ("two_cpus_across", "0,1")];

/// What must be reached: limit, variant, place, reference.
const LIMITS: &[(Limit, &str, &str, &str)] = &[
    (Limit { name: "fifo, one CPU: flight recorder on ÷ off", at_most: 1.05 }, "fifo, flight", "one_cpu", "fifo"),
    (
        Limit { name: "fifo, across: flight recorder on ÷ off", at_most: 1.05 },
        "fifo, flight",
        "two_cpus_across",
        "fifo",
    ),
    (Limit { name: "wfq, one CPU: flight recorder on ÷ off", at_most: 1.05 }, "wfq, flight", "one_cpu", "wfq"),
    (Limit { name: "wfq, across: flight recorder on ÷ off", at_most: 1.05 }, "wfq, flight", "two_cpus_across", "wfq"),
    (Limit { name: "fifo, one CPU: recording ÷ not", at_most: 1.10 }, "fifo, recording", "one_cpu", "fifo"),
    (Limit { name: "fifo, across: recording ÷ not", at_most: 1.10 }, "fifo, recording", "two_cpus_across", "fifo"),
    (Limit { name: "wfq, one CPU: recording ÷ not", at_most: 1.10 }, "wfq, recording", "one_cpu", "wfq"),
    (Limit { name: "wfq, across: recording ÷ not", at_most: 1.10 }, "wfq, recording", "two_cpus_across", "wfq"),
];

#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[command(after_help = "\
Examples:
  ekiden bench record --vm --check
      instructions, in a virtual machine of its own; exits with 116 if a limit
      is missed
  ekiden bench record --vm --json   one JSON object
  sudo ekiden bench record          nanoseconds, in the kernel of this machine
`flight` is the flight recorder, which is on by default; `recording` drains it
into a file besides. What its reader uses of another CPU stands in a row of its
own: an emulator gives CPUs their turns, so that it is in the others' time too.")]
pub(crate) struct RecordBench {
    /// The policies to measure
    #[arg(long = "policy", value_name = "POLICY", default_values = ["fifo", "wfq"])]
    policies: Vec<String>,
    #[command(flatten)]
    source: PolicyArgs,
    /// How often each variant gets its turn; one more turn comes before and does not count
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// Round trips that are timed each time
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..))]
    round_trips: u64,
}

/// Where calls are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Nowhere,
    InFlight,
    InFile,
}

/// The variants that are compared, and their names in the table.
const VARIANTS: [(&str, Kept); 3] = [("", Kept::Nowhere), (", flight", Kept::InFlight), (", recording", Kept::InFile)];

impl Benchmark for RecordBench {
    const NAME: &'static str = "record";
    const CLOCK: Clock = Clock::Exact;

    fn candidates(&self) -> Candidates {
        Candidates::new(&self.policies, &self.source)
    }

    /// In a guest, but for the replay: that is timed on this machine.
    fn in_guest(&self, machine: &InVm) -> Result<Comparison> {
        let candidates = self.candidates();
        machine.with_guest(candidates.source(), candidates.policies(), Self::CLOCK, |vm, share, unit, progress| {
            let mut comparison = self.ask(vm, unit, progress)?;
            if candidates.has("wfq") {
                let recording = Recording { candidates: candidates.clone(), to: "/host/kept.ekirec".into() };
                ask(vm, &recording, unit, &mut |line| progress.note(line))?;
                progress.step("replaying".to_owned());
                comparison.limits.push(REPLAY.judge(Some(replay_ratio(&share.join("kept.ekirec"))?)));
                comparison.passed &= comparison.limits.iter().all(|judged| judged.met);
            }
            Ok(comparison)
        })
    }
}

impl Measurement for RecordBench {
    type Figures = Comparison;

    fn measure(&self, unit: Unit) -> Result<Comparison> {
        let mut progress = Progress::new();
        let (_, modules) = self.candidates().prepare(&mut progress)?;
        progress.step("waiting until the machine has settled");
        load::wait_until_quiet();
        let mut measurements = Measurements::default();
        for turn in 0..=self.repeat {
            for policy in &self.policies {
                for (suffix, kept) in VARIANTS {
                    let name = format!("{policy}{suffix}");
                    progress.step(format!("turn {turn} of {}: {name}", self.repeat));
                    let (values, stayed) = self.time(policy, kept, &modules)?;
                    measurements.was_still_scheduler(&name, stayed);
                    // The first turn warms caches of all kinds.
                    for (place, value) in values.into_iter().flatten().filter(|_| turn > 0) {
                        measurements.add(&name, place, value);
                    }
                }
            }
        }
        let limits: Vec<_> =
            LIMITS.iter().copied().filter(|(.., policy)| self.policies.iter().any(|name| name == policy)).collect();
        let unit = format!("{} per pipe round trip", unit.name());
        Ok(Comparison::new("record", &unit, &load::kernel_release()?, &measurements, &limits))
    }
}

impl RecordBench {
    fn time(&self, policy: &str, kept: Kept, modules: &Path) -> Result<(Option<Values>, bool)> {
        if kept == Kept::InFile {
            let file = tempfile::NamedTempFile::new().context("cannot create a file for the recording")?;
            return recorded(policy, modules, file.path(), self.round_trips, &PLACES);
        }
        let mut plan = Plan::new(policy, modules);
        if kept == Kept::Nowhere {
            plan.flight_kib = 0;
        }
        under(&plan, || pipes(policy, self.round_trips, &PLACES))
    }
}

/// A pipe under wfq, recorded, to be replayed on the machine that has booted the guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Recording {
    candidates: Candidates,
    /// The file that is written.
    to: PathBuf,
}

impl Measurement for Recording {
    type Figures = ();

    fn measure(&self, _unit: Unit) -> Result<()> {
        let (_, modules) = self.candidates.prepare(&mut Progress::new())?;
        let (_, stayed) = recorded("wfq", &modules, &self.to, REPLAYED, &PLACES[..1])?;
        ensure!(stayed, "the policy was taken out");
        Ok(())
    }
}

/// What round trips take under a policy whose calls all go to a file.
fn recorded(
    policy: &str,
    modules: &Path,
    path: &Path,
    round_trips: u64,
    places: &[(&'static str, &str)],
) -> Result<(Option<Values>, bool)> {
    let plan = Plan { flight_kib: RECORDING_KIB, ..Plan::new(policy, modules) };
    under(&plan, || {
        let recording = ToFile::start(path, None, false, &["pipe".into()])?;
        let mut values = pipes(policy, round_trips, places)?;
        let kept = recording.stop()?;
        ensure!(kept.lost == 0, "{} records were lost", kept.lost);
        values.push(("its_reader", kept.reader_ns as f64 / (round_trips * places.len() as u64) as f64));
        Ok(values)
    })
}

/// What a round trip takes in each place.
pub(super) fn pipes(policy: &str, round_trips: u64, places: &[(&'static str, &str)]) -> Result<Values> {
    pipes_with(&Candidate::Policy(policy.to_owned()), round_trips, places, &[])
}

/// Measures round trips under any scheduler, with more options of the load.
pub(super) fn pipes_with(
    candidate: &Candidate,
    round_trips: u64,
    places: &[(&'static str, &str)],
    options: &[&str],
) -> Result<Values> {
    let round_trips = round_trips.to_string();
    let time = |(place, cpus): &(&'static str, &str)| {
        let args = [&["pipe", "--round-trips", &round_trips, "--cpus", cpus, "--json"], options].concat();
        Ok((*place, load::time(candidate, &args)?))
    };
    places.iter().map(time).collect()
}

/// What replaying a round trip takes, by what one takes on this machine: medians of five, in turns.
fn replay_ratio(recording: &Path) -> Result<f64> {
    let [mut replays_ns, mut pipes_ns] = [[0.0; 5]; 2];
    for (replay_ns, pipe_ns) in replays_ns.iter_mut().zip(&mut pipes_ns) {
        let start = Instant::now();
        let file = File::open(recording).context("the guest has left no recording")?;
        let outcome = policies::replay().run(file)?;
        *replay_ns = start.elapsed().as_nanos() as f64 / REPLAYED as f64;
        ensure!(outcome.differences == 0 && outcome.calls > REPLAYED, "the replay differs: `ekiden replay` says how");
        let args = ["pipe", "--round-trips", "20000", "--cpus", "0,0", "--json"];
        let timed: serde_json::Value = serde_json::from_str(&load::output(&args)?)?;
        *pipe_ns = timed["median"].as_f64().context("the load says no median")?;
    }
    for values in [&mut replays_ns, &mut pipes_ns] {
        values.sort_by(f64::total_cmp);
    }
    Ok(replays_ns[2] / pipes_ns[2])
}
