//! Rust's library, compiled for the kernel.

use crate::{Checkout, Flags, Progress, Result, Toolchain, command, error::Context, files, flags::TRIPLE};
use ekiden_vm::Cache;
use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;

/// `core` and `alloc` for one compiler and one set of flags. Kept in the cache; takes about half a minute to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysroot {
    directory: PathBuf,
}

impl Sysroot {
    /// Takes it from the cache, or makes it.
    pub fn prepare(
        cache: &Cache,
        checkout: &Checkout,
        toolchain: &Toolchain,
        flags: &Flags,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let builtins = checkout.kernel().join("sysroot/compiler_builtins.rs");
        let mut hasher = DefaultHasher::new();
        (toolchain.version(), toolchain.library(), flags.as_args()).hash(&mut hasher);
        fs::read(&builtins).context("read", &builtins)?.hash(&mut hasher);
        let parent = cache.directory("sysroots")?;
        let directory = parent.join(format!("{}-{:016x}", toolchain.release(), hasher.finish()));
        let sysroot = Self { directory };
        if sysroot.directory.exists() {
            return Ok(sysroot);
        }
        let _lock = files::lock(&parent)?;
        if sysroot.directory.exists() {
            return Ok(sysroot);
        }
        progress(&format!("compiling Rust's library {} for the kernel (half a minute, once)", toolchain.release()));
        remove_partial(&parent);
        let partial = TempDir::with_prefix_in(PARTIAL, &parent).context("create a directory in", &parent)?;
        compile(toolchain, flags, &builtins, partial.path(), progress)?;
        // In one step, so that an interruption leaves nothing that looks finished.
        fs::rename(partial.path(), &sysroot.directory).context("create", &sysroot.directory)?;
        // Nothing is left under the old name for the guard to remove.
        let _ = partial.keep();
        Ok(sysroot)
    }

    /// Its directory, for the compiler's `--sysroot`.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

/// How long the compiler may take for one crate of the library: the largest takes twenty seconds of a processor of 2020.
const LIMIT: Duration = Duration::from_secs(1200);

/// How directories are called that are not finished.
const PARTIAL: &str = ".partial-";

/// Removes what interrupted runs left.
fn remove_partial(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(PARTIAL) {
            // What resists now is left for the next time.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn compile(
    toolchain: &Toolchain,
    flags: &Flags,
    builtins: &Path,
    sysroot: &Path,
    progress: Progress<'_>,
) -> Result<()> {
    let libraries = sysroot.join("lib/rustlib").join(TRIPLE).join("lib");
    fs::create_dir_all(&libraries).context("create", &libraries)?;
    let source = |name: &str| toolchain.library().join(name).join("src/lib.rs");
    for (name, source, edition) in [
        ("core", source("core"), toolchain.edition_of("core")),
        ("compiler_builtins", builtins.to_owned(), "2021".to_owned()),
        ("alloc", source("alloc"), toolchain.edition_of("alloc")),
    ] {
        let mut rustc = toolchain.command();
        rustc.args(flags.as_args());
        rustc.args(["--target", TRIPLE, "--crate-type", "rlib", "--crate-name", name, "--edition", &edition]);
        rustc.args(["--cap-lints", "allow"]);
        rustc.arg(remap(toolchain.library(), "library"));
        rustc.arg("--sysroot").arg(sysroot).arg("--out-dir").arg(&libraries).arg(source);
        let what = format!("compiling Rust's library {} ({name}) for the kernel", toolchain.release());
        command::patient(&mut rustc, &what, LIMIT, progress)?;
    }
    Ok(())
}

/// The compiler's flag to call a directory otherwise in messages, so that no module depends on where it was made.
pub(crate) fn remap(directory: &Path, name: &str) -> String {
    format!("--remap-path-prefix={}={name}", directory.display())
}
