//! `ekiden vm run`: a command under a policy, in the machine that was started or in one of its own.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use clap::Args;
use ekiden_vm::{Cache, Scratch, Vm, fetch};

use super::{Booted, Name, recordings::Recordings};
use crate::{
    guest_run::{GuestRun, RunOptions},
    machine::{Shape, boot, exit_code, follow, guest_command, install_modules},
    modules::{self, Allowed},
    policies,
    progress::Progress,
};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden vm run wfq -- ekiden-load run fair-share --check
  ekiden vm run wfq --set slice_min_us=1000 --cpus 8 -- ekiden-load messaging
  ekiden vm run wfq --record out.ekirec -- ekiden-load run messaging
  ekiden replay out.ekirec
  ekiden vm run fifo --kernel 7.2.13   until Ctrl-C
The exit code is that of the command, or 101 if the policy was taken out (see
`ekiden --help`). In a machine that `ekiden vm start` has booted, options about
the machine do not count.")]
pub(crate) struct Run {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    options: RunOptions,
    /// Take the modules from this directory instead of building them
    #[arg(long, value_name = "DIR", env = modules::DIRECTORY)]
    modules: Option<PathBuf>,
    #[command(flatten)]
    allowed: Allowed,
    /// Record every call to this file, from the first one on
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    shape: Shape,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Run {
    pub(crate) fn run(self) -> Result<ExitCode> {
        policies::check_params(&self.options.policy, &self.options.set.join(" "))?;
        let mut progress = Progress::new();
        match Booted::find(&self.name)? {
            Some(booted) => {
                let kernel = fetch(&Cache::from_env()?, &booted.note.release, &mut progress.sink())?;
                self.put_modules(&kernel, &booted.note.share, &mut progress)?;
                self.in_guest(&booted.vm, &booted.note.share, booted.program("ekiden")?)
            }
            None => {
                let kernel = self.shape.fetch(&mut progress)?;
                let share = Scratch::new()?;
                self.put_modules(&kernel, share.path(), &mut progress)?;
                progress.step(format!("booting Linux {}", kernel.release()));
                let vm = boot(&kernel, &self.shape.spec(share.path()))?;
                progress.end_step();
                let code = self.in_guest(&vm, share.path(), "ekiden".into())?;
                vm.shutdown()?;
                Ok(code)
            }
        }
    }

    fn put_modules(&self, kernel: &ekiden_vm::Kernel, share: &Path, progress: &mut Progress) -> Result<()> {
        let policies = [self.options.policy.clone()];
        let directory = modules::for_kernel(self.modules.as_deref(), kernel, &policies, &self.allowed, progress)?;
        install_modules(&directory, share)
    }

    fn in_guest(&self, vm: &Vm, share: &Path, ekiden: String) -> Result<ExitCode> {
        let recordings = Recordings::prepare(share, self.record.as_deref())?;
        let run = GuestRun {
            ekiden,
            options: self.options.clone(),
            flight_kib: None,
            flights: Some(Recordings::flights()),
            record: recordings.record(),
            command: self.command.clone(),
        };
        let code = follow(vm, &guest_command(run.argv())).map(exit_code)?;
        recordings.bring_home()?;
        Ok(code)
    }
}
