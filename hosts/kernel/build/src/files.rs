//! Files that change only when their content does, so that a build tool that compares times sees no change where there is none.

use crate::{Result, error::Context};
use nix::fcntl::{Flock, FlockArg};
use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};
use tempfile::NamedTempFile;

/// Makes `path` a file with this content, in one step. Whether it had to be changed.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<bool> {
    write_as(path, content, 0o644)
}

/// Writes a file that can be run.
pub(crate) fn write_program(path: &Path, content: &[u8]) -> Result<bool> {
    write_as(path, content, 0o755)
}

fn write_as(path: &Path, content: &[u8], mode: u32) -> Result<bool> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(false);
    }
    let parent = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).context("create", parent)?;
    let mut file = NamedTempFile::new_in(parent).context("create a file in", parent)?;
    file.write_all(content).context("write", path)?;
    // Temporary files are private.
    let mut permissions = file.as_file().metadata().context("examine", path)?.permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, mode);
    file.as_file().set_permissions(permissions).context("prepare", path)?;
    file.persist(path).context("write", path)?;
    Ok(true)
}

/// Writes the content of another file.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<bool> {
    write(to, &fs::read(from).context("read", from)?)
}

/// A lock on a directory that other processes wait for. It goes away with its holder, however that ends.
pub(crate) fn lock(directory: &Path) -> Result<Flock<File>> {
    fs::create_dir_all(directory).context("create", directory)?;
    let path = directory.join(".lock");
    let file = File::create(&path).context("create", &path)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno).context("lock", path)
}

/// When a file was last changed and how long it is, or that it is not there; enough to see that it is another.
pub(crate) fn identity(path: &Path) -> String {
    let Ok(metadata) = fs::metadata(path) else { return format!("{} missing", path.display()) };
    format!("{} {:?} {}", path.display(), metadata.modified().ok(), metadata.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_the_same_content_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/file");
        assert!(write(&path, b"one").unwrap());
        let before = identity(&path);
        assert!(!write(&path, b"one").unwrap());
        assert_eq!(identity(&path), before);
        assert!(write(&path, b"three").unwrap());
        assert_ne!(identity(&path), before);
    }
}
