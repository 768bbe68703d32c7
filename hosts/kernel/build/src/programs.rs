//! Programs of ours that the command line looks for beside itself, built in the checkout for one that has none there: `cargo install` has put
//! it elsewhere.

use crate::{Checkout, Progress, Result, command, runner::built_with};
use std::{path::PathBuf, process::Command};

impl Checkout {
    /// Where they are once [`build_programs`](Self::build_programs) has built them.
    pub fn programs(&self) -> PathBuf {
        self.target_dir().join("release")
    }

    /// Builds the programs of these packages, as far as they are not up to date.
    pub fn build_programs(&self, packages: &[&str], progress: Progress<'_>) -> Result<()> {
        let cargo = || {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo.args(["build", "--release"]).args(packages.iter().flat_map(|package| ["-p", package]));
            // They are looked for where they are put without it.
            cargo.env_remove("CARGO_BUILD_TARGET");
            cargo.arg("--target-dir").arg(self.target_dir()).current_dir(self.root());
            cargo
        };
        let output = built_with(&format!("building {}", packages.join(" and ")), progress, cargo)?;
        if output.status.success() { Ok(()) } else { Err(command::failed(&cargo(), &output)) }
    }
}
