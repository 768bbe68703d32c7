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
    /// The policy: one that comes with Ekiden, or of the project in the current directory
    policy: String,
    /// A parameter of the policy
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Room for this many tasks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=1_048_576))]
    max_tasks: Option<u32>,
    /// Record every call to this file, from the first one on
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// If the policy is taken out, let the command continue under the kernel's own scheduler
    #[arg(long)]
    keep_going: bool,
    /// Print what the agent has done as JSON
    #[arg(long)]
    json: bool,
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
        Needs::of([&self.policy], self.as_root)
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        policies::check_params(&self.policy, &self.set.join(" "))?;
        policies::make(&self.policy)?;
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
        let mut argv = vec![ekiden, "agent".to_owned(), self.policy.clone()];
        argv.extend(self.set.iter().flat_map(|set| ["--set".to_owned(), set.clone()]));
        argv.extend(self.max_tasks.map(|tasks| format!("--max-tasks={tasks}")));
        argv.extend(self.keep_going.then(|| "--keep-going".to_owned()));
        argv.extend(self.json.then(|| "--json".to_owned()));
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
