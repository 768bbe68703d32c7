//! Finds a Rust compiler together with the sources of its library.
//!
//! Rust's `core` and `alloc` are compiled by us, with the kernel's flags. Sources and compiler must be of one version.

use crate::{Error, Progress, Result, command, error::Context};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// How long `rustup` may take to fetch the sources, a few megabytes.
const RUSTUP_LIMIT: Duration = Duration::from_secs(120);

/// The oldest Rust that does: rust-version in Cargo.toml.
pub(crate) const OLDEST: &str = "1.85";

/// Where distributions have compiler and cargo.
const DISTRIBUTION: &str = "/usr/bin";

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
        let error = match Self::look() {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        if command::find("rustup").is_some() {
            let what = "fetching the sources of Rust's library by rustup";
            progress(what);
            let mut rustup = Command::new("rustup");
            match command::patient(rustup.args(["component", "add", "rust-src"]), what, RUSTUP_LIMIT, progress) {
                Ok(_) => return Self::active(),
                Err(error) => progress(&format!("rustup cannot fetch them: {error}")),
            }
        }
        Err(error)
    }

    /// A toolchain that is on this machine already, without asking rustup.
    pub fn installed() -> Option<Self> {
        Self::look().ok()
    }

    /// Finds the toolchain on this machine; the error says why it will not do. `$EKIDEN_RUST_LIBRARY` is a directory with the sources that belong
    /// to `$RUSTC`, for those who keep them elsewhere.
    pub(crate) fn look() -> Result<Self> {
        if let Some(library) = std::env::var_os("EKIDEN_RUST_LIBRARY").filter(|library| !library.is_empty()) {
            return Self::new(&active_rustc(), Path::new(&library));
        }
        let active = match Self::active() {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        Self::of_distribution().map_err(|_| match active {
            Error::OtherLibrary { .. } | Error::OldRust { .. } => active,
            _ => Error::NoLibrarySources { tried: tried() },
        })
    }

    /// A compiler with library sources, after a look at both: they have to be of one version.
    pub fn new(rustc: &Path, library: &Path) -> Result<Self> {
        let version = command::stdout(asked(rustc).arg("-vV"))?;
        let release = release_in(&version).unwrap_or("unknown").to_owned();
        if numbers(&release) < numbers(OLDEST) {
            return Err(Error::OldRust { rustc: rustc.to_owned(), release, oldest: OLDEST });
        }
        // Debian has links to them; one place is to have one name.
        let library = library.canonicalize().unwrap_or_else(|_| library.to_owned());
        if !library.join("core/src/lib.rs").is_file() || !library.join("alloc/src/lib.rs").is_file() {
            return Err(Error::NoLibrarySources { tried: library.display().to_string() });
        }
        if let Some(sources) = other_than(&release, &library, rustc) {
            return Err(Error::OtherLibrary { library, sources, rustc: rustc.to_owned(), release });
        }
        Ok(Self { rustc: rustc.to_owned(), version, library })
    }

    /// The compiler that cargo would use, with the sources in its own directory.
    fn active() -> Result<Self> {
        let rustc = active_rustc();
        let sysroot = sysroot_of(&rustc)?;
        Self::new(&rustc, &sysroot.join("lib/rustlib/src/rust/library"))
    }

    /// The compiler and the sources of Debian's packages, whose directory is called after the version.
    fn of_distribution() -> Result<Self> {
        let rustc = Path::new(DISTRIBUTION).join("rustc");
        let version = command::stdout(asked(&rustc).arg("-vV"))?;
        let release = release_in(&version).unwrap_or("unknown");
        Self::new(&rustc, &Path::new("/usr/src").join(format!("rustc-{release}")).join("library"))
    }

    /// The cargo that belongs to the compiler.
    pub(crate) fn cargo(&self) -> PathBuf {
        let beside = Path::new(DISTRIBUTION).join("cargo");
        if self.rustc.parent() == Some(Path::new(DISTRIBUTION)) && beside.is_file() {
            return beside;
        }
        std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
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

/// A question to a compiler. Root's is not asked in the directory at hand, which may say which program answers.
fn asked(rustc: &Path) -> Command {
    let mut command = Command::new(rustc);
    if nix::unistd::geteuid().is_root() {
        command.current_dir("/");
    }
    command
}

fn active_rustc() -> PathBuf {
    std::env::var_os("RUSTC").filter(|rustc| !rustc.is_empty()).unwrap_or_else(|| "rustc".into()).into()
}

fn sysroot_of(rustc: &Path) -> Result<PathBuf> {
    let sysroot = command::stdout(asked(rustc).args(["--print", "sysroot"]))?;
    Ok(sysroot.trim().into())
}

/// The version of library sources that are not a compiler's; nothing if they are, or do not tell.
fn other_than(release: &str, library: &Path, rustc: &Path) -> Option<String> {
    let release = release.split('-').next().unwrap_or(release);
    if let Some(named) = named_version(library) {
        return (named != release).then_some(named);
    }
    // Rustup puts each compiler's sources among its own files.
    let sysroot = sysroot_of(rustc).and_then(|sysroot| sysroot.canonicalize().context("find", sysroot));
    if sysroot.is_ok_and(|sysroot| library.starts_with(sysroot)) {
        return None;
    }
    // What a release brings for the first time says so. The point releases after it bring nothing.
    let newest = newest_since(library)?;
    (numbers(&newest)[..2] != numbers(release)[..2]).then_some(newest)
}

/// What the tree of sources says of its version: in a file, as releases have it, or by its name, as Debian has it.
fn named_version(library: &Path) -> Option<String> {
    let tree = library.parent()?;
    let file = ["version", "src/version"].iter().find_map(|name| fs::read_to_string(tree.join(name)).ok());
    let name = || tree.file_name()?.to_str()?.strip_prefix("rustc-").map(str::to_owned);
    let named = file.or_else(name)?;
    let named = named.split([' ', '-']).next().unwrap_or_default().trim();
    named.starts_with(|first: char| first.is_ascii_digit()).then(|| named.to_owned())
}

/// The newest release among those since which something in `core` is stable.
fn newest_since(library: &Path) -> Option<String> {
    let mut directories = vec![library.join("core/src")];
    let mut newest = None;
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            let stable = text.lines().filter(|line| line.contains("stable(") && !line.contains("deprecated"));
            let since = stable.filter_map(|line| line.split_once("since = \"")?.1.split('"').next());
            newest = since.chain(newest.as_deref()).max_by_key(|version| numbers(version)).map(str::to_owned);
        }
    }
    newest
}

