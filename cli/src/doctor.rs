//! `ekiden doctor`: what this machine lacks, and how to get it.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use ekiden_build::{
    doctor::{Purpose, examine},
    install_missing,
};
use ekiden_vm::{Verdict, preflight_running};
use serde::Serialize;

use crate::{failure::Exit, progress::Progress};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden doctor
      what there is, and what is missing with the command that installs it
  ekiden doctor --for simulator
      only what the simulator needs
  ekiden doctor --install
      installs it (Debian and Ubuntu), after saying what
  ekiden doctor --json
It exits with 115 if something is missing for the chosen purpose.")]
pub(crate) struct Doctor {
    /// What you want to do
    #[arg(long = "for", value_name = "PURPOSE", default_value = "vm")]
    purpose: Aim,
    /// Install what is missing
    #[arg(long)]
    install: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Aim {
    /// Write policies and run them in the simulator
    Simulator,
    /// Make kernel modules and run them in a virtual machine
    Vm,
    /// Run the tests of this project
    Tests,
    /// Run policies in the kernel of this machine
    Native,
}

impl From<Aim> for Purpose {
    fn from(aim: Aim) -> Self {
        match aim {
            Aim::Simulator => Self::Simulator,
            Aim::Vm => Self::Vm,
            Aim::Tests => Self::Tests,
            Aim::Native => Self::Native,
        }
    }
}

#[derive(Serialize)]
struct Report<'a> {
    ready: bool,
    install_command: Option<String>,
    diagnosis: &'a ekiden_build::doctor::Diagnosis,
    /// What the running kernel's type information says of sched_ext.
    kernel: Kernel,
}

#[derive(Serialize)]
struct Kernel {
    passes: bool,
    verdict: String,
}

impl Doctor {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let purpose = self.purpose.into();
        if self.install {
            let mut progress = Progress::new();
            progress.step("looking for what is missing");
            install_missing(purpose, &mut progress.sink())?;
        }
        let diagnosis = examine();
        let ready = diagnosis.is_ready_for(purpose);
        if self.json {
            let verdict = preflight_running();
            let kernel = Kernel {
                passes: verdict.as_ref().is_ok_and(Verdict::passes),
                verdict: verdict.map_or_else(|error| error.to_string(), |verdict| verdict.to_string()),
            };
            let install_command = diagnosis.install_command(purpose);
            let report = Report { ready, install_command, diagnosis: &diagnosis, kernel };
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{diagnosis}");
        }
        Ok(if ready { ExitCode::SUCCESS } else { Exit::Missing.into() })
    }
}
