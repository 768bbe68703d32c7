//! `ekiden exec`: a command under one of the policies that run.

use std::{ffi::OsString, io, os::unix::process::CommandExt, process::Command, process::ExitCode};

use anyhow::Result;
use clap::Args;
use ekiden_loader::{ChooseOptions, Inherit, Status, Who, choose};
use ekiden_workload::real::exec::enter_ext_class;

use crate::failure::{Exit, Failure};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden run wfq --attached &
      then, for each program that the policy is to schedule:
  ekiden exec -- make -j4
  ekiden run fifo --beside --open &
      another policy, and a program that gets it:
  ekiden exec -p fifo -- make -j4
  ekiden exec -p eevdf --set slice_us=500 -- mpv film.mkv

What the command starts gets the same policy.")]
pub(crate) struct Exec {
    /// Which of the policies that run, by its name or number; the default one if it is left out
    #[arg(short, long, value_name = "POLICY")]
    policy: Option<String>,
    /// Something that the policy has for a task; may be given several times
    #[arg(long, value_name = "NAME=NUMBER", requires = "policy")]
    set: Vec<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Exec {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match &self.policy {
            None => enter_ext_class()?,
            Some(name) => {
                let status = Status::read()?.unwrap_or_default();
                let options = ChooseOptions { inherit: Inherit::Yes, params: &self.set.join(" ") };
                choose(&Who::Thread(0), Some(status.find(Some(name))?.slot), options)?;
            }
        }
        let error = Command::new(&self.command[0]).args(&self.command[1..]).exec();
        let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotRun };
        let program = self.command[0].to_string_lossy();
        Err(Failure::new(exit, format!("cannot run `{program}`: {error}; check its name and PATH")).into())
    }
}