/// The numbers of a version, as many as there are and zeros.
fn numbers(version: &str) -> [u32; 3] {
    let mut numbers = [0; 3];
    for (number, word) in numbers.iter_mut().zip(version.split(['.', '-'])) {
        *number = word.parse().unwrap_or(0);
    }
    numbers
}

fn tried() -> String {
    let release = |rustc: &Path| {
        let version = command::stdout(asked(rustc).arg("-vV")).ok()?;
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

    /// A tree of library sources in which something is stable since a release.
    fn sources(tree: &Path, since: &str) -> PathBuf {
        for name in ["core", "alloc"] {
            fs::create_dir_all(tree.join("library").join(name).join("src")).unwrap();
            let text = format!(
                "#[stable(feature = \"x\", since = \"1.2.0\")]\n#[stable(feature = \"y\", since = \"{since}\")]\n"
            );
            fs::write(tree.join("library").join(name).join("src/lib.rs"), text).unwrap();
        }
        tree.join("library")
    }

    #[test]
    fn library_sources_of_another_version_are_refused_with_both_versions() {
        let release =
            release_in(&command::stdout(Command::new(active_rustc()).arg("-vV")).unwrap()).unwrap().to_owned();
        let release = release.split('-').next().unwrap();
        let place = tempfile::tempdir().unwrap();
        let refused = |library: &Path, sources: &str| {
            let message = Toolchain::new(&active_rustc(), library).unwrap_err().to_string();
            assert!(message.contains(release) && message.contains(&format!("those of {sources},")), "{message}");
        };
        // By what is in them.
        let library = sources(&place.path().join("unpacked"), "1.12.0");
        refused(&library, "1.12.0");
        // By Debian's name of their directory, also through the link that the compiler looks at.
        let library = sources(&place.path().join("rustc-1.85.99"), release);
        refused(&library, "1.85.99");
        let link = place.path().join("link");
        std::os::unix::fs::symlink(library.parent().unwrap(), &link).unwrap();
        refused(&link.join("library"), "1.85.99");
        // By the file that releases have.
        let library = sources(&place.path().join("release"), release);
        assert!(Toolchain::new(&active_rustc(), &library).is_ok());
        fs::write(place.path().join("release/version"), "1.85.98 (4eb161250 2025-03-15)\n").unwrap();
        refused(&library, "1.85.98");
    }

    #[test]
    fn an_old_compiler_is_refused_even_with_its_own_sources() {
        let place = tempfile::tempdir().unwrap();
        let library = sources(&place.path().join("rustc-1.63.0"), "1.63.0");
        let rustc = place.path().join("rustc");
        fs::write(&rustc, "#!/bin/sh\necho release: 1.63.0\n").unwrap();
        fs::set_permissions(&rustc, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let message = Toolchain::new(&rustc, &library).unwrap_err().to_string();
        assert!(message.contains("1.63.0, older than 1.85"), "{message}");
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
