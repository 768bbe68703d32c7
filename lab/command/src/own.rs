//! Policies of one's own in the commands that need them in this process. In a project, this program is built anew with the
//! project's policies linked in, and becomes the program that was built.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_build::{Built, Checkout, Project, Runner, STILL};

use crate::{
    failure::{Exit, Failure},
    invoker::Invoker,
    modules::Allowed,
    policies,
    progress::Progress,
};

/// Permissions of a policy of one's own that is built for a command.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct AsRoot {
    /// Root without sudo runs what the author of a policy of your own has run while it is built
    #[arg(long)]
    as_root: bool,
}

/// The policies that a command needs in this process.
#[derive(Default)]
pub struct Needs {
    policies: Vec<String>,
    as_root: bool,
    is_for_root: bool,
}

impl Needs {
    /// These; parameters may stand behind a colon.
    pub fn of<S: Into<String>>(policies: impl IntoIterator<Item = S>, allowed: AsRoot) -> Self {
        let name = |policy: String| policy.split_once(':').map_or(policy.clone(), |(name, _)| name.to_owned());
        let policies = policies.into_iter().map(|policy| name(policy.into())).collect();
        Self { policies, as_root: allowed.as_root, is_for_root: false }
    }

    /// For a command that only root can run.
    pub fn for_root(self) -> Self {
        Self { is_for_root: true, ..self }
    }

    /// Becomes a program that has them, if this one does not and the project in the current directory does. An exit code is that of such a
    /// program, which has run.
    pub fn fetch(&self) -> Result<Option<ExitCode>> {
        let Some(project) = self.project()? else { return Ok(None) };
        match Invoker::find() {
            Some(invoker) if self.is_for_root => Err(become_program(&invoker.runner()?)?),
            // As root nothing of the project is run for what needs no root.
            Some(invoker) => invoker.again().map(Some),
            None => Err(become_program(&build(&project, self.as_root)?)?),
        }
    }

    /// The project, if it has one of the policies.
    fn project(&self) -> Result<Option<Project>> {
        if self.policies.is_empty() || !ekiden_linked::own().is_empty() {
            return Ok(None);
        }
        let here = std::env::current_dir().context("cannot find the current directory")?;
        let Some(project) = project_here(&here) else { return Ok(None) };
        let is_here = |policy: &String| project.policy(policy).is_ok();
        if !self.policies.iter().any(is_here) {
            return Ok(None);
        }
        if let Some(twice) = project.policies().iter().find(|policy| ekiden_linked::comes_along(&policy.name)) {
            let message = format!(
                "the project in {} has a policy `{1}`, and so has Ekiden: rename the type {2}, from which its name comes",
                project.root().display(),
                twice.name,
                twice.path
            );
            return Err(Failure::new(Exit::Usage, message).into());
        }
        Ok(Some(project))
    }
}

impl From<&Allowed> for AsRoot {
    fn from(allowed: &Allowed) -> Self {
        Self { as_root: allowed.trust().as_root }
    }
}

/// The names of the policies of one's own in the project that the current directory belongs to.
pub fn here() -> Vec<String> {
    let linked = ekiden_linked::own();
    if !linked.is_empty() {
        return linked.iter().map(|linked| linked.name.to_owned()).collect();
    }
    let project = std::env::current_dir().ok().and_then(|here| project_here(&here));
    project.iter().flat_map(|project| project.policies()).map(|policy| policy.name.clone()).collect()
}

/// The project of one's own that a directory belongs to.
fn project_here(here: &Path) -> Option<Project> {
    // Most commands are given where no project is, or in this tree: cargo, which takes a while, need not be asked.
    let manifests: Vec<PathBuf> =
        here.ancestors().map(|directory| directory.join("Cargo.toml")).filter(|file| file.is_file()).collect();
    let is_workspace = |file: &&PathBuf| {
        fs::read_to_string(file).is_ok_and(|text| text.lines().any(|line| line.starts_with("[workspace")))
    };
    let workspace = manifests.iter().find(is_workspace).and_then(|file| file.parent());
    let is_ours = Checkout::find().is_ok_and(|checkout| workspace == Some(checkout.root()));
    if manifests.is_empty() || is_ours {
        return None;
    }
    Project::open(here).ok()
}

/// Builds this program with the policies of the project.
pub fn build(project: &Project, as_root: bool) -> Result<PathBuf> {
    let features = [("bpf", cfg!(feature = "bpf")), ("vm", cfg!(feature = "vm"))];
    let features = features.iter().filter(|(_, is_on)| *is_on).map(|(name, _)| *name).collect();
    let runner = Runner { features, release: !cfg!(debug_assertions), as_root };
    let names: Vec<&str> = project.policies().iter().map(|policy| policy.name.as_str()).collect();
    let mut progress = Progress::brief(format!("building ekiden with {}", names.join(", ")));
    // That it is not over yet is said already.
    let mut told = |line: &str| {
        if !line.starts_with(STILL) {
            progress.note(line);
        }
    };
    let Built { program, warnings } = runner.build(&Checkout::find()?, project, &mut told)?;
    drop(progress);
    eprint!("{warnings}");
    Ok(program)
}

/// Runs the whole command in another program instead of this one. Returns only if that is not possible.
fn become_program(program: &Path) -> Result<anyhow::Error> {
    let error = Command::new(program).arg0("ekiden").args(std::env::args_os().skip(1)).exec();
    Ok(anyhow::Error::new(error).context(format!("cannot run {}", program.display())))
}

/// What to say of a policy that is nowhere: which ones there are, and where one's own are.
pub fn unknown(policy: &str) -> String {
    let own: Vec<String> = here().into_iter().filter(|name| policies::find(name).is_none()).collect();
    let known: Vec<&str> = policies::all().map(|linked| linked.name).chain(own.iter().map(String::as_str)).collect();
    format!(
        "there is no policy `{policy}`; known are {}; with a policy of your own, run it in the directory of its project",
        known.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_policies_of_ours_builds_nothing() {
        let needs = Needs::of(["wfq:slice_min_us=500", "fifo"], AsRoot::default());
        assert_eq!(needs.policies, ["wfq", "fifo"]);
        assert!(needs.project().unwrap().is_none());
        assert!(Needs::default().project().unwrap().is_none());
    }

    #[test]
    fn an_unknown_policy_is_answered_with_the_known_ones_and_where_others_are() {
        let text = unknown("nope");
        assert!(text.contains("no policy `nope`; known are fifo, "), "{text}");
        assert!(text.ends_with("run it in the directory of its project"), "{text}");
    }
}
