//! `ekiden vm`: a virtual machine of a stock kernel, and commands in it.

mod agent;
mod exec;
mod list;
mod recordings;
mod run;
mod start;
mod status;
mod stop;
mod terminal;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

pub(crate) use crate::booted::{Booted, Name};

use crate::own::Needs;

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden vm run wfq -- ekiden-load run fair-share --check
      boot, run under a policy, switch off
  ekiden vm start; ekiden vm run fifo -- dmesg; ekiden vm stop
      the same in a machine that stays
The guest has busybox, ekiden and ekiden-load, and a directory in common with
this machine at /host (see vm status). Each checkout has a machine of its own;
with --name there can be more, and `vm list` shows all.")]
pub(crate) struct VmCommand {
    #[command(subcommand)]
    which: Which,
}

#[derive(Subcommand)]
enum Which {
    /// Boot a virtual machine that stays, for `vm run` and `vm exec`
    Start(start::Start),
    /// Run a command under a policy
    Run(run::Run),
    /// Run a command under a policy in a process, without any kernel module
    Agent(agent::Agent),
    /// Run a command under the kernel's own scheduler, in the machine that was started
    Exec(exec::Exec),
    /// Switch the machine off
    Stop(stop::Stop),
    /// Say whether there is a machine, and what it is like
    Status(status::Status),
    /// Show all machines, and who uses them
    List(list::List),
}

impl VmCommand {
    /// The policies that have to be in this program.
    pub(crate) fn needs(&self) -> Needs {
        match &self.which {
            Which::Agent(agent) => agent.needs(),
            _ => Needs::default(),
        }
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.which {
            Which::Start(start) => start.run(),
            Which::Run(run) => run.run(),
            Which::Agent(agent) => agent.run(),
            Which::Exec(exec) => exec.run(),
            Which::Stop(stop) => stop.run(),
            Which::Status(status) => status.run(),
            Which::List(list) => list.run(),
        }
    }
}
