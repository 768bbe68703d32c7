//! Recordings that are made in a guest, and how they come home.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::flights;

/// Where a guest leaves recordings, in the directory that is shared with it, and how it calls the one that was asked for.
const DIRECTORY: &str = "recordings";
const WANTED: &str = "wanted.ekirec";

/// The recordings of one command in a guest.
pub(super) struct Recordings<'a> {
    directory: PathBuf,
    wanted: Option<&'a Path>,
}

impl<'a> Recordings<'a> {
    /// `share` is what the guest has of this machine; a recording of all calls is to be at `wanted`.
    pub(super) fn prepare(share: &Path, wanted: Option<&'a Path>) -> Result<Self> {
        let directory = share.join(DIRECTORY);
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(Self { directory, wanted })
    }

    /// Where the guest leaves the last calls of a policy that is taken out.
    pub(super) fn flights() -> PathBuf {
        Path::new("/host").join(DIRECTORY)
    }

    /// Where it leaves all calls, if they are wanted.
    pub(super) fn record(&self) -> Option<PathBuf> {
        self.wanted.map(|_| Self::flights().join(WANTED))
    }

    /// The options of `ekiden agent` that have it record there.
    pub(super) fn options(&self) -> impl Iterator<Item = String> {
        let record = self.record().map(|file| format!("--record={}", file.display()));
        [format!("--flights={}", Self::flights().display())].into_iter().chain(record)
    }

    /// Copies recordings to where they were wanted, or to where they would be on this machine.
    pub(super) fn bring_home(&self) -> Result<()> {
        let entries =
            fs::read_dir(&self.directory).with_context(|| format!("cannot read {}", self.directory.display()))?;
        for entry in entries.flatten() {
            let to = match self.wanted {
                Some(wanted) if entry.file_name() == WANTED => {
                    if let Some(parent) = wanted.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
                    }
                    fs::copy(entry.path(), wanted).with_context(|| format!("cannot write {}", wanted.display()))?;
                    wanted.to_owned()
                }
                _ => {
                    let (mut file, to) = flights::create(&flights::usual(), &entry.file_name().to_string_lossy())?;
                    let copied = File::open(entry.path()).and_then(|mut from| io::copy(&mut from, &mut file));
                    copied.with_context(|| format!("cannot write {}", to.display()))?;
                    to
                }
            };
            let _ = fs::remove_file(entry.path());
            eprintln!("next: ekiden replay {}", to.display());
        }
        Ok(())
    }
}
