//! `ekiden bench share`: batch work of the default class next to a policy's tasks.

use std::{thread, time::Duration};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use ekiden_bench::{Sharing, SharingRow};
use ekiden_workload::{Report, Step, TaskSpec, Workload};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::{
    Unit, Verdict,
    asked::{Benchmark, Shown},
    candidates::{Candidates, PolicyArgs, under},
    guest::Clock,
    load,
};
use crate::{progress::Progress, request::Measurement, session::Plan};

/// How much of CPU 0 the policy's tasks want, in percent.
const WANTED: [u64; 3] = [25, 50, 100];

const MS: u64 = 1_000_000;

#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[command(after_help = "\
Examples:
  ekiden bench share --vm --check
  sudo ekiden bench share --policy fifo --json
The policy is loaded for class SCHED_EXT only; its tasks and a hog of the
default class share CPU 0. Linux runs the default class first, so that hardly
anything is left to the policy, and its limit is missed. A policy comes first
if the batch work is in another one, which `ekiden order` has asked later.")]
pub(crate) struct ShareBench {
    /// The policy
    #[arg(long, value_name = "POLICY", default_value = "wfq")]
    policy: String,
    /// How long each measurement takes
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(100..=600_000))]
    duration_ms: u64,
    #[command(flatten)]
    source: PolicyArgs,
}

impl Benchmark for ShareBench {
    const NAME: &'static str = "share";
    const CLOCK: Clock = Clock::Quick;

    fn candidates(&self) -> Candidates {
        Candidates::new(std::slice::from_ref(&self.policy), &self.source)
    }
}

impl Measurement for ShareBench {
    type Figures = Sharing;

    fn measure(&self, _unit: Unit) -> Result<Sharing> {
        let mut progress = Progress::new();
        let (_, modules) = self.candidates().prepare(&mut progress)?;
        progress.step("waiting until the machine has settled");
        load::wait_until_quiet();
        let speed = load::calibrate()?;
        let plan = Plan { attached: true, ..Plan::new(&self.policy, &modules) };
        let (rows, stayed) = under(&plan, || {
            WANTED
                .into_iter()
                .map(|percent| {
                    progress.step(format!("the policy's tasks want {percent} % of a CPU"));
                    self.row(percent, &speed)
                })
                .collect::<Result<Vec<SharingRow>>>()
        })?;
        Ok(Sharing::new(&load::kernel_release()?, &self.policy, rows.unwrap_or_default(), stayed))
    }
}

impl Shown for Sharing {
    fn text(&self) -> String {
        self.to_text()
    }

    fn verdict(&self) -> Verdict {
        Verdict::of_limits(&self.limits, self.still_scheduler)
    }
}

impl ShareBench {
    fn row(&self, percent: u64, speed: &str) -> Result<SharingRow> {
        let mut steps = vec![Step::Run { ns: percent * MS / 25 }];
        if percent < 100 {
            steps.push(Step::Sleep { ns: (100 - percent) * MS / 25 });
        }
        let (policy, batch) = (self.load("policy", steps)?, self.load("batch", vec![Step::Run { ns: MS }])?);
        let alone = part_of_cpu(&self.time(&policy, self.duration_ms, true, speed)?);
        // The batch work comes in the midst of a run that is three times as long; what the policy's tasks have outside
        // of it is known by now.
        let (policy, batch) = thread::scope(|scope| {
            let policy = scope.spawn(|| self.time(&policy, 3 * self.duration_ms, true, speed));
            thread::sleep(Duration::from_millis(self.duration_ms / 2));
            let batch = self.time(&batch, self.duration_ms, false, speed);
            (policy.join(), batch)
        });
        let (policy, batch) = (policy.map_err(|_| anyhow!("the load of the policy panicked"))??, batch?);
        let outside_ns = policy.wall_ns.saturating_sub(batch.wall_ns) as f64 * alone;
        let inside_ns = (policy.cpu_ns() as f64 - outside_ns).max(0.0);
        Ok(SharingRow {
            wanted: percent as f64 / 100.0,
            policy_alone: alone,
            policy: inside_ns / batch.wall_ns as f64,
            batch: part_of_cpu(&batch),
        })
    }

    fn time(&self, load: &NamedTempFile, duration_ms: u64, ext: bool, speed: &str) -> Result<Report> {
        let (path, duration) = (load.path().display().to_string(), duration_ms.to_string());
        let mut args = vec!["run", &path, "--duration-ms", &duration, "--loops-per-ms", speed];
        args.extend(["--json", "--watchdog", "600"]);
        args.extend(ext.then_some("--ext"));
        serde_json::from_str(&load::output(&args)?).context("ekiden-load says something strange")
    }

    /// One task on CPU 0 that does this again and again.
    fn load(&self, name: &str, steps: Vec<Step>) -> Result<NamedTempFile> {
        let task = TaskSpec::new(name, vec![Step::forever(steps)]).on([0]);
        let load = Workload::new(name, 1, [task]).lasting(MS);
        let file = NamedTempFile::with_suffix(".json").context("cannot create a file for a load")?;
        std::fs::write(file.path(), load.to_json()).context("cannot write a load")?;
        Ok(file)
    }
}

/// The part of a CPU that a load had.
fn part_of_cpu(report: &Report) -> f64 {
    report.cpu_ns() as f64 / report.wall_ns as f64
}
