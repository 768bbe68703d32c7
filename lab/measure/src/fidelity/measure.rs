//! The side of the real kernel: loads under a scheduler, recorded, and what the recording comes to.

use std::{
    cmp::Ordering,
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use ekiden_loader::{Recording, ShortRecorder};
use ekiden_trace::{Figures, Header, Trace};
use ekiden_workload::{Report, Workload, real::exec::usable_cpus};
use serde::{Deserialize, Serialize};

use super::loads;
use crate::{
    bench::{
        Unit,
        candidates::{Candidate, Candidates},
        load,
    },
    progress::Progress,
    request::Measurement,
};

/// Room for a million records of each CPU, which no load here needs.
pub(crate) const RING_BYTES: u32 = 32 << 20;

/// How long the kernel has other things to do after a scheduler or a recorder has come or gone.
const QUIET: Duration = Duration::from_millis(500);

/// What a load showed, on either side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Shown {
    /// The time from its start until its last task was done.
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
    /// One for each repeat; empty if the policy was taken out.
    pub(super) shown: Vec<Shown>,
}

/// All that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(super) kernel: String,
    /// Whether a nanosecond is an instruction.
    pub(super) counts: bool,
    /// The machine.
    pub(super) machine: Header,
    pub(super) runs: Vec<Run>,
}

impl Measured {
    /// The policies that were measured, each as often as it was.
    pub(super) fn policies(&self) -> Vec<String> {
        self.runs.iter().map(|run| run.policy.clone()).collect()
    }

    /// Whether no policy was taken out.
    pub(super) fn all_stayed(&self) -> bool {
        self.runs.iter().all(|run| !run.shown.is_empty())
    }
}

impl Shown {
    /// The median of each figure; nothing of nothing.
    pub(super) fn median(all: &[Self]) -> Option<Self> {
        fn middle<T: Copy>(all: &[Shown], figure: impl Fn(&Shown) -> T, order: impl Fn(&T, &T) -> Ordering) -> T {
            let mut values: Vec<T> = all.iter().map(figure).collect();
            values.sort_by(order);
            values[values.len() / 2]
        }
        let number = |figure: fn(&Self) -> u64| middle(all, figure, u64::cmp);
        (!all.is_empty()).then(|| Self {
            done_ns: number(|shown| shown.done_ns),
            switches: number(|shown| shown.switches),
            migrations: number(|shown| shown.migrations),
            wait_mean_ns: middle(all, |shown| shown.wait_mean_ns, f64::total_cmp),
            wait_p50_ns: number(|shown| shown.wait_p50_ns),
            wait_p90_ns: number(|shown| shown.wait_p90_ns),
            wait_p99_ns: number(|shown| shown.wait_p99_ns),
            others_ns: number(|shown| shown.others_ns),
            own_ns: number(|shown| shown.own_ns),
        })
    }

    pub(super) fn of(report: &Report, trace: &Trace, begin_ns: u64) -> Self {
        let zero_ns = report.zero_ns.map_or(0, |zero_ns| zero_ns.saturating_sub(begin_ns));
        let start = report.task(loads::STARTER).and_then(|starter| starter.marks_ns.first());
        let start_ns = start.copied().unwrap_or(0);
        let last_ns = report.tasks.iter().filter_map(|task| task.finish_ns).max().unwrap_or(report.wall_ns);
        // Where PIDs are not told, all tasks of the trace are the load's.
        let pids: Option<Vec<u32>> = report.tasks.iter().map(|task| task.pid).collect();
        let own = report.tasks.iter().filter(|task| !task.name.starts_with(loads::SETTLER));
        let figures = Figures::of(trace, pids.as_deref(), zero_ns + start_ns..zero_ns + last_ns);
        Self {
            done_ns: last_ns.saturating_sub(start_ns),
            switches: figures.switches,
            migrations: figures.migrations,
            wait_mean_ns: figures.wait_mean_ns(),
            wait_p50_ns: figures.wait_ns(500),
            wait_p90_ns: figures.wait_ns(900),
            wait_p99_ns: figures.wait_ns(990),
            others_ns: figures.others_ran_ns,
            own_ns: own.map(|task| task.cpu_ns).sum(),
        }
    }
}

