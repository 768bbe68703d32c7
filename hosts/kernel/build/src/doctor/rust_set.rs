//! Which packages of the distribution bring Rust, as one set of one version: the decision of scripts/rust-packages.

use crate::{Error, Result, command};
use std::{path::Path, process::Command};

/// The decision and its table; `make prepare` runs the same file before anything is compiled.
const SCRIPT: &str = include_str!("../../../../../scripts/rust-packages");

/// A part of a toolchain, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Cargo,
    Rustc,
    Library,
    Rustfmt,
    Clippy,
}

/// A set of packages that apt has at one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RustSet {
    /// Its name in the table.
    pub(crate) name: String,
    /// The version of Rust.
    pub(crate) version: String,
    /// The packages that are not there yet.
    pub(crate) install: Vec<String>,
}

impl RustSet {
    /// Asks apt, or an apt of its own configuration, for what `make prepare` would take; `tests` has rustfmt and clippy, too.
    pub(crate) fn choose(tests: bool, config: Option<&Path>) -> Result<Self> {
        let mut script = Command::new("sh");
        script.args(["-c", SCRIPT, "rust-packages"]);
        if let Some(config) = config {
            script.arg("-c").arg(config);
        }
        script.arg(if tests { "tests" } else { "vm" });
        let output = script.output().map_err(|error| command::cannot_start(&script, &error))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut lines = text.lines().map(|line| line.split_whitespace().map(str::to_owned));
        let mut first = lines.next().into_iter().flatten();
        match (output.status.success(), first.next(), first.next()) {
            (true, Some(name), Some(version)) => {
                Ok(Self { name, version, install: lines.next().into_iter().flatten().collect() })
            }
            _ => Err(Error::Install(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        }
    }
}

/// The rows of the table: a set's name, then what it calls each part.
fn rows() -> impl Iterator<Item = Vec<&'static str>> {
    let (_, table) = SCRIPT.split_once("<<'TABLE'\n").unwrap_or_default();
    let (table, _) = table.split_once("\nTABLE").unwrap_or_default();
    table.lines().map(|line| line.split_whitespace().collect())
}

/// What a set of the table calls some parts.
pub(crate) fn packages(set: &str, roles: &[Role]) -> Vec<String> {
    let row = rows().find(|row| row.first() == Some(&set)).unwrap_or_default();
    roles.iter().filter_map(|&role| row.get(role as usize + 1)).map(|&name| name.to_owned()).collect()
}

/// Whether a package is part of any set.
pub(crate) fn is_in_table(package: &str) -> bool {
    rows().any(|row| row[1..].contains(&package))
}
