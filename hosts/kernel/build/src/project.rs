//! A cargo project with policies in it.
//!
//! The crate that has them says so at the root of its `src/lib.rs`, by `ekiden::policies!`:
//!
//! ```text
//! ekiden::policies![Fifo, Wfq];
//! ```
//!
//! or in its `Cargo.toml`, by the names of their types:
//!
//! ```toml
//! [package.metadata.ekiden]
//! policies = ["Fifo", "Wfq"]
//! ```

use crate::{Error, Result};
use cargo_metadata::{Metadata, MetadataCommand, Package, Target as CargoTarget, TargetKind};
use heck::ToKebabCase;
use serde::Deserialize;
use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};
use syn::{Item, Token, parse::Parser, punctuated::Punctuated};

/// A longer `src/lib.rs` is not looked into.
const SOURCE_BYTES_MAX: u64 = 4 << 20;

/// A policy, as its crate's manifest tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The name that people choose it by, as in `shortest-job`.
    pub name: String,
    /// Its type, as other crates write it: `my_policies::ShortestJob`.
    pub path: String,
    /// The name of the package that has it.
    pub package: String,
    /// The directory of that package.
    pub directory: PathBuf,
}

impl Policy {
    /// The name of its kernel module, which has no dashes: `ekiden_shortest_job`.
    pub fn module_name(&self) -> String {
        format!("ekiden_{}", self.symbol())
    }

    pub(crate) fn symbol(&self) -> String {
        self.name.replace('-', "_")
    }
}

/// A cargo package or workspace with policies.
#[derive(Clone, Debug)]
pub struct Project {
    root: PathBuf,
    target_dir: PathBuf,
    policies: Vec<Policy>,
}

#[derive(Deserialize)]
struct PackageMetadata {
    ekiden: Option<EkidenMetadata>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EkidenMetadata {
    policies: Vec<String>,
}

impl Project {
    /// The project that `directory` belongs to: its workspace, if it is in one.
    pub fn open(directory: &Path) -> Result<Self> {
        let no_project = |reason: String| Error::NoProject { path: directory.to_owned(), reason };
        if !directory.is_dir() {
            return Err(no_project("there is no such directory".into()));
        }
        let metadata = about(directory)
            .no_deps()
            .other_options(["--offline".to_owned()])
            .exec()
            .map_err(|error| no_project(explain(&error)))?;
        let policies = policies(&metadata).map_err(no_project)?;
        if policies.is_empty() {
            return Err(no_project(
                "none of its crates has `ekiden::policies![…];` in its src/lib.rs, nor `policies = [\"…\"]` under \
                 [package.metadata.ekiden] in its Cargo.toml"
                    .into(),
            ));
        }
        Ok(Self {
            root: metadata.workspace_root.into_std_path_buf(),
            target_dir: metadata.target_directory.into_std_path_buf(),
            policies,
        })
    }

    /// The directory with `Cargo.lock`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where cargo puts what it makes of this project.
    pub fn target_dir(&self) -> &Path {
        &self.target_dir
    }

