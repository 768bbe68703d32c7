//! The machine that stays booted between commands. There is one.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use ekiden_vm::{Cache, Error, Kernel, Vm, VmSpec};
use serde::{Deserialize, Serialize};

use crate::machine::{install_programs, programs_identity};

/// A machine that `ekiden vm start` left, and this process has to itself.
pub(crate) struct Booted {
    pub(crate) vm: Vm,
    pub(crate) note: Note,
}

/// What is known of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) release: String,
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u32,
    /// `kvm`, or how instructions are counted.
    pub(crate) clock: String,
    /// The directory of this machine that is `/host` there.
    pub(crate) share: PathBuf,
    /// Which build of our programs it was booted with.
    programs: String,
}

/// The files of it that are in the cache.
struct Files {
    machine: PathBuf,
    note: PathBuf,
    share: PathBuf,
}

impl Files {
    fn new() -> Result<Self> {
        let cache = Cache::from_env()?;
        let path = |name: &str| cache.path().join(name);
        Ok(Self { machine: path("machine"), note: path("machine.json"), share: cache.directory("share")? })
    }
}

impl Booted {
    /// The directory that it shares.
    pub(crate) fn share() -> Result<PathBuf> {
        Files::new().map(|files| files.share)
    }

    /// Boots it.
    pub(crate) fn boot(kernel: &Kernel, spec: &VmSpec, clock: String) -> Result<Self> {
        let files = Files::new()?;
        let vm = Vm::boot_detached(&files.machine, kernel, spec)?;
        let note = Note {
            release: kernel.release().to_owned(),
            cpus: spec.cpus,
            memory_mib: spec.memory_mib,
            clock,
            share: files.share,
            programs: programs_identity(),
        };
        fs::write(&files.note, serde_json::to_vec_pretty(&note)?)
            .with_context(|| format!("cannot write {}", files.note.display()))?;
        Ok(Self { vm, note })
    }

    /// Connects to it, if there is one.
    pub(crate) fn find() -> Result<Option<Self>> {
        let files = Files::new()?;
        let Some(note) = Note::read(&files.note)? else { return Ok(None) };
        match Vm::attach(&files.machine) {
            Ok(vm) => Ok(Some(Self { vm, note })),
            // It has ended by itself, or this machine was restarted.
            Err(Error::Gone { .. } | Error::File { .. }) => {
                Note::forget(&files.note)?;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The path of one of our programs there: as it is now, though the machine may have been booted with an older build.
    pub(crate) fn program(&self, name: &str) -> Result<String> {
        if self.note.programs == programs_identity() {
            return Ok(format!("/bin/{name}"));
        }
        install_programs(&self.note.share)?;
        Ok(format!("/host/bin/{name}"))
    }

    /// Switches it off.
    pub(crate) fn stop(self) -> Result<()> {
        self.vm.shutdown()?;
        Note::forget(&Files::new()?.note)
    }
}

impl Note {
    /// Without disturbing the machine.
    pub(crate) fn of_booted() -> Result<Option<Self>> {
        Self::read(&Files::new()?.note)
    }

    fn read(path: &Path) -> Result<Option<Self>> {
        match fs::read(path) {
            // What another version of this program wrote is as good as nothing.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    fn forget(path: &Path) -> Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }
}
