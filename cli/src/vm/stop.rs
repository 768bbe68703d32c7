//! `ekiden vm stop`: switches a machine off.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use ekiden_vm::Stopped;

use super::{Booted, Name};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden vm stop
  ekiden vm stop --name races
One that does not answer is ended by force; `ekiden vm list` shows all.")]
pub(crate) struct Stop {
    #[command(flatten)]
    name: Name,
    /// End it although another command uses it
    #[arg(long)]
    force: bool,
}

impl Stop {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let name = self.name.get();
        match Booted::stop(&self.name, self.force)? {
            Some(Stopped::Obeyed) => println!("machine {name} is switched off"),
            Some(Stopped::Forced(reason)) => println!("machine {name} was ended by force: {reason}"),
            None => println!("there is no machine {name}"),
        }
        Ok(ExitCode::SUCCESS)
    }
}
