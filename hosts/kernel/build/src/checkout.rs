//! The checkout of Ekiden that modules are made from.

use crate::{Error, Result, error::Context};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where the sources of Ekiden are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkout {
    root: PathBuf,
}

impl Checkout {
    /// `$EKIDEN_ROOT`, or the checkout that this program was built from.
    pub fn find() -> Result<Self> {
        let root = std::env::var_os("EKIDEN_ROOT").filter(|root| !root.is_empty());
        Self::at(root.map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.."), PathBuf::from))
    }

    /// The checkout in this directory.
    pub fn at(root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        if !root.join("hosts/kernel/Cargo.toml").is_file() {
            return Err(Error::NoCheckout(root));
        }
        Ok(Self { root: root.canonicalize().context("find", root)? })
    }

    /// Its directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn kernel(&self) -> PathBuf {
        self.root.join("hosts/kernel")
    }

    /// Where cargo puts what it makes of this checkout.
    pub(crate) fn target_dir(&self) -> PathBuf {
        match std::env::var_os("CARGO_TARGET_DIR").filter(|target| !target.is_empty()) {
            Some(target) => std::path::absolute(&target).unwrap_or_else(|_| target.into()),
            None => self.root.join("target"),
        }
    }

    /// The profile that everything in the kernel is compiled with, as it stands in `hosts/kernel/Cargo.toml`.
    pub(crate) fn kernel_profile(&self) -> Result<String> {
        let manifest = self.kernel().join("Cargo.toml");
        let text = fs::read_to_string(&manifest).context("read", &manifest)?;
        Ok(table(&text, "[profile.release]"))
    }

    /// How its crates are compiled for user space: all profiles of its `Cargo.toml`, without their comments.
    pub(crate) fn profiles(&self) -> Result<String> {
        let manifest = self.root.join("Cargo.toml");
        Ok(profiles(&fs::read_to_string(&manifest).context("read", &manifest)?))
    }

    /// The kernel profile as settings of cargo's command line, which come before any file of settings and any variable.
    pub(crate) fn kernel_settings(&self) -> Result<Vec<String>> {
        let profile = self.kernel_profile()?;
        let settings = profile.lines().filter(|line| line.contains('='));
        Ok(settings.map(|setting| format!("profile.release.{setting}")).collect())
    }
}

/// One table of a TOML document, with its heading; empty if it has none of that name.
fn table(document: &str, heading: &str) -> String {
    let mut lines = document.lines().skip_while(|line| *line != heading);
    let first = lines.next().map(|line| format!("{line}\n")).unwrap_or_default();
    lines.take_while(|line| !line.starts_with('[')).fold(first, |text, line| text + line + "\n")
}

/// The tables of a TOML document that are profiles of cargo's.
fn profiles(document: &str) -> String {
    let mut is_profile = false;
    let lines = document.lines().filter(|line| {
        if line.starts_with('[') {
            is_profile = line.starts_with("[profile.");
        }
        is_profile && !line.is_empty() && !line.starts_with('#')
    });
    lines.fold(String::new(), |text, line| text + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_of_the_kernel_says_that_panics_do_not_unwind() {
        let profile = Checkout::find().unwrap().kernel_profile().unwrap();
        assert!(profile.starts_with("[profile.release]\n") && profile.contains("panic = \"abort\"\n"), "{profile}");
        let settings = Checkout::find().unwrap().kernel_settings().unwrap();
        assert!(settings.contains(&"profile.release.lto = \"fat\"".to_owned()), "{settings:?}");
    }

    #[test]
    fn a_table_ends_where_the_next_begins() {
        assert_eq!(table("[a]\nx = 1\n[b]\ny = 2\n", "[a]"), "[a]\nx = 1\n");
        assert_eq!(table("[a]\nx = 1\n", "[b]"), "");
    }

    #[test]
    fn profiles_are_taken_without_what_is_between_them() {
        let text = "[a]\nx = 1\n\n# Fast.\n[profile.dev]\nopt-level = 1\n\n[b]\ny = 2\n[profile.dev.package.\"*\"]\ndebug = false\n";
        let expected = "[profile.dev]\nopt-level = 1\n[profile.dev.package.\"*\"]\ndebug = false\n";
        assert_eq!(profiles(text), expected);
    }

    #[test]
    fn another_directory_is_no_checkout() {
        let error = Checkout::at("/usr").unwrap_err();
        assert!(error.to_string().contains("EKIDEN_ROOT"), "{error}");
    }
}
