//! The program that tries things in a guest, and the modules of policies that it tries.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use ekiden_build::{Builder, Checkout, Project, Target};
use ekiden_guest_test::{GuestTest, PROGRAM, Request};
use ekiden_vm::{Cache, GuestCommand, Kernel};

use crate::{
    machine::{self, GUEST_MODULES, build_missing, guest_command, install_modules},
    progress::Progress,
};

/// Builds the modules of policies of ours, each with the project that it is of, and puts them where a guest sees them.
pub(crate) fn install(policies: &[(&str, &str)], kernel: &Kernel, share: &Path, progress: &mut Progress) -> Result<()> {
    install_modules(&gather(policies, kernel, share, progress)?, share)
}

/// Installs modules from a directory as well, which were built for that kernel.
pub(crate) fn install_with(
    own: &Path,
    policies: &[(&str, &str)],
    kernel: &Kernel,
    share: &Path,
    progress: &mut Progress,
) -> Result<()> {
    let all = gather(policies, kernel, share, progress)?;
    copy(own, &all)?;
    install_modules(&all, share)
}

/// Builds them, and returns the directory in which they are.
fn gather(policies: &[(&str, &str)], kernel: &Kernel, share: &Path, progress: &mut Progress) -> Result<PathBuf> {
    progress.step(format!("building the modules for {}", kernel.release()));
    let (checkout, all) = (Checkout::find()?, share.join("all"));
    fs::create_dir_all(&all).context("cannot make a directory for modules")?;
    let builder = Builder::new(&Cache::from_env()?, &mut progress.sink())?;
    for (project, policy) in policies {
        let project = Project::open(&checkout.root().join(project))?;
        let wanted = [project.policy(policy)?.clone()];
        let modules = builder.build(&Target::fetched(kernel), &project, &wanted, &mut progress.sink())?;
        copy(&modules.directory, &all)?;
    }
    Ok(all)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).context("cannot look for modules")? {
        let path = entry.context("cannot look for modules")?.path();
        fs::copy(&path, to.join(path.file_name().unwrap_or_default())).context("cannot copy a module")?;
    }
    Ok(())
}

/// The program, which is built if this one was installed without it.
pub(crate) fn program(progress: &mut Progress) -> Result<PathBuf> {
    build_missing(PROGRAM, &["ekiden-kernel-tests"], progress)?;
    Ok(machine::program(PROGRAM))
}

/// Asks the program in a guest for a guest test.
pub(crate) fn command(guest_test: GuestTest) -> Result<GuestCommand> {
    Ok(guest_command(Request { modules: GUEST_MODULES.into(), guest_test }.argv()?))
}
