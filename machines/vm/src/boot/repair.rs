//! The module that repairs what QEMU remembers wrongly of a kernel's code, where emulated CPUs run in threads. Guests alone have it, in
//! [`Mode::Parallel`] alone, before anything else; what it does is in `machines/emulator/stale_int3.c`.

use crate::{BuildRoot, Cache, Kernel, Mode, Result, Scratch, apt::Progress, error::Context};
use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
};

/// Its name. Names of Ekiden's own modules begin with `ekiden`, and are unloaded together.
pub(crate) const MODULE: &str = "stale_int3";

/// What it is made of.
const SOURCES: [(&str, &str); 2] = [
    ("Kbuild", include_str!("../../../emulator/Kbuild")),
    ("stale_int3.c", include_str!("../../../emulator/stale_int3.c")),
];

/// No BPF program calls it, so that it needs no types.
const MAKE_ARGS: [&str; 2] = ["KCFLAGS=-g0", "CONFIG_DEBUG_INFO_BTF_MODULES="];

/// Makes the module for a kernel, once. It is kept beside the kernel.
pub fn prepare_repair(cache: &Cache, kernel: &Kernel, progress: Progress<'_>) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (SOURCES, MAKE_ARGS).hash(&mut hasher);
    let directory = kernel.directory().join(format!("{MODULE}-{:016x}", hasher.finish()));
    let file = format!("{MODULE}.ko");
    cache.complete(&directory, progress, |partial, progress| {
        progress(&format!("building {file} for {}", kernel.release()));
        let place = Scratch::new_in(cache)?;
        for (name, text) in SOURCES {
            let path = place.path().join(name);
            fs::write(&path, text).context("write", path)?;
        }
        BuildRoot::prepare(cache, progress)?.kbuild(kernel, place.path(), &MAKE_ARGS)?;
        let made = place.path().join(&file);
        fs::copy(&made, partial.join(&file)).map(drop).context("copy", made)
    })?;
    Ok(directory.join(file))
}

/// What a guest has of it.
#[derive(Debug, Default)]
pub(crate) struct Repair {
    pub(crate) module: Option<PathBuf>,
    /// Why it has none, though it should.
    pub(crate) problem: Option<String>,
}

impl Repair {
    /// Without the module a guest works until it meets the fault, so that a failure is no reason not to boot it.
    pub(crate) fn of(mode: Mode, kernel: &Kernel) -> Self {
        if mode != Mode::Parallel {
            return Self::default();
        }
        match Cache::from_env().and_then(|cache| prepare_repair(&cache, kernel, &mut |_| {})) {
            Ok(module) => Self { module: Some(module), problem: None },
            Err(error) => {
                Self { module: None, problem: Some(format!("a fault of QEMU's own is not repaired: {error}")) }
            }
        }
    }
}