    /// Its policies, in the order of the manifests.
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// The policy of this name.
    pub fn policy(&self, name: &str) -> Result<&Policy> {
        self.policies.iter().find(|policy| policy.name == name).ok_or_else(|| Error::NoPolicy {
            name: name.to_owned(),
            known: self.policies.iter().map(|policy| policy.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }
}

/// A question to cargo about the project that a directory belongs to. Root's is not asked there: files in that place may say which program
/// answers.
fn about(directory: &Path) -> MetadataCommand {
    let mut command = MetadataCommand::new();
    let manifests = || directory.ancestors().map(|parent| parent.join("Cargo.toml"));
    match manifests().find(|manifest| nix::unistd::geteuid().is_root() && manifest.is_file()) {
        Some(manifest) => command.current_dir("/").manifest_path(manifest),
        None => command.current_dir(directory),
    };
    command
}

fn policies(metadata: &Metadata) -> std::result::Result<Vec<Policy>, String> {
    let mut policies: Vec<Policy> = Vec::new();
    for package in metadata.workspace_packages() {
        for ident in idents(package)? {
            let policy = policy(package, &ident)?;
            if let Some(other) = policies.iter().find(|other| other.name == policy.name) {
                return Err(format!("{} and {} are both called `{}`", other.path, policy.path, policy.name));
            }
            policies.push(policy);
        }
    }
    Ok(policies)
}

/// The types that a package says are policies.
fn idents(package: &Package) -> std::result::Result<Vec<String>, String> {
    let mut idents = idents_of_manifest(package)?;
    if let Some(library) = library(package) {
        idents.extend(idents_of_source(library.src_path.as_std_path())?);
    }
    Ok(idents)
}

/// The policies that `policies!` names in this file.
fn idents_of_source(path: &Path) -> std::result::Result<Vec<String>, String> {
    let broken = |why: &dyn std::fmt::Display| format!("cannot look for policies! in {}: {why}", path.display());
    // A pipe in its place would never end.
    if !fs::metadata(path).map_err(|error| broken(&error))?.is_file() {
        return Err(broken(&"it is no file"));
    }
    let mut text = String::new();
    let file = File::open(path).map_err(|error| broken(&error))?;
    file.take(SOURCE_BYTES_MAX).read_to_string(&mut text).map_err(|error| broken(&error))?;
    // The compiler says better what is wrong with a file that is no Rust, and does so when the policy is built.
    if !text.contains("policies!") {
        return Ok(Vec::new());
    }
    let mut idents = Vec::new();
    for item in syn::parse_file(&text).map_err(|error| broken(&error))?.items {
        let Item::Macro(call) = item else { continue };
        if call.mac.path.segments.last().is_some_and(|last| last.ident == "policies") {
            let list = Punctuated::<syn::Path, Token![,]>::parse_terminated.parse2(call.mac.tokens);
            let list = list.map_err(|error| broken(&error))?;
            idents.extend(list.iter().filter_map(|path| path.segments.last()).map(|last| last.ident.to_string()));
        }
    }
    Ok(idents)
}

fn library(package: &Package) -> Option<&CargoTarget> {
    package.targets.iter().find(|target| target.kind.contains(&TargetKind::Lib))
}

fn idents_of_manifest(package: &Package) -> std::result::Result<Vec<String>, String> {
    let metadata: Option<PackageMetadata> = serde_json::from_value(package.metadata.clone())
        .map_err(|error| format!("[package.metadata.ekiden] of {} is broken: {error}", package.name))?;
    Ok(metadata.and_then(|metadata| metadata.ekiden).map(|ekiden| ekiden.policies).unwrap_or_default())
}

fn policy(package: &Package, ident: &str) -> std::result::Result<Policy, String> {
    let library =
        library(package).ok_or_else(|| format!("{} has policies but no library (src/lib.rs)", package.name))?;
    if !is_path(ident) {
        return Err(format!("`{ident}`, which {} says is a policy, is not the name of a type", package.name));
    }
    let name = ident.rsplit("::").next().unwrap_or(ident).to_kebab_case();
    Ok(Policy {
        name,
        path: format!("{}::{ident}", library.name.replace('-', "_")),
        package: package.name.to_string(),
        directory: package.manifest_path.parent().map(|path| path.as_std_path().to_owned()).unwrap_or_default(),
    })
}

/// Whether a text is a path of identifiers, so that it can stand in a source file.
fn is_path(text: &str) -> bool {
    text.split("::").all(|ident| {
        ident.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && ident.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// The part of cargo's message that helps.
fn explain(error: &cargo_metadata::Error) -> String {
    match error {
        cargo_metadata::Error::CargoMetadata { stderr } => {
            stderr.trim().trim_start_matches("error: ").replace('\n', " ")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Checkout;
    use std::fs;

    fn project(metadata: &str) -> Result<Project> {
        project_of(metadata, "")
    }

    fn project_of(metadata: &str, source: &str) -> Result<Project> {
        let directory = tempfile::tempdir().unwrap();
        let manifest = format!("[package]\nname = \"my-crate\"\nversion = \"0.1.0\"\nedition = \"2024\"\n{metadata}");
        fs::write(directory.path().join("Cargo.toml"), manifest).unwrap();
        fs::create_dir(directory.path().join("src")).unwrap();
        fs::write(directory.path().join("src/lib.rs"), source).unwrap();
        Project::open(directory.path())
    }

    #[test]
    fn the_policies_of_this_workspace_are_found() {
        let project = Project::open(Checkout::find().unwrap().root()).unwrap();
        let fifo = project.policy("fifo").unwrap();
        assert_eq!((fifo.path.as_str(), fifo.module_name().as_str()), ("ekiden_policies::Fifo", "ekiden_fifo"));
        assert!(project.policy("wfq").is_ok());
    }

    #[test]
    fn a_type_gives_its_policy_and_module_their_names() {
        let project = project("[package.metadata.ekiden]\npolicies = [\"ShortestJob\"]\n").unwrap();
        let policy = &project.policies()[0];
        assert_eq!(policy.name, "shortest-job");
        assert_eq!(policy.module_name(), "ekiden_shortest_job");
        assert_eq!(policy.path, "my_crate::ShortestJob");
    }

    #[test]
    fn policies_are_those_that_the_source_declares() {
        let declared = "// policies![No]\nekiden::policies! { shortest_job::ShortestJob, b::LongestJob, }";
        let project = project_of("", declared).unwrap();
        let names: Vec<_> = project.policies().iter().map(|policy| (&policy.name[..], &policy.path[..])).collect();
        assert_eq!(names, [("shortest-job", "my_crate::ShortestJob"), ("longest-job", "my_crate::LongestJob")]);
        for (source, reason) in [
            ("policies![A, A];", "both called `a`"),
            ("policies![A B];", "expected `,`"),
            ("policies![A;", "cannot look for policies!"),
        ] {
            let message = project_of("", source).unwrap_err().to_string();
            assert!(message.contains(reason), "{message}");
        }
    }

    #[test]
    fn an_unknown_policy_is_answered_with_the_known_ones() {
        let project = project("[package.metadata.ekiden]\npolicies = [\"A\", \"B\"]\n").unwrap();
        let message = project.policy("c").unwrap_err().to_string();
        assert_eq!(message, "there is no policy `c`; known are: a, b");
    }

    #[test]
    fn what_is_no_policy_project_is_refused_with_a_reason() {
        for (metadata, reason) in [
            ("", "ekiden::policies![…]"),
            ("[package.metadata.ekiden]\npolicies = \"A\"\n", "invalid type"),
            ("[package.metadata.ekiden]\npolicy = [\"A\"]\n", "unknown field"),
            ("[package.metadata.ekiden]\npolicies = [\"A; fn\"]\n", "not the name of a type"),
            ("[package.metadata.ekiden]\npolicies = [\"A\", \"A\"]\n", "both called `a`"),
        ] {
            let message = project(metadata).unwrap_err().to_string();
            assert!(message.contains(reason), "{message}");
        }
        let nowhere = Project::open("/nowhere".as_ref()).unwrap_err().to_string();
        assert!(nowhere.contains("no such directory"), "{nowhere}");
        let no_manifest = Project::open("/proc/1".as_ref()).unwrap_err().to_string();
        assert!(no_manifest.contains("could not find `Cargo.toml`"), "{no_manifest}");
    }
}
