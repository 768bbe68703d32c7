//! `ekiden bench fairness`: the three tests of appendix A.1 of papers/000, next to the kernel's own scheduler.

use anyhow::{Context, Result};
use clap::Args;
use ekiden_bench::{Fairness, FairnessRow, off_by};
use ekiden_workload::{Report, builtin, checks::weight_of_nice, real::exec::usable_cpus};
use serde::{Deserialize, Serialize};

use super::{
    Unit, Verdict,
    asked::{Benchmark, Shown},
    candidates::{Candidate, Candidates, PolicyArgs},
    guest::Clock,
    load,
};
use crate::progress::Progress;
use crate::request::Measurement;

/// How far shares may be off: equal ones, and those by weight.
const EQUAL: f64 = 0.02;
const WEIGHTED: f64 = 0.05;

#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[command(after_help = "\
Examples:
  ekiden bench fairness --vm --check
  sudo ekiden bench fairness --policy my-policy
Equal shares within 2 %, weights by nice value within 5 % and as under the
kernel's own scheduler, placement, a move.")]
pub(crate) struct FairnessBench {
    /// The policies to compare with the kernel's own scheduler
    #[arg(long = "policy", value_name = "POLICY", default_values = ["wfq"])]
    policies: Vec<String>,
    #[command(flatten)]
    source: PolicyArgs,
}

impl FairnessBench {
    pub(crate) fn new(policies: &[String]) -> Self {
        Self { policies: policies.to_vec(), source: PolicyArgs::default() }
    }
}

impl Benchmark for FairnessBench {
    const NAME: &'static str = "fairness";
    const CLOCK: Clock = Clock::Quick;

    fn candidates(&self) -> Candidates {
        Candidates::new(&self.policies, &self.source)
    }
}

impl Measurement for FairnessBench {
    type Figures = Fairness;

    fn measure(&self, _unit: Unit) -> Result<Fairness> {
        measure(&self.candidates())
    }
}

impl Shown for Fairness {
    fn text(&self) -> String {
        self.to_text()
    }

    fn verdict(&self) -> Verdict {
        Verdict { all_stayed: self.all_stayed, limits_met: self.passed || !self.all_stayed }
    }
}

fn measure(candidates: &Candidates) -> Result<Fairness> {
    let mut progress = Progress::new();
    let (candidates, modules) = candidates.prepare(&mut progress)?;
    progress.step("waiting until the machine has settled");
    load::wait_until_quiet();
    // Once for all, so that the same work is the same under every scheduler.
    let loops_per_ms = load::calibrate()?;
    let cases = builtin::all(usable_cpus()?);
    let mut rows = Vec::new();
    let mut all_stayed = true;
    for case in cases.iter().filter(|case| is_about_fairness(&case.workload.name)) {
        let mut reference: Option<Report> = None;
        for candidate in candidates.iter().filter(|candidate| !matches!(candidate, Candidate::Bpf(_))) {
            let load = &case.workload.name;
            progress.step(format!("{load} under {}", candidate.name()));
            let (report, stayed) = candidate.run(&modules, || run(candidate, load, &loops_per_ms))?;
            all_stayed &= stayed;
            let Some(report) = report else { continue };
            let compare = case.compare.filter(|_| *candidate != Candidate::Default);
            let (off_by, limit) = shares(load, &report).unzip();
            rows.push(FairnessRow {
                load: load.clone(),
                about: case.about.to_owned(),
                scheduler: candidate.name().to_owned(),
                off_by,
                limit,
                failed: (case.check)(&report).err(),
                unlike_default: compare
                    .zip(reference.as_ref())
                    .and_then(|(compare, default)| compare(&report, default).err()),
            });
            if *candidate == Candidate::Default {
                reference = Some(report);
            }
        }
    }
    Ok(Fairness::new(&load::kernel_release()?, rows, all_stayed))
}

fn is_about_fairness(load: &str) -> bool {
    ["fair-share", "weights", "placement", "forced-move"].contains(&load) || load.starts_with("nice:")
}

fn run(candidate: &Candidate, name: &str, loops_per_ms: &str) -> Result<Report> {
    let printed = load::output(&["run", name, "--json", "--watchdog", "600", "--loops-per-ms", loops_per_ms])?;
    let report: Report = serde_json::from_str(&printed).context("ekiden-load says something strange")?;
    load::expect(candidate, report.scheduler.as_deref())?;
    Ok(report)
}

/// How far the shares are off, and how far they may be, if the load is about shares.
fn shares(load: &str, report: &Report) -> Option<(f64, f64)> {
    let limit = match load {
        "fair-share" => EQUAL,
        _ if load.starts_with("nice:") => WEIGHTED,
        _ => return None,
    };
    let tasks: Option<Vec<(f64, f64)>> =
        report.tasks.iter().map(|task| Some((task.cpu_ns as f64, weight_of_nice(task.nice).ok()? as f64))).collect();
    Some((off_by(&tasks?)?, limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ekiden_workload::TaskReport;

    #[test]
    fn all_of_appendix_a1_and_the_weights_are_among_the_loads() {
        let names: Vec<String> = builtin::all(2).into_iter().map(|case| case.workload.name).collect();
        let chosen = names.iter().filter(|name| is_about_fairness(name)).count();
        assert_eq!(chosen, 8, "{names:?}");
    }

    #[test]
    fn shares_are_weighed_by_nice_value() {
        let task = |nice, cpu_ns| TaskReport { nice, cpu_ns, ..TaskReport::default() };
        let report = Report { tasks: vec![task(0, 1024), task(5, 335)], ..Report::default() };
        let (off, limit) = shares("nice:0:5", &report).unwrap();
        assert!(off < 1e-9 && limit == WEIGHTED);
        assert_eq!(shares("placement", &report), None);
    }
}
