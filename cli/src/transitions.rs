//! `ekiden transitions`: what happens to a policy when a task makes an unexpected transition.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use ekiden_engine::Checks;
use ekiden_loader::{Control, Status};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden transitions
      how it is for each policy, and the last such change
  ekiden transitions remove        take the default policy out if it happens
  ekiden transitions off -p fifo   do not look

Which changes are expected stands in ARCHITECTURE.md, under States of a task.")]
pub(crate) struct TransitionsCommand {
    /// What is to become of it
    mode: Option<Mode>,
    /// Which of the policies that run, by its name or number; the default one if it is left out
    #[arg(short, long, value_name = "POLICY", requires = "mode")]
    policy: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// They are not checked
    Off,
    /// It is counted, and `ekiden status` shows the newest
    Report,
    /// The policy is taken out
    Remove,
    /// The machine stops, for a debugger
    Stop,
}

impl TransitionsCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let status = Status::read()?.unwrap_or_default();
        let policy = status.find(self.policy.as_deref())?;
        if let Some(mode) = self.mode {
            let checks = match mode {
                Mode::Off => Checks::Off,
                Mode::Report => Checks::Report,
                Mode::Remove => Checks::Remove,
                Mode::Stop => Checks::Stop,
            };
            Control::open()?.check(policy.slot, checks)?;
            println!("{}: {}", policy.policy, checks.name());
            return Ok(ExitCode::SUCCESS);
        }
        for policy in &status.policies {
            let last = policy.last_unexpected_transition.as_deref().unwrap_or("none so far");
            println!("{}: {}; {last}", policy.policy, policy.checks);
        }
        Ok(ExitCode::SUCCESS)
    }
}
