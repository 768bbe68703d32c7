//! Links a library of Rust objects into one object that has all it needs and nothing else.

use crate::{Error, Result, command, error::Context};
use object::read::archive::ArchiveFile;
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// The first version that collects garbage in relocatable output as we need it.
const NEEDED: u32 = 14;

/// LLVM's linker. GNU ld cannot do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linker {
    program: PathBuf,
}

impl Linker {
    /// The newest `ld.lld` in `PATH`, else the one that rustup's toolchains bring.
    pub fn find() -> Result<Self> {
        let versioned = (NEEDED..40).rev().map(|version| format!("ld.lld-{version}"));
        let in_path = versioned.chain(["ld.lld".to_owned()]).filter_map(|name| command::find(&name));
        in_path
            .chain(of_rustup())
            .find(|program| version(program).is_some_and(|version| version >= NEEDED))
            .map(|program| Self { program })
            .ok_or(Error::NoLinker(NEEDED))
    }

    /// Links `archive` into `object`, with everything that the symbols need whose names begin with `keep`. If the archive's whole program
    /// was changed, `changed` is taken instead: what it lacks stays undefined, which kbuild refuses, and nothing comes in as it was before.
    pub(crate) fn link(&self, changed: Option<&Path>, archive: &Path, keep: &str, object: &Path) -> Result<()> {
        let mut linker = Command::new(&self.program);
        linker.args(["-r", "--gc-sections", "--fatal-warnings"]);
        for symbol in symbols(archive)?.iter().filter(|symbol| symbol.starts_with(keep)) {
            linker.arg("-u").arg(symbol);
        }
        command::output(linker.arg(changed.unwrap_or(archive)).arg("-o").arg(object)).map(drop)
    }
}

/// The symbols that the objects of an archive define for others.
fn symbols(archive: &Path) -> Result<Vec<String>> {
    let bytes = fs::read(archive).context("read", archive)?;
    let symbols = ArchiveFile::parse(&*bytes).and_then(|file| file.symbols());
    let symbols = symbols.map_err(io::Error::other).context("read", archive)?;
    let names = symbols.into_iter().flatten().flatten();
    Ok(names.map(|symbol| String::from_utf8_lossy(symbol.name()).into_owned()).collect())
}

fn of_rustup() -> Option<PathBuf> {
    let sysroot = command::stdout(Command::new("rustc").args(["--print", "sysroot"])).ok()?;
    let tools =
        Path::new(sysroot.trim()).join("lib/rustlib").join(format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
    Some(tools.join("bin/gcc-ld/ld.lld")).filter(|linker| linker.is_file())
}

fn version(program: &Path) -> Option<u32> {
    version_in(&command::stdout(Command::new(program).arg("--version")).ok()?)
}

/// Reads `Debian LLD 19.1.7 (compatible with GNU linkers)`.
fn version_in(text: &str) -> Option<u32> {
    text.split_once("LLD ")?.1.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_whoever_built_it() {
        assert_eq!(version_in("Debian LLD 19.1.7 (compatible with GNU linkers)"), Some(19));
        assert_eq!(version_in("LLD 22.1.2 (compatible with GNU linkers)"), Some(22));
        assert_eq!(version_in("GNU ld (GNU Binutils for Debian) 2.40"), None);
    }
}
