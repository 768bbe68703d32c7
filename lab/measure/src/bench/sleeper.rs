//! `ekiden bench sleeper`: how late an ordinary task wakes up beside tasks that never sleep, and how evenly those share the CPUs.

use anyhow::{Context, Result, ensure};
use clap::Args;
use ekiden_bench::{Comparison, DEFAULT, Limit, Measurements};
use ekiden_workload::{Report, Step, TaskSpec, Workload};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::{
    Unit,
    asked::Benchmark,
    candidates::{Candidate, Candidates, Values},
    guest::Clock,
    load,
};
use crate::request::Measurement;

const P50: &str = "wake-up p50 (us)";
const P99: &str = "wake-up p99 (us)";
const UNEVEN: &str = "most / least CPU time of a hog";

const SLEEP_NS: u64 = 5_000_000;
const MS: u64 = 1_000_000;

/// A real run keeps this many moments of a task; a wake-up takes two.
const WAKEUPS_MAX: usize = 500;

/// What must be reached beside the kernel's own scheduler.
const LIMITS: [(Limit, &str, &str, &str); 6] = [
    (Limit { name: "wfq, p50 ÷ the kernel's own", at_most: 3.0 }, "wfq", P50, DEFAULT),
    (Limit { name: "wfq, p99 ÷ the kernel's own", at_most: 1.5 }, "wfq", P99, DEFAULT),
    (Limit { name: "cfs, p50 ÷ the kernel's own", at_most: 3.0 }, "cfs", P50, DEFAULT),
    (Limit { name: "cfs, p99 ÷ the kernel's own", at_most: 1.5 }, "cfs", P99, DEFAULT),
    (Limit { name: "eevdf, p50 ÷ the kernel's own", at_most: 1.2 }, "eevdf", P50, DEFAULT),
    (Limit { name: "eevdf, p99 ÷ the kernel's own", at_most: 1.2 }, "eevdf", P99, DEFAULT),
];

/// How much more one of several equal tasks may have than another.
const UNEVEN_MAX: f64 = 1.0 / 0.95;

#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[command(after_help = "\
Examples:
  ekiden bench sleeper --vm --policy wfq --policy eevdf
      a task that sleeps, beside a hog for each CPU
  ekiden bench sleeper --vm --cpus 2 --hogs 4 --duration-ms 10000 --policy wfq
  sudo ekiden bench sleeper --policy wfq --json   on this machine
With a multiple of the CPUs as hogs, how evenly they share them is judged, too.")]
pub(crate) struct SleeperBench {
    #[command(flatten)]
    candidates: Candidates,
    /// How often each scheduler gets its turn; one more turn comes before and does not count
    #[arg(long, value_name = "TIMES", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// How many tasks never sleep; 0 for one for each CPU
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    hogs: u32,
    /// How long each turn takes
    #[arg(long, value_name = "MS", default_value_t = 3_000, value_parser = clap::value_parser!(u64).range(100..=600_000))]
    duration_ms: u64,
}

impl Benchmark for SleeperBench {
    const NAME: &'static str = "sleeper";
    const CLOCK: Clock = Clock::Quick;

    fn candidates(&self) -> Candidates {
        self.candidates.clone()
    }
}

impl Measurement for SleeperBench {
    type Figures = Comparison;

    fn measure(&self, _unit: Unit) -> Result<Comparison> {
        let cpus = std::thread::available_parallelism().context("cannot tell the number of CPUs")?.get() as u32;
        let hogs = if self.hogs == 0 { cpus } else { self.hogs };
        let mut measurements = Measurements::default();
        let (file, speed) = (load_of(cpus, hogs)?, load::calibrate()?);
        let path = file.path().display().to_string();
        self.candidates.interleave(self.repeat, &mut measurements, &|candidate| self.turn(candidate, &path, &speed))?;
        let limits: Vec<_> = LIMITS.into_iter().filter(|(_, policy, ..)| self.candidates.has(policy)).collect();
        let mut comparison =
            Comparison::new("sleeper", "as each row says", &load::kernel_release()?, &measurements, &limits);
        if hogs > 1 && hogs % cpus == 0 {
            let uneven = Limit { name: "the same for each of these policies", at_most: UNEVEN_MAX };
            let fair = ["wfq", "cfs", "eevdf"];
            let rows = comparison.schedulers.iter().filter(|row| fair.contains(&row.scheduler.as_str()));
            let judged = rows.map(|row| {
                let mut judged = uneven.judge(row.figures.get(UNEVEN).map(|figure| figure.summary.median));
                judged.name = format!("{}, {UNEVEN}", row.scheduler);
                judged
            });
            let judged: Vec<_> = judged.collect();
            comparison.passed &= judged.iter().all(|judged| judged.met);
            comparison.limits.extend(judged);
        }
        Ok(comparison)
    }
}

