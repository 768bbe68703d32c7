//! `ekiden vm exec`: a command in the machine that was started.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::{Booted, Name, terminal};
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
  ekiden vm exec --tty -- sh
Ctrl-C and SIGTERM end the command there; a second one, or half a minute, kills
it. With --tty Ctrl-C is a key like others, which the command's terminal sees.")]
pub(crate) struct Exec {
    #[command(flatten)]
    name: Name,
    /// Give the command a terminal, as shells, editors and `top` want one
    #[arg(short, long)]
    tty: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Exec {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.tty {
            terminal::check()?;
        }
        let Some(booted) = Booted::find(&self.name)? else {
            let name = self.name.get();
            let message = format!("there is no machine {name} to run it in; `ekiden vm start` boots one");
            return Err(Failure::new(Exit::NoMachine, message).into());
        };
        let command = guest_command(self.command);
        let status = if self.tty { terminal::follow(&booted.vm, command)? } else { follow(&booted.vm, &command)? };
        Ok(exit_code(status))
    }
}