/// What the real kernel is measured by: these loads under each policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Real {
    pub(super) candidates: Candidates,
    pub(super) loads: Vec<String>,
    /// How often each is measured.
    pub(super) repeat: u32,
    /// The directory for the traces, if they are kept.
    pub(super) traces: Option<PathBuf>,
}

impl Measurement for Real {
    type Figures = Measured;

    /// On the kernel of this machine.
    fn measure(&self, unit: Unit) -> Result<Measured> {
        let Self { candidates, loads: names, repeat, traces } = self;
        let counts = unit == Unit::Instructions;
        let mut progress = Progress::new();
        let (candidates, modules) = candidates.prepare(&mut progress)?;
        progress.step("waiting until the machine has settled");
        load::wait_until_quiet();
        let cpus = usable_cpus()?;
        let speed = load::calibrate()?;
        let topology = ekiden_machine::read_sysfs("/sys".as_ref()).context("cannot read this machine's topology")?;
        let mut runs = Vec::new();
        for candidate in candidates.iter().filter(|candidate| matches!(candidate, Candidate::Policy(_))) {
            for name in names {
                let load = loads::find(name, cpus)?;
                progress.step(format!("{name} under {}", candidate.name()));
                let (shown, stayed) = candidate.run(&modules, || {
                    let mut shown = Vec::new();
                    for turn in 0..=*repeat {
                        let (turned, recording) = run(candidate, &load, &speed)?;
                        // The first time warms caches of all kinds.
                        if turn > 0 {
                            shown.push(turned);
                        }
                        if let Some(directory) = traces.as_deref().filter(|_| turn == *repeat) {
                            keep_trace(&recording.trace, directory, "real", candidate.name(), name)?;
                        }
                    }
                    Ok(shown)
                })?;
                let shown = shown.filter(|_| stayed).unwrap_or_default();
                runs.push(Run { policy: candidate.name().to_owned(), load: name.clone(), shown });
            }
        }
        Ok(Measured { kernel: load::kernel_release()?, counts, machine: Header::of(&topology), runs })
    }
}

fn run(candidate: &Candidate, workload: &Workload, speed: &str) -> Result<(Shown, Recording)> {
    let file = tempfile::NamedTempFile::with_suffix(".json").context("cannot create a file for a load")?;
    fs::write(file.path(), workload.to_json()).context("cannot write a load")?;
    let path = file.path().display().to_string();
    let recorder = ShortRecorder::start(RING_BYTES, &workload.name)?;
    // The kernel still frees what the one before had.
    thread::sleep(QUIET);
    let printed = load::output(&["run", &path, "--json", "--watchdog", "600", "--loops-per-ms", speed])?;
    let recording = recorder.stop();
    if recording.lost > 0 {
        bail!("{} records of {} were lost; take a smaller load", recording.lost, workload.name);
    }
    let report: Report = serde_json::from_str(&printed).context("ekiden-load says something strange")?;
    load::expect(candidate, report.scheduler.as_deref())?;
    Ok((Shown::of(&report, &recording.trace, recording.begin_ns), recording))
}

/// Writes a trace to a file that is called after what it is of.
pub(crate) fn keep_trace(trace: &Trace, directory: &Path, side: &str, policy: &str, load: &str) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let path = directory.join(format!("{side}-{policy}-{}", load.replace('/', "_")));
    fs::write(&path, trace.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_taken_of_each_figure_by_itself() {
        let shown = |done_ns, switches| Shown { done_ns, switches, ..Shown::default() };
        let median = Shown::median(&[shown(1, 30), shown(2, 10), shown(9, 20)]).unwrap();
        assert_eq!((median.done_ns, median.switches), (2, 20));
        assert_eq!(Shown::median(&[]), None);
    }
}
