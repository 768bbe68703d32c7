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
    /// The policy: one that comes with Ekiden (fifo, wfq), or of the project in the current directory
    policy: String,
    /// A parameter of the policy
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Schedule only the command, not the whole machine
    #[arg(long)]
    attached: bool,
    /// Room for this many tasks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=4_194_304))]
    max_tasks: Option<u32>,
    /// Memory for the policy itself
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=16_384))]
    arena_mib: Option<u64>,
    /// Take the modules from this directory instead of building them
    #[arg(long, value_name = "DIR", env = modules::DIRECTORY)]
    modules: Option<PathBuf>,
    #[command(flatten)]
    allowed: Allowed,
    /// Record every call to this file, from the first one on
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// If the policy is taken out, let the command continue under the kernel's own scheduler
    #[arg(long)]
    keep_going: bool,
    #[command(flatten)]
    shape: Shape,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Run {
    pub(crate) fn run(self) -> Result<ExitCode> {
        policies::check_params(&self.policy, &self.set.join(" "))?;
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
        let policies = [self.policy.clone()];
        let directory = modules::for_kernel(self.modules.as_deref(), kernel, &policies, &self.allowed, progress)?;
        install_modules(&directory, share)
    }

    fn in_guest(&self, vm: &Vm, share: &Path, ekiden: String) -> Result<ExitCode> {
        let recordings = Recordings::prepare(share, self.record.as_deref())?;
        let mut argv = vec![ekiden, "run".to_owned(), self.policy.clone()];
        argv.extend(self.set.iter().flat_map(|set| ["--set".to_owned(), set.clone()]));
        argv.extend(self.attached.then(|| "--attached".to_owned()));
        argv.extend(self.keep_going.then(|| "--keep-going".to_owned()));
        argv.extend(self.max_tasks.map(|tasks| format!("--max-tasks={tasks}")));
        argv.extend(self.arena_mib.map(|mib| format!("--arena-mib={mib}")));
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
