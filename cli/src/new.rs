//! `ekiden new`: a policy project.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Args;
use ekiden_build::new_project;

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden new my-policy
  ekiden new shortest-job --in ~/policies
What it makes is a policy that works, with tests: change it from there.")]
pub(crate) struct New {
    /// Name of the policy: lower case letters, digits and dashes
    name: String,
    /// Make it in this directory instead of the current one
    #[arg(long = "in", value_name = "DIR", default_value = ".")]
    parent: PathBuf,
}

impl New {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let directory = new_project(&self.parent, &self.name)?;
        println!("{} is made: the policy is in src/lib.rs, its tests are in tests/", directory.display());
        println!("next, there:");
        println!("  cargo test                                     in the simulator");
        println!("  ekiden sim fair-share -p {}", self.name);
        println!("  ekiden vm run {} -- ekiden-load run fair-share  in a kernel", self.name);
        Ok(ExitCode::SUCCESS)
    }
}
