//! `ekiden exec`: a command in class SCHED_EXT.

use std::{ffi::OsString, io, os::unix::process::CommandExt, process::Command, process::ExitCode};

use anyhow::Result;
use clap::Args;
use ekiden_workload::exec::enter_ext_class;

use crate::failure::{Exit, Failure};

#[derive(Args)]
#[command(after_help = "\
Example:
  ekiden run wfq --attached &    then, for each program that the policy is to schedule:
  ekiden exec -- make -j4")]
pub(crate) struct Exec {
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Exec {
    pub(crate) fn run(self) -> Result<ExitCode> {
        enter_ext_class()?;
        let error = Command::new(&self.command[0]).args(&self.command[1..]).exec();
        let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotRun };
        let program = self.command[0].to_string_lossy();
        Err(Failure::new(exit, format!("cannot run `{program}`: {error}; check its name and PATH")).into())
    }
}
