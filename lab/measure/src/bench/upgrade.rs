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
use ekiden_build::Target;
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

/// The policies that take over from each other.
const POLICIES: [&str; 2] = ["fifo", "wfq"];

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
pipes are busy.
Examples:
  ekiden bench upgrade --vm --check
  ekiden bench upgrade --vm --json
  sudo ekiden bench upgrade --tasks 100")]
pub(crate) struct UpgradeBench {
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
        Candidates::new(&POLICIES.map(str::to_owned), &self.source)
    }

    fn fit(&self, shape: &mut Shape) {
        shape.cpus = shape.cpus.max(GUEST_CPUS);
    }

    fn in_guest(&self, machine: &InVm) -> Result<UpgradeReport> {
        let candidates = self.candidates();
        machine.refuse_parallel()?;
        let kernel = machine.shape.fetch(&mut Progress::new())?;
        let fixed = modules::fixed(&Target::fetched(&kernel), candidates.policies(), &mut Progress::new())?;
        let there = Self { fixed_modules: Some(format!("/host/{FIXED}/modules").into()), ..self.clone() };
        machine.with_guest(candidates.modules(), candidates.policies(), Self::CLOCK, |vm, share, unit, progress| {
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
        let mut progress = Progress::new();
        let (_, directory) = self.candidates().prepare(&mut progress)?;
        let fixed = match &self.fixed_modules {
            Some(fixed) => fixed.clone(),
            None => modules::fixed(&Target::running()?, self.candidates().policies(), &mut progress)?,
        };
        progress.step("waiting until the machine has settled");
        load::wait_until_quiet();
        let (mut values, mut stayed) = (UpgradeValues::default(), true);
        for turn in 0..=self.repeat {
            for policy in POLICIES {
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
            let (waits, there) = under(&Plan::new(POLICIES[0], &directory), || self.upgrade(&directory))?;
            stayed &= there;
            for (what, waits) in waits.into_iter().flatten().filter(|_| turn > 0) {
                values.waits(what, waits);
            }
        }
        let unit = unit.name();
        let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
        let release = load::kernel_release()?;
        Ok(UpgradeReport::new((&release, unit), (cpus, self.tasks), &values, POLICIES[0], stayed))
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

    /// How long CPUs waited in each upgrade.
    fn upgrade(&self, directory: &Path) -> Result<Vec<(&'static str, Vec<f64>)>> {
        let _crowd = self.crowd()?;
        let control = Control::open()?;
        let upgrade = |module: Option<&str>| -> Result<f64> {
            let done = control.upgrade(&Succession { module, arena_bytes: ARENA_BYTES, ..Succession::default() })?;
            // Away from the last one.
            thread::sleep(Duration::from_millis(1));
            Ok(done.wait_ns as f64)
        };
        let [fifo, wfq] = POLICIES.map(|policy| load_beside(&modules::file(directory, policy)));
        let (fifo, wfq) = (fifo?, wfq?);
        let mut waits = [const { Vec::new() }; 3];
        for _ in 0..self.upgrades {
            waits[0].push(upgrade(None)?);
            waits[1].push(upgrade(Some(&wfq))?);
            waits[2].push(upgrade(Some(&fifo))?);
        }
        Ok(["fifo → fifo", "fifo → wfq", "wfq → fifo"].into_iter().zip(waits).collect())
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
