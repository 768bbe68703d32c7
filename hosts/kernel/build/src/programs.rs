//! Programs of ours that the command line looks for beside itself, built in the checkout for one that has none there: `cargo install` has put
//! it elsewhere.

use crate::{Checkout, Progress, Result, command, runner::built_with};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

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

    /// Builds the program of a package that is a workspace of its own, in this directory of the checkout, with these variables set. It is called
    /// `ekiden-` and the name of the directory, in which cargo's settings are. Returns the program.
    pub fn build_apart(&self, directory: &str, variables: &[(&str, &Path)], progress: Progress<'_>) -> Result<PathBuf> {
        let directory = self.root().join(directory);
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let target = self.target_dir().join(&name);
        let cargo = || {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo.args(["build", "--release", "--locked"]).arg("--target-dir").arg(&target).current_dir(&directory);
            cargo.env_remove("CARGO_BUILD_TARGET").envs(variables.iter().copied());
            cargo
        };
        let output = built_with(&format!("building {}", directory.display()), progress, cargo)?;
        if !output.status.success() {
            return Err(command::failed(&cargo(), &output));
        }
        Ok(target.join("release").join(format!("ekiden-{name}")))
    }
}
