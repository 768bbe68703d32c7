//! `ekiden bench idle`: what a machine executes that has nothing to do.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use ekiden_bench::{Comparison, DEFAULT, Limit, Measurements};
use ekiden_vm::Vm;
use nix::sys::signal::Signal;

use super::{
    Output, Verdict,
    candidates::PolicyArgs,
    guest::{Clock, InVm},
};
use crate::{
    failure::{Exit, Failure},
    machine::guest_command,
};

/// What is measured: all CPUs together.
const PLACE: &str = "all_cpus";

/// How long nothing happens before the first look, in seconds of the guest's time: its figures have settled by then.
const SETTLED_S: u64 = 60;

/// The shorter one of two sleeps. What they have in common does not count: their start, and what the kernel does about it for some time after.
const SHORT_S: u64 = 30;

/// An idle machine costs nothing, under any scheduler.
const LIMITS: [(Limit, &str, &str, &str); 2] = [
    (Limit { name: "fifo in an agent ÷ the kernel's own", at_most: 1.01 }, "agent, fifo", PLACE, DEFAULT),
    (Limit { name: "fifo in the kernel ÷ the kernel's own", at_most: 1.01 }, "fifo", PLACE, DEFAULT),
];

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  ekiden bench idle --vm --check
  ekiden bench idle --vm --policy wfq --seconds 60 --json
Each policy is in the kernel, and then in an agent. The emulator tells how many
instructions all CPUs have executed while a program sleeps.")]
pub(crate) struct IdleBench {
    /// The policies
    #[arg(long = "policy", value_name = "POLICY", default_values = ["fifo"])]
    policies: Vec<String>,
    /// How long the machine does nothing, each time, by its own clock
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(5..=3_600))]
    seconds: u64,
    /// How often that is measured
    #[arg(long, value_name = "TIMES", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    #[command(flatten)]
    source: PolicyArgs,
    #[command(flatten)]
    vm: InVm,
    #[command(flatten)]
    output: Output,
}

impl IdleBench {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if !self.vm.vm || self.vm.shape.kvm {
            let message =
                "what an idle machine executes is counted by its emulator: measure with --vm, and without --kvm";
            return Err(Failure::new(Exit::Usage, message).into());
        }
        let measured = self.vm.with_guest(&self.source, &self.policies, Clock::Fair, |vm, _, _, progress| {
            let mut measurements = Measurements::default();
            let policies = self.policies.iter();
            let ours = policies.flat_map(|policy| {
                [(policy.clone(), vec!["run", policy]), (format!("agent, {policy}"), vec!["agent", policy])]
            });
            for (name, command) in [(DEFAULT.to_owned(), Vec::new())].into_iter().chain(ours) {
                progress.step(format!("nothing happens under {name}"));
                let (rates, stayed) = under(vm, &command, || self.rates(vm))?;
                measurements.was_still_scheduler(&name, stayed);
                rates.into_iter().for_each(|rate| measurements.add(&name, PLACE, rate));
            }
            let limits: Vec<_> = LIMITS.into_iter().filter(|(_, name, ..)| measurements.has(name)).collect();
            Ok(Comparison::new("idle", "instructions per second", vm.release(), &measurements, &limits))
        })?;
        self.output.show(&measured, &measured.to_text(), &Verdict::of_comparison(&measured))
    }

    /// What it executes in a second, again and again.
    fn rates(&self, vm: &Vm) -> Result<Vec<f64>> {
        let asleep = |seconds: u64| -> Result<u64> {
            let before = vm.instructions()?;
            vm.run_ok(&guest_command(["sleep".to_owned(), seconds.to_string()]))?;
            Ok(vm.instructions()? - before)
        };
        asleep(SETTLED_S)?;
        (0..self.repeat)
            .map(|_| {
                let (short, long) = (asleep(SHORT_S)?, asleep(SHORT_S + self.seconds)?);
                Ok(long.saturating_sub(short) as f64 / self.seconds as f64)
            })
            .collect()
    }
}

/// Does something while a command of `ekiden` has the tasks of the guest; without one, the kernel's own scheduler has. Also says whether it was still
/// so afterwards.
fn under<T>(vm: &Vm, command: &[&str], work: impl FnOnce() -> Result<T>) -> Result<(T, bool)> {
    /// What the command says when it has begun.
    const BEGUN: &str = "begun";
    if command.is_empty() {
        return work().map(|done| (done, true));
    }
    // It reads nothing, and so waits until it is told to end.
    let waits = ["--", "sh", "-c", "echo begun; exec sleep infinity"];
    let mut running = vm.spawn(&guest_command([&["ekiden"], command, &waits].concat()))?;
    running.wait_for(BEGUN)?;
    let done = work();
    let stayed = running.try_status()?.is_none();
    running.signal(Signal::SIGINT as i32)?;
    let output = running.wait()?;
    if !stayed && done.is_err() {
        bail!("`ekiden {}` ended: {}", command.join(" "), output.stderr.trim());
    }
    Ok((done?, stayed))
}
