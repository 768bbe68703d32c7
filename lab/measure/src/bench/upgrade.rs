//! `ekiden bench upgrade`: what it costs that one policy can take over from another, and how long CPUs wait when one does.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_bench::{UpgradeReport, UpgradeValues};
use ekiden_loader::{Control, Succession, load_beside};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use super::{
    Unit, Verdict,
    asked::{Benchmark, Shown},
    candidates::{Candidate, Candidates, PolicyArgs, under},
    guest::{Clock, InVm},
    load,
};
use crate::{
    machine::{Shape, install_modules, load_program},
    modules,
    progress::Progress,
    request::Measurement,
    session::Plan,
};

/// Where the two processes of a pipe are.
const PLACES: [(&str, &str); 2] = [("one_cpu", "0,0"), ("two_cpus_across", "0,1")];

/// In a guest, where the modules are of which none can take over.
const FIXED: &str = "fixed";

/// Memory enough for a policy here, and soon zeroed in an emulator.
const ARENA_BYTES: u64 = 4 << 20;

/// How many CPUs a guest has.
const GUEST_CPUS: u32 = 4;

#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[command(after_help = "\
The machinery is measured against modules that are built without it. Waits are
those of every CPU from when the first one stops until all continue, while two
pipes are busy. One policy takes over from itself, with all that it knows. Of
several, each takes over from the first one, too, and gives way to it again;
they are of one project.
Examples:
  ekiden bench upgrade --vm --check
  ekiden bench upgrade --vm --json
  sudo ekiden bench upgrade --tasks 100
  ekiden bench upgrade --vm --policy my-policy
      a policy of the project in the current directory")]
pub(crate) struct UpgradeBench {
    /// A policy that takes over, first from itself; may be given again
    #[arg(long = "policy", value_name = "POLICY", default_values = ["fifo", "wfq"])]
    policies: Vec<String>,
    /// How many sleeping tasks there are
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=30_000))]
    tasks: u32,
    /// How many upgrades of each kind there are in a turn
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    upgrades: u32,
    /// How many turns there are; one more comes before and does not count
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// Round trips that are timed each time
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..))]
    round_trips: u64,
    /// Modules of which none can take over, where they are not built: in a guest.
    #[arg(skip)]
    fixed_modules: Option<PathBuf>,
    #[command(flatten)]
    source: PolicyArgs,
}

impl Benchmark for UpgradeBench {
    const NAME: &'static str = "upgrades";
    const CLOCK: Clock = Clock::Exact;

    fn candidates(&self) -> Candidates {
        Candidates::new(&self.policies, &self.source)
    }

    fn fit(&self, shape: &mut Shape) {
        shape.cpus = shape.cpus.max(GUEST_CPUS);
    }

    fn in_guest(&self, machine: &InVm) -> Result<UpgradeReport> {
        let candidates = self.candidates();
        machine.refuse_parallel()?;
        let kernel = machine.shape.fetch(&mut Progress::new())?;
        let fixed = modules::fixed_for_kernel(&kernel, candidates.policies(), &mut Progress::new())?;
        let there = Self { fixed_modules: Some(format!("/host/{FIXED}/modules").into()), ..self.clone() };
        machine.with_guest(candidates.source(), candidates.policies(), Self::CLOCK, |vm, share, unit, progress| {
            let to = share.join(FIXED);
            std::fs::create_dir(&to).with_context(|| format!("cannot create {}", to.display()))?;
            install_modules(&fixed, &to)?;
            there.ask(vm, unit, progress)
        })
    }
}

impl Measurement for UpgradeBench {
    type Figures = UpgradeReport;

    fn measure(&self, unit: Unit) -> Result<UpgradeReport> {
        let first = self.policies.first().context("upgrades need a policy")?;
        let mut progress = Progress::new();
        let (_, directory) = self.candidates().prepare(&mut progress)?;
        let fixed = match &self.fixed_modules {
            Some(fixed) => fixed.clone(),
            None => modules::fixed_for_this_machine(&self.policies, &mut progress)?,
        };
        progress.step("waiting until the machine has settled");
        load::wait_until_quiet();
        let (mut values, mut stayed) = (UpgradeValues::default(), true);
        for turn in 0..=self.repeat {
            for policy in &self.policies {
                let present = Plan::new(policy, &directory);
                let absent = Plan { upgradable: false, ..Plan::new(policy, &fixed) };
                for (plan, is_present) in [(absent, false), (present, true)] {
                    let how = if is_present { "with" } else { "without" };
                    progress.step(format!("turn {turn} of {}: {policy} {how} what upgrades need", self.repeat));
                    let (times, there) =
                        under(&plan, || PLACES.map(|(_, cpus)| self.time(policy, cpus)).into_iter().collect())?;
                    stayed &= there;
                    let times: Vec<f64> = times.unwrap_or_default();
                    for ((place, _), time) in PLACES.iter().zip(times).filter(|_| turn > 0) {
                        values.round_trip(policy, place, is_present, time);
                    }
                }
            }
            progress.step(format!("turn {turn} of {}: upgrades among {} tasks", self.repeat, self.tasks));
            let (waits, there) = under(&Plan::new(first, &directory), || self.upgrade(&directory))?;
            stayed &= there;
            for (what, waits) in waits.into_iter().flatten().filter(|_| turn > 0) {
                values.waits(&what, waits);
            }
        }
        let unit = unit.name();
        let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
        let release = load::kernel_release()?;
        Ok(UpgradeReport::new((&release, unit), (cpus, self.tasks), &values, first, stayed))
    }
}

