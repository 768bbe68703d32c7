//! `ekiden share`: what of the machine a policy has beside others, its CPUs and its weight.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use ekiden::CpuMask;
use ekiden_engine::Share;
use ekiden_loader::{Control, LoadError, PolicyStatus, Status};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden share
      what each has
  ekiden share fifo --cpus 0-1
      asked first on CPUs 0 and 1; others have them when it has nothing to run
  ekiden share fifo --cpus 0-1 --strict
      no other policy runs there, and it nowhere else
  ekiden share fifo --weight 300
      three times as much of each CPU as one of weight 100, which the others
      have
  ekiden share fifo
      neither: as any policy that was given nothing

A task that may run, by its affinity, on none of the CPUs that its policy may
use runs where it may, such as threads of the kernel that belong to one CPU.
Those whose CPU it is are asked before, but for 3 ticks of 25.")]
pub(crate) struct ShareCommand {
    /// The policy, by its name or the number that `ekiden status` shows
    policy: Option<String>,
    #[command(flatten)]
    share: Shares,
}

/// What can be said of a share.
#[derive(Args, Default)]
pub(crate) struct Shares {
    /// CPUs on which it is asked first, as a list: 0-3,8
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuMask>,
    /// No other policy may use these CPUs, and it no others
    #[arg(long, requires = "cpus")]
    strict: bool,
    /// Its share of each CPU beside other policies that have work there, divided by weight instead of by order: one without a
    /// weight has 100
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    weight: Option<u32>,
}

impl Shares {
    /// Gives it to the policy in a policy slot, if there is anything to give.
    pub(crate) fn give(&self, slot: u32) -> Result<()> {
        if self.cpus.is_none() && self.weight.is_none() {
            return Ok(());
        }
        self.set(slot)
    }

    fn set(&self, slot: u32) -> Result<()> {
        let share = Share { is_strict: self.strict, weight: self.weight.unwrap_or(0) };
        Ok(Control::open()?.share(slot, &self.cpus.clone().unwrap_or_default(), share)?)
    }
}

/// A policy's share in words; `None` if it has what every policy has.
pub(crate) fn in_words(policy: &PolicyStatus) -> Option<String> {
    let cpus = policy.cpus.as_ref().map(|cpus| format!("CPUs {cpus}{}", if policy.strict { ", alone" } else { "" }));
    let weight = policy.weight.map(|weight| format!("weight {weight}"));
    let all: Vec<String> = cpus.into_iter().chain(weight).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

impl ShareCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let status = Status::read()?.unwrap_or_default();
        if status.policies.is_empty() {
            return Err(LoadError::NothingRuns.into());
        }
        if let Some(name) = &self.policy {
            self.share.set(status.find(Some(name))?.slot)?;
        }
        for policy in Status::read()?.unwrap_or_default().policies {
            println!("{}: {}", policy.policy, in_words(&policy).as_deref().unwrap_or("like the others"));
        }
        Ok(ExitCode::SUCCESS)
    }
}
