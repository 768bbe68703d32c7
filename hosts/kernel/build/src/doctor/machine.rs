//! What the checks look at. Tests point it at a directory of their own.

use super::rust_set::RustSet;
use crate::{Linker, Toolchain, command};
use ekiden_vm::{Cache, Mode, Qemu};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A machine as the checks see it.
pub(crate) struct Machine {
    /// The root of its file system.
    pub(crate) root: PathBuf,
    /// Where its programs are.
    pub(crate) path: Vec<PathBuf>,
    /// The release of the compiler whose library sources are there, or why there is none.
    pub(crate) library: Result<String, String>,
    /// Which packages bring Rust, with what tests need or without; nothing where apt is not to be asked.
    pub(crate) rust_set: fn(bool) -> Option<crate::Result<RustSet>>,
    /// Whether a linker was found.
    pub(crate) linker: bool,
    /// Why the running kernel will not do; nothing if it will.
    pub(crate) preflight: Result<(), String>,
    /// Whether the caller is root.
    pub(crate) is_root: bool,
    /// Whether sudo lets this user do anything without a password.
    pub(crate) has_sudo: bool,
    /// Why virtual machines cannot use the processor's own; nothing if they can.
    pub(crate) kvm: Result<(), String>,
    /// The QEMU that was fetched into the cache, as it calls itself.
    pub(crate) fetched_qemu: Option<String>,
    /// What `EKIDEN_QEMU` says, and which QEMU that is or why it will not do.
    pub(crate) named_qemu: Option<(String, Result<String, String>)>,
    /// Free space for the cache, in bytes; nothing if it cannot be told.
    pub(crate) free_bytes: Option<u64>,
}

impl Machine {
    /// The machine that this program runs on.
    pub(crate) fn here() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let cache = Cache::from_env().ok();
        let free = cache.as_ref().and_then(|cache| nix::sys::statvfs::statvfs(cache.path()).ok());
        Self {
            root: "/".into(),
            path: std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).collect(),
            library: Toolchain::look()
                .map(|toolchain| toolchain.release().to_owned())
                .map_err(|error| error.to_string()),
            rust_set: |tests| command::find("apt-cache").map(|_| RustSet::choose(tests, None)),
            linker: Linker::find().is_ok(),
            preflight: match ekiden_vm::preflight_running() {
                Ok(verdict) if verdict.passes() => Ok(()),
                Ok(verdict) => Err(verdict.to_string()),
                Err(error) => Err(error.to_string()),
            },
            is_root: nix::unistd::geteuid().is_root(),
            has_sudo: ekiden_vm::sudo_works(),
            kvm: kvm(cache.as_ref()),
            fetched_qemu: cache.as_ref().and_then(|cache| Some(Qemu::fetched_in(cache)?.line().to_owned())),
            named_qemu: named_qemu(cache.as_ref()),
            free_bytes: free.map(|free| free.blocks_available() * free.fragment_size()),
        }
    }

    /// The content of a file, without white space at its ends.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim().to_owned())
    }

    pub(crate) fn has(&self, path: impl AsRef<Path>) -> bool {
        self.root.join(path).exists()
    }

    /// The first of some programs that is there.
    pub(crate) fn program(&self, names: &[&str]) -> Option<PathBuf> {
        let find = |name: &&str| self.path.iter().map(|directory| directory.join(name)).find(|file| file.is_file());
        names.iter().find_map(find)
    }

    /// What a program prints.
    pub(crate) fn output(&self, program: &Path, argument: &str) -> Option<String> {
        command::stdout(Command::new(program).arg(argument)).ok()
    }

    /// What `uname -r` says.
    pub(crate) fn release(&self) -> String {
        self.read("proc/sys/kernel/osrelease").unwrap_or_default()
    }
}

/// A QEMU that is named instead of the installed one.
fn named_qemu(cache: Option<&Cache>) -> Option<(String, Result<String, String>)> {
    let name = std::env::var(Qemu::VARIABLE).ok().filter(|name| !name.is_empty())?;
    let seen = match Qemu::find(cache?, Mode::Icount) {
        Ok(Some(qemu)) => Ok(qemu.line().to_owned()),
        Ok(None) => Ok("the one that will be fetched at first use".into()),
        Err(error) => Err(error.to_string()),
    };
    Some((name, seen))
}

/// Whether the device may be used, and a virtual machine has not been seen to fail with it since the machine was booted.
fn kvm(cache: Option<&Cache>) -> Result<(), String> {
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    device.map_err(|error| format!("/dev/kvm: {error}"))?;
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let note = cache.map(|cache| cache.path().join(format!("kvm-{}", boot_id.trim())));
    match note.and_then(|note| fs::read_to_string(note).ok()) {
        Some(note) if note == "unusable" => Err("/dev/kvm is there, but a virtual machine did not boot with it".into()),
        _ => Ok(()),
    }
}
