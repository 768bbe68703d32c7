//! Papers/004, section 4.3: the judge server. A worker beside 40 programs whose control group may use 75 % of the machine.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use ekiden_bench::{Judged, Limit, number};
use serde::{Deserialize, Serialize};

use super::{Cos, hosts::Host};
use crate::machine::load_program;

const LIMIT: Limit = Limit { name: "judge server: worker with the limit ÷ alone", at_most: 1.15 };

/// What the paper has: programs, and the part of the machine that their control group may use, in percent.
pub(super) const PROGRAMS: u32 = 40;
pub(super) const PERCENT: u32 = 75;

/// The period of `cpu.max`, as the kernel has it by default.
const PERIOD_US: u32 = 100_000;

const ROOT: &str = "/sys/fs/cgroup";

/// What `ekiden-load judge` prints.
#[derive(Deserialize)]
struct Printed {
    measured: Took,
}

#[derive(Deserialize)]
struct Took {
    alone_ns: Vec<u64>,
    limited_ns: Vec<u64>,
    unlimited_ns: Vec<u64>,
}

/// How long the worker took under one host, in milliseconds, time after time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Worked {
    pub(crate) host: Host,
    pub(crate) alone_ms: Vec<f64>,
    /// Beside programs with the limit.
    pub(crate) limited_ms: Vec<f64>,
    /// Beside programs without it.
    pub(crate) unlimited_ms: Vec<f64>,
}

/// A control group, for as long as something is measured.
struct Group(PathBuf);

impl Group {
    fn new(name: &str, limit: &str) -> Result<Self> {
        let needs = "this needs root, and control groups of version 2";
        let write = |path: &Path, value: &str| {
            fs::write(path, value).with_context(|| format!("cannot write {value} to {}; {needs}", path.display()))
        };
        write(&Path::new(ROOT).join("cgroup.subtree_control"), "+cpu")?;
        let path = Path::new(ROOT).join(format!("ekiden-judge-{}-{name}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}; {needs}", path.display()))?;
        let group = Self(path);
        write(&group.0.join("cpu.max"), limit)?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that was in it may take a moment to leave.
        for _ in 0..100 {
            if !fs::remove_dir(&self.0).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy) {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What goes into `cpu.max`.
fn cpu_max(cpus: u32) -> String {
    format!("{} {PERIOD_US}", u64::from(cpus) * u64::from(PERIOD_US) * u64::from(PERCENT) / 100)
}

/// Measures under one host; nothing if the policy was taken out.
pub(super) fn measure(cos: &Cos, host: Host) -> Result<Option<Worked>> {
    let groups = [Group::new("limited", &cpu_max(cos.cpus))?, Group::new("unlimited", "max")?];
    let groups = groups.each_ref().map(|group| group.0.display().to_string()).join(",");
    let [programs, times, cpu_ms] =
        [u64::from(PROGRAMS), u64::from(cos.runs), cos.cpu_ms].map(|count| count.to_string());
    let load =
        ["judge", "--json", "--cgroups", &groups, "--programs", &programs, "--times", &times, "--cpu-ms", &cpu_ms];
    let printed = host.run(cos.policy(), None, &load_program(), &load.map(str::to_owned))?;
    let Some(printed) = printed else { return Ok(None) };
    let Printed { measured } = serde_json::from_str(&printed).context("ekiden-load says something strange")?;
    let [alone_ms, limited_ms, unlimited_ms] = [measured.alone_ns, measured.limited_ns, measured.unlimited_ns]
        .map(|ns| ns.into_iter().map(|ns| ns as f64 / 1e6).collect());
    Ok(Some(Worked { host, alone_ms, limited_ms, unlimited_ms }))
}

fn mean(ms: &[f64]) -> Option<f64> {
    (!ms.is_empty()).then(|| ms.iter().sum::<f64>() / ms.len() as f64)
}

/// A mean, divided by that of the worker alone.
fn ratio(worked: &Worked, ms: &[f64]) -> Option<f64> {
    Some(mean(ms)? / mean(&worked.alone_ms)?)
}

/// What is limited, under one host.
pub(super) fn judge(all: &[Worked], host: Host) -> Judged {
    let worked = all.iter().find(|worked| worked.host == host);
    LIMIT.judge(worked.and_then(|worked| ratio(worked, &worked.limited_ms)))
}

/// A line of the table.
pub(super) fn cells(worked: &Worked, policy: &str) -> Vec<String> {
    let figure = |value: Option<f64>| value.map_or_else(|| "none".to_owned(), number);
    let longest = |ms: &[f64]| figure(ms.iter().copied().reduce(f64::max));
    let Worked { host, alone_ms, limited_ms, unlimited_ms } = worked;
    let mut cells = vec![host.name(policy), figure(mean(alone_ms))];
    for ms in [limited_ms, unlimited_ms] {
        cells.extend([figure(mean(ms)), longest(ms), figure(ratio(worked, ms))]);
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worked(limited_ms: &[f64]) -> Worked {
        let alone_ms = vec![90.0, 110.0];
        Worked { host: Host::Kernel, alone_ms, limited_ms: limited_ms.to_vec(), unlimited_ms: vec![200.0] }
    }

    #[test]
    fn the_limit_is_three_quarters_of_the_machine_as_in_the_paper() {
        assert_eq!([2, 8].map(cpu_max), ["150000 100000", "600000 100000"]);
    }

    #[test]
    fn means_are_compared_with_the_worker_alone() {
        let judged = |limited: &[f64]| {
            let judged = judge(&[worked(limited)], Host::Kernel);
            (judged.figure, judged.met)
        };
        assert_eq!(judged(&[100.0, 130.0]), (Some(1.15), true));
        assert_eq!(judged(&[100.0, 140.0]), (Some(1.2), false));
        assert_eq!(judged(&[]), (None, false));
        assert!(!judge(&[worked(&[100.0])], Host::Agent).met, "it was not measured there");
    }

    #[test]
    fn a_line_has_means_longest_times_and_ratios() {
        let expected = ["kernel host, wfq", "100", "115", "130", "1.150", "200", "200", "2.000"];
        assert_eq!(cells(&worked(&[100.0, 130.0]), "wfq"), expected);
    }
}