impl Shown for UpgradeReport {
    fn text(&self) -> String {
        self.to_text()
    }

    fn verdict(&self) -> Verdict {
        Verdict::of_limits(&self.limits, self.still_scheduler)
    }
}

impl UpgradeBench {
    fn time(&self, policy: &str, cpus: &str) -> Result<f64> {
        let round_trips = self.round_trips.to_string();
        let args = ["pipe", "--round-trips", &round_trips, "--cpus", cpus, "--json"];
        load::time(&Candidate::Policy(policy.to_owned()), &args)
    }

    /// How long CPUs waited in each upgrade, by what took over.
    fn upgrade(&self, directory: &Path) -> Result<Vec<(String, Vec<f64>)>> {
        let _crowd = self.crowd()?;
        let control = Control::open()?;
        let names = self.policies.iter();
        let loaded = names.map(|policy| Ok((policy.as_str(), load_beside(&modules::file(directory, policy))?)));
        let modules: Vec<(&str, String)> = loaded.collect::<Result<_>>()?;
        let steps = steps(&modules);
        let mut waits = vec![Vec::new(); steps.len()];
        for _ in 0..self.upgrades {
            for ((_, module), waits) in steps.iter().zip(&mut waits) {
                let done = control.upgrade(&Succession {
                    module: *module,
                    arena_bytes: ARENA_BYTES,
                    ..Succession::default()
                })?;
                waits.push(done.wait_ns as f64);
                // Away from the last one.
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(steps.into_iter().map(|(what, _)| what).zip(waits).collect())
    }

    /// Tasks that sleep, a busy pipe on one CPU, and one across two.
    fn crowd(&self) -> Result<Vec<Group>> {
        let this = std::env::current_exe().context("cannot find this program")?;
        let tasks = self.tasks.to_string();
        let mut sleepers = Group::start(Command::new(this).args(["sleepers", &tasks]))?;
        let stdout = sleepers.0.stdout.take().context("the sleepers have no output")?;
        BufReader::new(stdout).read_line(&mut String::new()).context("the sleepers say nothing")?;
        let mut crowd = vec![sleepers];
        let last = thread::available_parallelism().map_or(1, |cpus| cpus.get()) - 1;
        for pair in ["0,0".to_owned(), format!("{},{last}", last.saturating_sub(1))] {
            let args = ["pipe", "--round-trips", "1000000000", "--watchdog", "86400", "--cpus", &pair];
            crowd.push(Group::start(Command::new(load_program()).args(args))?);
        }
        Ok(crowd)
    }
}

/// Upgrades that begin and end with the first of some policies: what reports call each, and the module that takes over, none for the one
/// that is there. Policies come with their modules.
fn steps<'a>(modules: &'a [(&str, String)]) -> Vec<(String, Option<&'a str>)> {
    let Some(((first, home), others)) = modules.split_first() else { return Vec::new() };
    let mut steps = vec![(format!("{first} → {first}"), None)];
    for (other, module) in others {
        steps.push((format!("{first} → {other}"), Some(module.as_str())));
        steps.push((format!("{other} → {first}"), Some(home.as_str())));
    }
    steps
}

/// A process with all that it starts, gone when this is.
struct Group(Child);

impl Group {
    fn start(command: &mut Command) -> Result<Self> {
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Self(command.spawn().context("cannot start a load")?))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.0.id() as i32), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_policy_takes_over_from_itself_and_each_other_one_from_the_first_and_back() {
        let modules = ["a", "b", "c"].map(|name| (name, format!("ekiden_{name}")));
        assert_eq!(steps(&modules[..1]), [("a → a".to_owned(), None)]);
        let all = steps(&modules);
        let shown: Vec<_> = all.iter().map(|(what, module)| (what.as_str(), module.unwrap_or("the same"))).collect();
        let expected = [
            ("a → a", "the same"),
            ("a → b", "ekiden_b"),
            ("b → a", "ekiden_a"),
            ("a → c", "ekiden_c"),
            ("c → a", "ekiden_a"),
        ];
        assert_eq!(shown, expected);
    }
}
