//! Directories that last as long as the process that makes them: the files of guests, and what is shared with them.

use crate::{Cache, Error, Result, error::Context, lock::Lock};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;

/// Where they are, in the cache.
const PLACE: &str = "guests";

/// How long the files of a guest that did not come up are kept: an error has named them.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// A directory in the cache that is removed when this is dropped. If the process is killed, the next one that makes
/// such a directory removes it.
#[derive(Debug)]
pub struct Scratch {
    directory: TempDir,
    /// After the directory: without its lock, that looks like one which is to be kept.
    _lock: OwnLock,
}

/// A lock whose file goes with it.
#[derive(Debug)]
struct OwnLock {
    path: PathBuf,
    _held: Lock,
}

impl Drop for OwnLock {
    fn drop(&mut self) {
        // If it stays, the next sweep finds it free.
        let _ = fs::remove_file(&self.path);
    }
}

impl Scratch {
    /// Makes one in the user's cache.
    pub fn new() -> Result<Self> {
        Self::new_in(&Cache::from_env()?)
    }

    /// Makes one in this cache.
    pub fn new_in(cache: &Cache) -> Result<Self> {
        let place = cache.directory(PLACE)?;
        // Between the making of a lock's file and its locking, it looks as if its holder had died.
        let _turn = cache.lock(PLACE, &mut |_| {})?;
        sweep(&place)?;
        let directory = TempDir::with_prefix_in("guest-", &place).context("create", &place)?;
        let path = lock_of(directory.path());
        let held = Lock::try_take(&path)?.map_err(|holder| Error::Busy { what: path.display().to_string(), holder })?;
        Ok(Self { directory, _lock: OwnLock { path, _held: held } })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Leaves it for a day, for people to look at.
    pub(crate) fn keep(self) {
        let _ = self.directory.keep();
    }
}

fn lock_of(directory: &Path) -> PathBuf {
    directory.with_extension("lock")
}

/// Removes what processes left that were killed, and what has been kept long enough.
fn sweep(place: &Path) -> Result<()> {
    for entry in fs::read_dir(place).context("list", place)?.flatten() {
        let path = entry.path();
        let is_over = if path.extension().is_some_and(|extension| extension == "lock") {
            !path.with_extension("").exists() && Lock::try_take(&path)?.is_ok()
        } else if lock_of(&path).exists() {
            Lock::try_take(&lock_of(&path))?.is_ok()
        } else {
            let age =
                entry.metadata().and_then(|metadata| metadata.modified()).ok().and_then(|time| time.elapsed().ok());
            age.is_some_and(|age| age > KEPT)
        };
        if is_over {
            // What resists now is left for the next time.
            let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            let _ = fs::remove_file(lock_of(&path));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(cache: &Cache) -> Vec<String> {
        let entries = fs::read_dir(cache.path().join(PLACE)).unwrap().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_killed_process_left_is_swept_and_what_is_in_use_is_not() {
        let directory = TempDir::new().unwrap();
        let cache = Cache::at(directory.path()).unwrap();
        let place = cache.directory(PLACE).unwrap();
        let used = Scratch::new_in(&cache).unwrap();
        fs::create_dir(place.join("guest-dead")).unwrap();
        fs::write(place.join("guest-dead/console.log"), "").unwrap();
        fs::write(place.join("guest-dead.lock"), "").unwrap();
        fs::write(place.join("guest-gone.lock"), "").unwrap();
        let other = Scratch::new_in(&cache).unwrap();
        assert!(used.path().exists() && other.path().exists());
        assert_eq!(names(&cache).len(), 4, "{:?}", names(&cache));
        drop((used, other));
        assert_eq!(names(&cache), Vec::<String>::new());
    }

    #[test]
    fn what_is_kept_survives_a_sweep_for_a_day() {
        let directory = TempDir::new().unwrap();
        let cache = Cache::at(directory.path()).unwrap();
        let scratch = Scratch::new_in(&cache).unwrap();
        let kept = scratch.path().to_owned();
        scratch.keep();
        Scratch::new_in(&cache).unwrap();
        assert!(kept.exists());
        let long_ago = std::time::SystemTime::now() - 2 * KEPT;
        fs::File::open(&kept).unwrap().set_modified(long_ago).unwrap();
        Scratch::new_in(&cache).unwrap();
        assert!(!kept.exists());
    }
}
