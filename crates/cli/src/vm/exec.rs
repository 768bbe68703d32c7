//! `ekiden vm exec`: a command in the machine that was started.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::Booted;
use crate::{
    failure::{Exit, Failure},
    machine::{exit_code, follow, guest_command},
};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden vm exec -- uname -a
  ekiden vm exec -- sh -c 'dmesg | tail'
  ekiden vm exec -- ekiden status")]
pub(crate) struct Exec {
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Exec {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let Some(booted) = Booted::find()? else {
            let message = "there is no machine to run it in; `ekiden vm start` boots one";
            return Err(Failure::new(Exit::NoMachine, message).into());
        };
        follow(&booted.vm, &guest_command(self.command)).map(exit_code)
    }
}