impl SleeperBench {
    fn turn(&self, candidate: &Candidate, path: &str, speed: &str) -> Result<Values> {
        let duration = self.duration_ms.to_string();
        let args = ["run", path, "--duration-ms", &duration, "--loops-per-ms", speed, "--json", "--watchdog", "600"];
        let report: Report =
            serde_json::from_str(&load::output(&args)?).context("ekiden-load says something strange")?;
        load::expect(candidate, report.scheduler.as_deref())?;
        figures(&report)
    }
}

/// One task that sleeps for five milliseconds again and again, and hogs that may run anywhere.
fn load_of(cpus: u32, hogs: u32) -> Result<NamedTempFile> {
    let sleeps = vec![Step::Mark, Step::Sleep { ns: SLEEP_NS }, Step::Mark];
    let sleeper = TaskSpec::new("sleeper", vec![Step::forever(sleeps)]);
    let hogs = (0..hogs).map(|n| TaskSpec::new(format!("hog{n}"), vec![Step::forever(vec![Step::Run { ns: MS }])]));
    let load = Workload::new("sleeper", cpus, [sleeper].into_iter().chain(hogs)).lasting(MS);
    let file = NamedTempFile::with_suffix(".json").context("cannot create a file for a load")?;
    std::fs::write(file.path(), load.to_json()).context("cannot write a load")?;
    Ok(file)
}

fn figures(report: &Report) -> Result<Values> {
    let of = |name: &'static str| report.tasks.iter().filter(move |task| task.name.starts_with(name));
    let marks = &of("sleeper").next().context("the sleeper is missing")?.marks_ns;
    let slept = marks.chunks_exact(2).take(WAKEUPS_MAX).map(|pair| pair[1].saturating_sub(pair[0]));
    let mut late: Vec<u64> = slept.map(|slept| slept.saturating_sub(SLEEP_NS)).collect();
    ensure!(late.len() >= 20, "the sleeper woke up only {} times", late.len());
    late.sort_unstable();
    let percentile = |percent: usize| late[(late.len() * percent / 100).min(late.len() - 1)] as f64 / 1000.0;
    let times = || of("hog").map(|task| task.cpu_ns);
    let (least, most) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    Ok(vec![(P50, percentile(50)), (P99, percentile(99)), (UNEVEN, most as f64 / least.max(1) as f64)])
}

#[cfg(test)]
mod tests {
    use ekiden_workload::TaskReport;

    use super::*;

    #[test]
    fn figures_are_of_the_wake_ups_and_of_the_hogs() {
        let marks_ns = (0..100).flat_map(|n| [n * 10 * MS, n * 10 * MS + SLEEP_NS + n * 1000]).collect();
        let sleeper = TaskReport { name: "sleeper".into(), marks_ns, ..TaskReport::default() };
        let hog = |name: &str, cpu_ns| TaskReport { name: name.into(), cpu_ns, ..TaskReport::default() };
        let report = Report { tasks: vec![sleeper, hog("hog0", 50), hog("hog1", 100)], ..empty() };
        assert_eq!(figures(&report).unwrap(), vec![(P50, 50.0), (P99, 99.0), (UNEVEN, 2.0)]);
        assert!(figures(&Report { tasks: vec![hog("sleeper", 1)], ..empty() }).is_err());
    }

    fn empty() -> Report {
        Report { workload: "sleeper".into(), scheduler: None, wall_ns: 1, zero_ns: None, tasks: Vec::new() }
    }
}
