//! Where the last calls of policies are kept that were taken out. They tell what every task of the machine did, and root writes them: no other
//! user may write to that directory.

use std::{
    env,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use nix::unistd::geteuid;

/// Root's.
pub const OF_ROOT: &str = "/var/lib/ekiden";

/// Most recordings of one policy in one second.
const MOST: u32 = 100;

/// Where they go by default: root's place, or one of the user's own.
pub fn usual() -> PathBuf {
    let of = |variable| env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    if geteuid().is_root() {
        return OF_ROOT.into();
    }
    let state = of("XDG_STATE_HOME").or_else(|| of("HOME").map(|home| home.join(".local/state")));
    state.map_or_else(|| OF_ROOT.into(), |state| state.join("ekiden"))
}

/// A new file in `directory`, which is made if need be: `name` with its ending, or with a number between if there is one of that name. Only
/// its owner may read it. The [usual] place must be the caller's alone.
pub fn create(directory: &Path, name: &str) -> Result<(File, PathBuf)> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.with_context(|| format!("cannot create {}", directory.display()))?;
    if directory == usual() {
        must_be_of(directory, geteuid().as_raw())?;
    }
    new_file(directory, name).with_context(|| format!("cannot write to {}", directory.display()))
}

/// Refuses a directory that another user may have written to.
fn must_be_of(directory: &Path, uid: u32) -> Result<()> {
    let metadata =
        fs::symlink_metadata(directory).with_context(|| format!("cannot look at {}", directory.display()))?;
    if !metadata.is_dir() || metadata.uid() != uid || metadata.mode() & 0o022 != 0 {
        let path = directory.display();
        bail!(
            "others may write to {path}, or it is not yours; next: remove it, or name another directory with --flights"
        );
    }
    Ok(())
}

fn new_file(directory: &Path, name: &str) -> io::Result<(File, PathBuf)> {
    let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
    let mut path = directory.join(name);
    for number in 1..MOST {
        // Whatever is there already is not opened, and if it is a link, not followed.
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                path = directory.join(format!("{stem}-{number}.{ending}"));
            }
            done => return done.map(|file| (file, path)),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn what_somebody_has_put_there_is_neither_followed_nor_changed() {
        let place = tempfile::tempdir().unwrap();
        let (secret, directory) = (place.path().join("secret"), place.path().join("flights"));
        fs::write(&secret, "kept").unwrap();
        fs::create_dir(&directory).unwrap();
        symlink(&secret, directory.join("wfq-1.ekirec")).unwrap();
        fs::write(directory.join("wfq-1-1.ekirec"), "kept").unwrap();
        let (file, path) = create(&directory, "wfq-1.ekirec").unwrap();
        assert_eq!(path, directory.join("wfq-1-2.ekirec"));
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&secret).unwrap(), "kept");
        assert_eq!(fs::read_to_string(directory.join("wfq-1-1.ekirec")).unwrap(), "kept");
    }

    #[test]
    fn a_directory_in_which_others_may_write_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let (directory, link) = (place.path().join("flights"), place.path().join("link"));
        drop(create(&directory, "wfq-1.ekirec").unwrap());
        let me = geteuid().as_raw();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        must_be_of(&directory, me).unwrap();
        symlink(&directory, &link).unwrap();
        let error = must_be_of(&link, me).unwrap_err().to_string();
        assert!(error.contains("others may write") && error.contains("--flights"), "{error}");
        assert!(must_be_of(&directory, me + 1).is_err());
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(must_be_of(&directory, me).is_err());
    }
}
