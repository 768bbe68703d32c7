//! Finds a Rust compiler together with the sources of its library.
//!
//! Rust's `core` and `alloc` are compiled by us, with the kernel's flags. Sources and compiler must be of one version.

use crate::{Error, Progress, Result, command};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// How long `rustup` may take to fetch the sources, a few megabytes.
const RUSTUP_LIMIT: Duration = Duration::from_secs(120);

/// A compiler and its library sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    rustc: PathBuf,
    version: String,
    library: PathBuf,
}

impl Toolchain {
    /// The compiler that cargo would use if its sources are there, else that of the distribution if its are, else the
    /// first after `rustup` has fetched them.
    pub fn find(progress: Progress<'_>) -> Result<Self> {
        if let Some(found) = Self::installed() {
            return Ok(found);
        }
        if command::find("rustup").is_some() {
            progress("asking rustup for the sources of Rust's library");
            match command::stdout_within(Command::new("rustup").args(["component", "add", "rust-src"]), RUSTUP_LIMIT) {
                Ok(_) => {
                    if let Some(found) = Self::active() {
                        return Ok(found);
                    }
                }
                Err(error) => progress(&format!("rustup cannot fetch them: {error}")),
            }
        }
        Err(Error::NoLibrarySources { tried: tried() })
    }

    /// The same without asking anybody: what is on this machine already. `$EKIDEN_RUST_LIBRARY` is a directory with the
    /// sources that belong to `$RUSTC`, for those who keep them elsewhere.
    pub fn installed() -> Option<Self> {
        if let Some(library) = std::env::var_os("EKIDEN_RUST_LIBRARY").filter(|library| !library.is_empty()) {
            return Self::new(&active_rustc(), Path::new(&library)).ok();
        }
        Self::active().or_else(Self::of_distribution)
    }

    /// A compiler with library sources, after a look at both.
    pub fn new(rustc: &Path, library: &Path) -> Result<Self> {
        // Debian has links to them; one place is to have one name.
        let library = library.canonicalize().unwrap_or_else(|_| library.to_owned());
        if !library.join("core/src/lib.rs").is_file() || !library.join("alloc/src/lib.rs").is_file() {
            return Err(Error::NoLibrarySources { tried: library.display().to_string() });
        }
        let version = command::stdout(Command::new(rustc).arg("-vV"))?;
        Ok(Self { rustc: rustc.to_owned(), version, library })
    }

    /// The compiler that cargo would use, with the sources in its own directory.
    fn active() -> Option<Self> {
        let rustc = active_rustc();
        let sysroot = command::stdout(Command::new(&rustc).args(["--print", "sysroot"])).ok()?;
        Self::new(&rustc, &Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library")).ok()
    }

    /// The compiler and the sources of Debian's packages, whose directory is called after the version.
    fn of_distribution() -> Option<Self> {
        let rustc = Path::new("/usr/bin/rustc");
        let version = command::stdout(Command::new(rustc).arg("-vV")).ok()?;
        let release = release_in(&version)?;
        Self::new(rustc, &Path::new("/usr/src").join(format!("rustc-{release}")).join("library")).ok()
    }

    /// The compiler.
    pub fn rustc(&self) -> &Path {
        &self.rustc
    }

    /// Its release, as in `1.95.0`.
    pub fn release(&self) -> &str {
        release_in(&self.version).unwrap_or("unknown")
    }

    /// All that it says of its version.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// The directory with the sources of the library.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// The edition that a crate of the library is written in.
    pub(crate) fn edition_of(&self, crate_name: &str) -> String {
        let manifest = fs::read_to_string(self.library.join(crate_name).join("Cargo.toml")).unwrap_or_default();
        edition_in(&manifest).unwrap_or("2021").to_owned()
    }

    /// A call of the compiler, unstable options allowed: the kernel's flags are among them.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.rustc);
        command.env("RUSTC_BOOTSTRAP", "1");
        command
    }

    /// Whether the compiler knows a flag.
    pub(crate) fn accepts(&self, flag: &str) -> bool {
        command::output(self.command().arg(flag).args(["--print", "sysroot"])).is_ok()
    }
}

fn active_rustc() -> PathBuf {
    std::env::var_os("RUSTC").filter(|rustc| !rustc.is_empty()).unwrap_or_else(|| "rustc".into()).into()
}

fn tried() -> String {
    let release = |rustc: &Path| {
        let version = command::stdout(Command::new(rustc).arg("-vV")).ok()?;
        Some(format!("{} {}", rustc.display(), release_in(&version)?))
    };
    let mut tried: Vec<String> =
        [active_rustc(), "/usr/bin/rustc".into()].iter().filter_map(|rustc| release(rustc)).collect();
    tried.dedup();
    if tried.is_empty() { "no rustc at all".into() } else { tried.join(", ") }
}

fn release_in(version: &str) -> Option<&str> {
    version.lines().find_map(|line| line.strip_prefix("release: "))
}

fn edition_in(manifest: &str) -> Option<&str> {
    let line = manifest.lines().find_map(|line| line.strip_prefix("edition = \""))?;
    line.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_without_its_sources_is_not_taken() {
        let empty = tempfile::tempdir().unwrap();
        let error = Toolchain::new(&active_rustc(), empty.path()).unwrap_err();
        assert!(error.to_string().contains("rust-src"), "{error}");
    }

    #[test]
    fn the_edition_is_read_from_the_manifest() {
        assert_eq!(edition_in("[package]\nname = \"core\"\nedition = \"2024\"\n"), Some("2024"));
        assert_eq!(edition_in("[package]\n"), None);
    }

    #[test]
    fn the_release_is_read_from_what_the_compiler_says() {
        assert_eq!(release_in("rustc 1.95.0 (59807616e 2026-04-14)\nrelease: 1.95.0\n"), Some("1.95.0"));
    }
}
