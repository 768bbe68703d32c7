//! `ekiden build`: kernel modules of policies.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Args;
use ekiden_build::{Builder, Policy, Project, Target};
use ekiden_vm::{Cache, fetch, fetch_newest_passing};
use serde::Serialize;

use crate::{
    invoker::Invoker,
    modules::{self, Allowed},
    own,
    progress::Progress,
};

/// The package with policies that go wrong on purpose.
const FOR_TESTS: &str = "ekiden-test-policies";

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden build
      all policies here, for the newest stock kernel that works
  ekiden build --kernel 7.2.13   for another
  ekiden build --native          for the kernel of this machine
  ekiden build --dir ~/my-policy --policy my-policy --json
  ekiden build --allow-unsafe bitvec
      a dependency that has unsafe code, and that you trust
`ekiden run` and `ekiden vm run` build what they need by themselves. See also:
ekiden bench edit")]
pub(crate) struct Build {
    /// A policy to build; by default all of the project
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<String>,
    /// The project; by default that of the current directory, or else Ekiden's own policies
    #[arg(long, value_name = "PROJECT")]
    dir: Option<PathBuf>,
    /// The kernel's release, or the beginning of one, as in 7.2.13
    #[arg(long, value_name = "RELEASE", conflicts_with = "native")]
    kernel: Option<String>,
    /// Build for the kernel of this machine
    #[arg(long)]
    native: bool,
    #[command(flatten)]
    allowed: Allowed,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Build this program with the project's policies instead, and print where it is
    #[arg(long, hide = true)]
    runner: bool,
    /// Build modules of which none can take over from another, for `ekiden bench upgrade`
    #[arg(long, hide = true)]
    fixed: bool,
}

#[derive(Serialize)]
struct Built {
    release: String,
    directory: PathBuf,
    policies: Vec<String>,
    rebuilt: Vec<String>,
    seconds: f64,
}

impl Build {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if let Some(invoker) = Invoker::find() {
            return invoker.again();
        }
        if self.runner {
            let project = modules::project_with(&self.policies)?;
            println!("{}", own::build(&project, self.allowed.trust().as_root)?.display());
            return Ok(ExitCode::SUCCESS);
        }
        let mut progress = Progress::new();
        let cache = Cache::from_env()?;
        let project = match &self.dir {
            Some(directory) => Project::open(directory)?,
            None => modules::project_with(&self.policies)?,
        };
        let wanted: Vec<Policy> = match &self.policies[..] {
            [] => project.policies().iter().filter(|policy| policy.package != FOR_TESTS).cloned().collect(),
            names => names.iter().map(|name| project.policy(name).cloned()).collect::<Result<_, _>>()?,
        };
        let target = if self.native {
            Target::running()?
        } else {
            progress.step("finding the kernel");
            let kernel = match &self.kernel {
                Some(release) => fetch(&cache, release, &mut progress.sink())?,
                None => fetch_newest_passing(&cache, &mut progress.sink())?,
            };
            Target::fetched(&kernel)
        };
        progress.step(format!("building for {}", target.release()));
        let builder = Builder::new(&cache, &mut progress.sink())?.trusting(self.allowed.trust());
        let builder = if self.fixed { builder.fixed() } else { builder };
        let modules = builder.build(&target, &project, &wanted, &mut progress.sink())?;
        progress.end_step();
        let built = Built {
            release: target.release().to_owned(),
            directory: modules.directory,
            policies: modules.policies.into_iter().map(|(name, _)| name).collect(),
            rebuilt: modules.rebuilt,
            seconds: progress.elapsed().as_secs_f64(),
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&built)?);
        } else {
            self.show(&built);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn show(&self, built: &Built) {
        let news = if built.rebuilt.is_empty() { "all up to date".into() } else { built.rebuilt.join(", ") };
        println!("modules for {} in {} ({news})", built.release, built.directory.display());
        let policy = built.policies.first().map_or("POLICY", String::as_str);
        let command = if self.native { "ekiden run" } else { "ekiden vm run" };
        println!("next: {command} {policy} -- ekiden-load run fair-share");
    }
}
