//! `ekiden vm agent`: a command under a policy in a process of the guest.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use clap::Args;
use ekiden_vm::{Scratch, Vm};

use super::{Booted, Name, recordings::Recordings};
use crate::{
    agent::AgentOptions,
    machine::{Shape, boot, exit_code, follow, guest_command},
    own::{AsRoot, Needs},
    policies,
    progress::Progress,
};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden vm agent wfq -- ekiden-load run fair-share --check
  ekiden vm agent wfq --record out.ekirec -- ekiden-load run messaging
  ekiden replay out.ekirec
  ekiden vm agent fifo --json --cpus 4 -- ekiden-load messaging
The exit code is that of the command, or 101 if the policy was taken out. No
modules are built: the policy is in the program. In a machine that `ekiden vm
start` has booted, options about the machine do not count.")]
pub(crate) struct Agent {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    options: AgentOptions,
    /// Record every call to this file, from the first one on
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    as_root: AsRoot,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Agent {
    /// The policies that have to be in the program that runs in the guest, which is this one.
    pub(crate) fn needs(&self) -> Needs {
        Needs::of([&self.options.policy], self.as_root)
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        policies::check_params(&self.options.policy, &self.options.set.join(" "))?;
        policies::make(&self.options.policy)?;
        if let Some(booted) = Booted::find(&self.name)? {
            return self.in_guest(&booted.vm, &booted.note.share, booted.program("ekiden")?);
        }
        let mut progress = Progress::new();
        let kernel = self.shape.fetch(&mut progress)?;
        let share = Scratch::new()?;
        progress.step(format!("booting Linux {}", kernel.release()));
        let vm = boot(&kernel, &self.shape.spec(share.path()))?;
        progress.end_step();
        let code = self.in_guest(&vm, share.path(), "ekiden".into())?;
        vm.shutdown()?;
        Ok(code)
    }

    fn in_guest(&self, vm: &Vm, share: &Path, ekiden: String) -> Result<ExitCode> {
        let recordings = Recordings::prepare(share, self.record.as_deref())?;
        let mut argv = [vec![ekiden, "agent".to_owned()], self.options.argv()].concat();
        argv.extend(recordings.options());
        if !self.command.is_empty() {
            argv.push("--".into());
            argv.extend(self.command.iter().cloned());
        }
        let code = follow(vm, &guest_command(argv)).map(exit_code)?;
        recordings.bring_home()?;
        Ok(code)
    }
}
