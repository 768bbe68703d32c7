//! Where the kernel modules of a policy come from.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_build::{Builder, Checkout, Policy, Project, Target, Trust};
use ekiden_loader::LoadError;
use ekiden_vm::{Cache, Kernel};

use crate::{
    failure::{Exit, Failure},
    invoker::Invoker,
    progress::Progress,
};

/// The variable that names a directory with modules.
pub const DIRECTORY: &str = "EKIDEN_MODULES";

/// Permissions of a policy that is built.
#[derive(Args, Clone, Debug, Default)]
pub struct Allowed {
    /// A crate that the policy depends on may have unsafe code
    #[arg(long, value_name = "NAME")]
    allow_unsafe: Vec<String>,
    /// Root without sudo runs what a policy's author has run while it is built: build scripts and procedural macros
    #[arg(long)]
    as_root: bool,
}

impl Allowed {
    /// What the builder is told of it.
    pub fn trust(&self) -> Trust {
        Trust { allow_unsafe: self.allow_unsafe.clone(), as_root: self.as_root }
    }

    /// The options that say so.
    fn as_args(&self) -> Vec<String> {
        self.allow_unsafe.iter().map(|name| format!("--allow-unsafe={name}")).collect()
    }
}

/// `ekiden.ko` and the module of a policy, in the order to load them.
pub fn in_directory(directory: &Path, policy: &str) -> Result<Vec<PathBuf>> {
    let core = directory.join("ekiden.ko");
    if !core.exists() {
        return Err(LoadError::NoModule(core).into());
    }
    let module = file(directory, policy);
    if !module.exists() {
        let there = policies_in(directory).join(", ");
        let message = format!("no module of {policy} is in {}; there are those of {there}", directory.display());
        return Err(Failure::new(Exit::NoPolicy, message).into());
    }
    Ok(vec![core, module])
}

/// Where the module of a policy is in a directory with modules.
pub fn file(directory: &Path, policy: &str) -> PathBuf {
    directory.join(format!("ekiden_{}.ko", policy.replace('-', "_")))
}

/// The policies whose modules are in a directory.
fn policies_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let policy = |name: &str| Some(name.strip_prefix("ekiden_")?.strip_suffix(".ko")?.replace('_', "-"));
    let mut policies: Vec<String> =
        entries.flatten().filter_map(|entry| policy(&entry.file_name().to_string_lossy())).collect();
    policies.sort();
    policies
}

/// The directory with the modules of a policy for the kernel of this machine: `given`, or one in which they are built.
pub fn for_this_machine(
    given: Option<&Path>,
    policy: &str,
    allowed: &Allowed,
    progress: &mut Progress,
) -> Result<PathBuf> {
    match given {
        Some(directory) => in_directory(directory, policy).map(|_| directory.to_owned()),
        None => build(&Target::running()?, &[policy.to_owned()], How::Usual(allowed), "--native", progress),
    }
}

/// The directory with the modules of policies for a kernel that was fetched: `given`, or one in which they are built.
pub fn for_kernel(
    given: Option<&Path>,
    kernel: &Kernel,
    policies: &[String],
    allowed: &Allowed,
    progress: &mut Progress,
) -> Result<PathBuf> {
    match given {
        Some(directory) => {
            policies.iter().try_for_each(|policy| in_directory(directory, policy).map(drop))?;
            Ok(directory.to_owned())
        }
        None => {
            let release = format!("--kernel={}", kernel.release());
            build(&Target::fetched(kernel), policies, How::Usual(allowed), &release, progress)
        }
    }
}

/// Modules of which no policy can take over from another, to measure what it costs that one can: for the kernel of this machine.
pub fn fixed_for_this_machine(policies: &[String], progress: &mut Progress) -> Result<PathBuf> {
    build(&Target::running()?, policies, How::Fixed, "--native", progress)
}

/// The modules of policies that nothing can take over from, for a kernel that was fetched.
pub fn fixed_for_kernel(kernel: &Kernel, policies: &[String], progress: &mut Progress) -> Result<PathBuf> {
    let release = format!("--kernel={}", kernel.release());
    build(&Target::fetched(kernel), policies, How::Fixed, &release, progress)
}

/// Which modules are built of policies.
enum How<'a> {
    /// What runs, with this allowed to its author.
    Usual(&'a Allowed),
    /// Modules of which none can take over from another.
    Fixed,
}

/// Builds what is not up to date; as the user who has called sudo, if this is root by it. `kernel` is the option of `ekiden build` that names
/// the target.
fn build(target: &Target, policies: &[String], how: How<'_>, kernel: &str, progress: &mut Progress) -> Result<PathBuf> {
    if let Some(invoker) = Invoker::find() {
        // The project is read as that user, too: it says which compiler is run.
        let mut options = vec![kernel.to_owned()];
        options.extend(policies.iter().map(|policy| format!("--policy={policy}")));
        return match how {
            How::Usual(allowed) => invoker.build(&[options, allowed.as_args()].concat(), progress),
            How::Fixed => invoker.build_fixed(&options, progress),
        };
    }
    let project = project_with(policies)?;
    let wanted: Vec<Policy> =
        policies.iter().map(|policy| project.policy(policy).cloned()).collect::<Result<_, ekiden_build::Error>>()?;
    progress.step(format!("building the modules of {} for {}", policies.join(" and "), target.release()));
    let builder = Builder::new(&Cache::from_env()?, &mut progress.sink())?;
    let builder = match how {
        How::Usual(allowed) => builder.trusting(allowed.trust()),
        How::Fixed => builder.fixed(),
    };
    let modules = builder.build(target, &project, &wanted, &mut progress.sink())?;
    progress.end_step();
    Ok(modules.directory)
}

/// The project that has all of these policies: the one in the current directory, or Ekiden itself.
pub fn project_with(policies: &[String]) -> Result<Project> {
    let here = std::env::current_dir().context("cannot find the current directory")?;
    match Project::open(&here) {
        Ok(project) if policies.iter().all(|policy| project.policy(policy).is_ok()) => Ok(project),
        _ => Ok(Project::open(Checkout::find()?.root())?),
    }
}
