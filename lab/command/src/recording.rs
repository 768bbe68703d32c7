//! Recordings of a policy's calls that go to a file while the policy runs.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use anyhow::{Context, Result};
use ekiden_loader::{CallLog, Drain, Kept, NumberedInstance};
use ekiden_recording::Header;

use crate::failure::{Exit, Failure};

/// Memory of each CPU for calls that are being recorded.
pub const RECORDING_KIB: u64 = 16 << 10;

/// A recording that goes to a file.
pub struct ToFile {
    drain: Drain,
}

impl ToFile {
    /// See [`Drain::start`].
    pub fn start(path: &Path, slot: Option<u32>, from_now: bool, command: &[OsString]) -> Result<Self> {
        Ok(Self { drain: Drain::start(create(path)?, slot, from_now, &in_words(command))? })
    }

    /// See [`Drain::of`].
    pub fn of(
        path: &Path,
        call_log: CallLog,
        header: &Header,
        instances: impl FnMut() -> ekiden_loader::Result<Vec<NumberedInstance>> + Send + 'static,
    ) -> Result<Self> {
        Ok(Self { drain: Drain::of(call_log, header, create(path)?, instances)? })
    }

    /// An error if it has ended by itself.
    pub fn check(&self) -> Result<()> {
        if self.drain.has_ended() {
            return Err(Failure::new(Exit::Other, "the recording has ended, the command still runs").into());
        }
        Ok(())
    }

    /// Ends it, and says what was kept.
    pub fn stop(self) -> Result<Kept> {
        Ok(self.drain.stop()?)
    }
}

/// What runs, for a recording's header.
pub fn in_words(command: &[OsString]) -> String {
    command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// A file for a recording, whose directory is made if need be.
pub fn create(path: &Path) -> Result<File> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    // It shows what the tasks of all users did: readable by its owner, root, only.
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.with_context(|| format!("cannot write {}", path.display()))
}
