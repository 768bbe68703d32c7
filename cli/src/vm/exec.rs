//! `ekiden vm exec`: a command in the machine that was started.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::{Booted, Name};
use crate::{
    failure::{Exit, Failure},
    machine::{exit_code, follow, guest_command},
};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden vm exec -- uname -a
  ekiden vm exec -- sh -c 'dmesg | tail'
  ekiden vm exec -- ekiden status
Ctrl-C and SIGTERM end the command there; a second one, or half a minute, kills
it.")]
pub(crate) struct Exec {
    #[command(flatten)]
    name: Name,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Exec {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let Some(booted) = Booted::find(&self.name)? else {
            let name = self.name.get();
            let message = format!("there is no machine {name} to run it in; `ekiden vm start` boots one");
            return Err(Failure::new(Exit::NoMachine, message).into());
        };
        follow(&booted.vm, &guest_command(self.command)).map(exit_code)
    }
}
