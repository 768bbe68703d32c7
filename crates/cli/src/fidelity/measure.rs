//! The side of the real kernel: loads under a scheduler, recorded, and what the recording comes to.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use ekiden_loader::Recorder;
use ekiden_trace::{Figures, Header, Trace};
use ekiden_workload::{Report, Workload, exec::usable_cpus};
use serde::{Deserialize, Serialize};

use super::loads;
use crate::{
    bench::{
        contest::{Contest, Contestant},
        load,
    },
    progress::Progress,
};

/// Room for two million records, which no load here needs.
const RING_BYTES: u32 = 64 << 20;

/// What a load showed, on either side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Shown {
    /// When its last task was done, which is as long as the load took.
    pub(super) done_ns: u64,
    pub(super) switches: u64,
    pub(super) migrations: u64,
    pub(super) wait_mean_ns: f64,
    pub(super) wait_p50_ns: u64,
    pub(super) wait_p90_ns: u64,
    pub(super) wait_p99_ns: u64,
    /// CPU time of tasks that are not the load's.
    pub(super) others_ns: u64,
    /// CPU time of the load's tasks without their children.
    pub(super) own_ns: u64,
}

/// One load under one policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) policy: String,
    pub(super) load: String,
    /// Absent if the policy was thrown out.
    pub(super) shown: Option<Shown>,
}

/// All that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) kernel: String,
    /// Whether a nanosecond is an instruction.
    pub(super) counts: bool,
    /// The machine.
    pub(super) machine: Header,
    pub(super) runs: Vec<Run>,
}

impl Measured {
    /// Whether no policy was thrown out.
    pub(super) fn all_stayed(&self) -> bool {
        self.runs.iter().all(|run| run.shown.is_some())
    }
}

impl Shown {
    pub(super) fn of(report: &Report, trace: &Trace, begin_ns: u64) -> Self {
        let zero_ns = report.zero_ns.map_or(0, |zero_ns| zero_ns.saturating_sub(begin_ns));
        let done_ns = report.tasks.iter().filter_map(|task| task.finish_ns).max().unwrap_or(report.wall_ns);
        // Where PIDs are not told, all tasks of the trace are the load's.
        let pids: Option<Vec<u32>> = report.tasks.iter().map(|task| task.pid).collect();
        let figures = Figures::of(trace.records(), pids.as_deref(), zero_ns..zero_ns + done_ns);
        Self {
            done_ns,
            switches: figures.switches,
            migrations: figures.migrations,
            wait_mean_ns: figures.wait_mean_ns(),
            wait_p50_ns: figures.wait_ns(500),
            wait_p90_ns: figures.wait_ns(900),
            wait_p99_ns: figures.wait_ns(990),
            others_ns: figures.others_ran_ns,
            own_ns: report.cpu_ns(),
        }
    }
}

/// Runs all loads under all policies on the kernel of this machine.
pub(super) fn measure(contest: &Contest, names: &[String], counts: bool) -> Result<Measured> {
    let mut progress = Progress::new();
    let (contestants, modules) = contest.prepare(&mut progress)?;
    progress.step("waiting until the machine has settled");
    load::settle();
    let cpus = usable_cpus()?;
    let speed = load::calibrate()?;
    let topology = ekiden_machine::read_sysfs("/sys".as_ref()).context("cannot read this machine's topology")?;
    let mut runs = Vec::new();
    for contestant in contestants.iter().filter(|contestant| matches!(contestant, Contestant::Policy(_))) {
        for name in names {
            let load = loads::find(name, cpus)?;
            progress.step(format!("{name} under {}", contestant.name()));
            let (shown, stayed) = contestant.run(&modules, || {
                // The first time warms caches of all kinds.
                run(contestant, &load, &speed)?;
                run(contestant, &load, &speed)
            })?;
            let shown = shown.filter(|_| stayed);
            runs.push(Run { policy: contestant.name().to_owned(), load: name.clone(), shown });
        }
    }
    Ok(Measured { kernel: load::kernel_release()?, counts, machine: Header::of(&topology), runs })
}

fn run(contestant: &Contestant, workload: &Workload, speed: &str) -> Result<Shown> {
    let file = tempfile::NamedTempFile::with_suffix(".json").context("cannot create a file for a load")?;
    fs::write(file.path(), workload.to_json()).context("cannot write a load")?;
    let path = path(file.path());
    let recorder = Recorder::start(RING_BYTES)?;
    let printed = load::output(&["run", &path, "--json", "--watchdog", "600", "--loops-per-ms", speed])?;
    let recording = recorder.stop(&workload.name)?;
    if recording.lost > 0 {
        bail!("{} records of {} were lost; take a smaller load", recording.lost, workload.name);
    }
    let report: Report = serde_json::from_str(&printed).context("ekiden-load says something strange")?;
    load::expect(contestant, report.scheduler.as_deref())?;
    Ok(Shown::of(&report, &recording.trace, recording.begin_ns))
}

fn path(path: &Path) -> String {
    path.display().to_string()
}
