//! Starts a policy project: a copy of `templates/policy`, renamed.

use crate::{Checkout, Error, Project, Result, command, error::Context};
use heck::{ToKebabCase, ToUpperCamelCase};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// Longest name of a policy, in bytes: the table by which a module offers its policy has room for no more.
const LONGEST_NAME: usize = 31;

/// Names that are Rust's own, or that the crates of a project's surroundings have.
const RESERVED: &[&str] = &[
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "const",
    "continue",
    "core",
    "crate",
    "do",
    "dyn",
    "else",
    "enum",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "proc-macro",
    "pub",
    "ref",
    "return",
    "scheduler",
    "self",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "unsafe",
    "unsized",
    "use",
    "virtual",
    "where",
    "while",
    "yield",
];

/// Makes the project `name` in `parent`. Where it is.
pub fn new_project(parent: &Path, name: &str) -> Result<PathBuf> {
    new_project_from(&Checkout::find()?, parent, name)
}

/// Makes a project for a checkout that the caller chose.
pub fn new_project_from(checkout: &Checkout, parent: &Path, name: &str) -> Result<PathBuf> {
    check_name(name)?;
    // A checkout whose own projects cannot be read has worse problems, of which cargo will tell.
    let taken = Project::open(checkout.root()).is_ok_and(|project| project.policy(name).is_ok());
    if taken {
        return Err(bad_name(name, "a policy of this name comes with Ekiden"));
    }
    let project = std::path::absolute(parent).context("find", parent)?.join(name);
    if project.exists() {
        return Err(Error::Exists(project));
    }
    fs::create_dir_all(parent).context("create", parent)?;
    // All or nothing.
    let partial = TempDir::with_prefix_in(".ekiden-new-", parent).context("create a directory in", parent)?;
    let staged = partial.path().join(name);
    copy(&checkout.root().join("templates/policy"), &staged, &|text| rename(text, name, checkout.root()))?;
    let lock = checkout.root().join("Cargo.lock");
    if lock.is_file() {
        // The versions that Ekiden was tested with; cargo drops what is not needed.
        fs::copy(&lock, staged.join("Cargo.lock")).context("copy", lock)?;
    }
    format(&staged);
    fs::rename(&staged, &project).context("create", &project)?;
    Ok(project)
}

/// Formats the sources: a longer name breaks other lines, and imports are sorted by it.
fn format(project: &Path) {
    let sources = ["src/lib.rs", "tests/policy.rs"];
    // Without rustfmt the sources stay as they are.
    let _ = command::output(Command::new("rustfmt").args(["--edition", "2024"]).args(sources).current_dir(project));
}

/// The template is itself a project, called my-policy, whose paths lead to the checkout around it.
fn rename(text: &str, name: &str, checkout: &Path) -> String {
    let path = checkout.display().to_string();
    text.replace("../..", &path)
        .replace("my-policy", name)
        .replace("my_policy", &name.replace('-', "_"))
        .replace("MyPolicy", &name.to_upper_camel_case())
}

fn check_name(name: &str) -> Result<()> {
    let bad = |reason: &str| Err(bad_name(name, reason));
    if name.is_empty() {
        return bad("it is empty");
    }
    if name.len() > LONGEST_NAME {
        return bad("it is longer than 31 characters");
    }
    if !name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-')) {
        return bad("only lower case letters, digits and dashes may be in it");
    }
    if !name.starts_with(|first: char| first.is_ascii_lowercase()) {
        return bad("it must begin with a letter");
    }
    if name.to_upper_camel_case().to_kebab_case() != name {
        return bad("each dash must be followed by a letter, as its type is called after it");
    }
    if RESERVED.contains(&name) || name == "ekiden" || name.starts_with("ekiden-") {
        return bad("it has a meaning of its own");
    }
    Ok(())
}

fn bad_name(name: &str, reason: &str) -> Error {
    Error::BadName { name: name.into(), reason: reason.into() }
}

/// Copies a directory with what is in it, apart from what cargo made there.
fn copy(from: &Path, to: &Path, change: &dyn Fn(&str) -> String) -> Result<()> {
    fs::create_dir_all(to).context("create", to)?;
    for entry in fs::read_dir(from).context("list", from)? {
        let entry = entry.context("list", from)?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_name() == "target" || entry.file_name() == "Cargo.lock" {
            continue;
        }
        if source.is_dir() {
            copy(&source, &target, change)?;
        } else {
            let text = fs::read_to_string(&source).context("read", &source)?;
            fs::write(&target, change(&text)).context("write", &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_are_refused_with_a_reason() {
        for (name, reason) in [
            ("", "it is empty"),
            ("My-Policy", "only lower case"),
            ("my_policy", "only lower case"),
            ("größe", "only lower case"),
            ("../up", "only lower case"),
            ("2nd", "begin with a letter"),
            ("-x", "begin with a letter"),
            ("a-", "followed by a letter"),
            ("a--b", "followed by a letter"),
            ("level-2", "followed by a letter"),
            ("a-name-that-is-longer-than-it-may-be", "longer than 31"),
            ("self", "meaning of its own"),
            ("ekiden-sim", "meaning of its own"),
            ("wfq", "comes with Ekiden"),
        ] {
            let parent = tempfile::tempdir().unwrap();
            let message = new_project(parent.path(), name).unwrap_err().to_string();
            assert!(message.contains(reason), "{name}: {message}");
            assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0, "{name}");
        }
    }

    #[test]
    fn a_name_is_carried_into_every_file() {
        let parent = tempfile::tempdir().unwrap();
        let project = new_project(parent.path(), "shortest-job").unwrap();
        assert_eq!(project, parent.path().join("shortest-job"));
        let read = |name: &str| fs::read_to_string(project.join(name)).unwrap();
        assert!(read("src/lib.rs").contains("impl Scheduler for ShortestJob"));
        assert!(read("tests/policy.rs").contains("use shortest_job::ShortestJob;"));
        let manifest = read("Cargo.toml");
        assert!(manifest.contains("name = \"shortest-job\"") && !manifest.contains("../.."), "{manifest}");
        let policies = Project::open(&project).unwrap();
        assert_eq!(policies.policies()[0].module_name(), "ekiden_shortest_job");
    }

    #[test]
    fn what_is_there_already_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("mine"), "precious").unwrap();
        let error = new_project(parent.path(), "mine").unwrap_err();
        assert!(matches!(error, Error::Exists(_)), "{error}");
        assert_eq!(fs::read_to_string(parent.path().join("mine")).unwrap(), "precious");
    }
}
