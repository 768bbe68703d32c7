//! The directory that keeps what took time to fetch or make. Everything in it may be deleted at any time.

use crate::{Result, apt::Progress, error::Context, lock::Lock};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// `$EKIDEN_CACHE`, or `ekiden` in the user's cache directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The user's cache.
    pub fn from_env() -> Result<Self> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = variable("EKIDEN_CACHE")
            .or_else(|| variable("XDG_CACHE_HOME").map(|path| path.join("ekiden")))
            .or_else(|| variable("HOME").map(|path| path.join(".cache/ekiden")))
            .unwrap_or_else(|| PathBuf::from("/var/cache/ekiden"));
        Self::at(root)
    }

    /// A cache in a given directory, which is made if need be.
    pub fn at(root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        fs::create_dir_all(&root).context("create", &root)?;
        let root = root.canonicalize().context("find", &root)?;
        Ok(Self { root })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// A directory in the cache, made if need be.
    pub fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.join(name);
        fs::create_dir_all(&path).context("create", &path)?;
        Ok(path)
    }

    /// A lock for which other processes wait, and are told which process holds it. It goes away with its holder,
    /// however that ends.
    pub(crate) fn lock(&self, name: &str, progress: Progress<'_>) -> Result<Lock> {
        Lock::wait(&self.root.join(format!(".{name}.lock")), progress)
    }

    /// Makes `target` with `make`, which fills an empty directory; renamed into place only when complete, so that an
    /// interruption leaves nothing that looks finished. What an earlier interruption left is removed first.
    pub(crate) fn complete(
        &self,
        target: &Path,
        progress: Progress<'_>,
        make: impl FnOnce(&Path, Progress<'_>) -> Result<()>,
    ) -> Result<()> {
        let (parent, name) =
            (target.parent().unwrap_or(&self.root), target.file_name().unwrap_or_default().to_string_lossy());
        fs::create_dir_all(parent).context("create", parent)?;
        let _lock = self.lock(&format!("making-{name}"), progress)?;
        if target.exists() {
            return Ok(());
        }
        let prefix = format!(".{name}.partial-");
        for entry in fs::read_dir(parent).context("list", parent)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                // What resists now is left for the next time.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let partial = TempDir::with_prefix_in(prefix, parent).context("create", parent)?;
        // Temporary directories are private, what is kept is not.
        fs::set_permissions(partial.path(), fs::Permissions::from_mode(0o755)).context("prepare", partial.path())?;
        make(partial.path(), progress)?;
        fs::rename(partial.path(), target).context("create", target)?;
        // Nothing is left under the old name for the guard to remove.
        let _ = partial.keep();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_appears_only_when_it_is_complete() {
        let directory = TempDir::new().unwrap();
        let cache = Cache::at(directory.path()).unwrap();
        let target = cache.path().join("kernels/a");
        let failed = cache.complete(&target, &mut |_| {}, |partial, _| {
            fs::write(partial.join("half"), "").context("write", partial)?;
            Err(crate::Error::Spec("interrupted".into()))
        });
        assert!(failed.is_err() && !target.exists());
        cache
            .complete(&target, &mut |_| {}, |partial, _| fs::write(partial.join("whole"), "").context("write", partial))
            .unwrap();
        assert!(target.join("whole").exists() && !target.join("half").exists());
        assert_eq!(fs::read_dir(target.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_killed_process_left_is_removed() {
        let directory = TempDir::new().unwrap();
        let cache = Cache::at(directory.path()).unwrap();
        fs::create_dir_all(cache.path().join("kernels/.a.partial-dead")).unwrap();
        cache.complete(&cache.path().join("kernels/a"), &mut |_| {}, |_, _| Ok(())).unwrap();
        assert!(!cache.path().join("kernels/.a.partial-dead").exists());
    }

    #[test]
    fn a_complete_entry_is_not_made_again() {
        let directory = TempDir::new().unwrap();
        let cache = Cache::at(directory.path()).unwrap();
        let target = cache.path().join("kernels/a");
        cache.complete(&target, &mut |_| {}, |_, _| Ok(())).unwrap();
        cache.complete(&target, &mut |_| {}, |_, _| panic!("made twice")).unwrap();
    }
}
