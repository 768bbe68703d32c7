//! `ekiden order`: which of the policies that run is asked first.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use ekiden_loader::{Control, LoadError, Status};

use crate::failure::{Exit, Failure};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden order   in which order they are asked
  ekiden order fifo wfq
      fifo first; those that are not named follow as they did

A CPU that looks for work asks one after the other, and the first that has a
task wins. A policy further back still has a turn ten times a second.")]
pub(crate) struct Order {
    /// Policies, by their names or the numbers that `ekiden status` shows
    #[arg(value_name = "POLICY")]
    policies: Vec<String>,
}

impl Order {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let status = Status::read()?.unwrap_or_default();
        if status.policies.is_empty() {
            return Err(LoadError::NothingRuns.into());
        }
        let mut order = Vec::new();
        for name in &self.policies {
            let slot = status.find(Some(name))?.slot;
            if order.contains(&slot) {
                return Err(Failure::new(Exit::Usage, format!("{name} is named twice")).into());
            }
            order.push(slot);
        }
        let rest: Vec<u32> =
            status.policies.iter().map(|policy| policy.slot).filter(|slot| !order.contains(slot)).collect();
        order.extend(rest);
        if !self.policies.is_empty() {
            Control::open()?.reorder(&order)?;
        }
        for slot in order {
            let name = status.policies.iter().find(|policy| policy.slot == slot);
            println!("{}", name.map_or("?", |policy| &policy.policy));
        }
        Ok(ExitCode::SUCCESS)
    }
}
