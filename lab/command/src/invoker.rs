//! The user who has called sudo. What has to be built is built as that user: it runs code of a policy's author. Root gets copies of the
//! modules.

use std::{
    fs::{self, DirBuilder},
    os::unix::{
        fs::{DirBuilderExt, MetadataExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, Result};
use ekiden_build::Checkout;
use nix::unistd::{Uid, User, geteuid};
use serde::Deserialize;

use crate::{
    failure::{Exit, Failure},
    progress::Progress,
};

/// Where root's copies are, a directory for each user.
const COPIES: &str = "/var/lib/ekiden/modules";

/// Where root's copy of this program with the policies of a project is, a directory for each user.
const RUNNERS: &str = "/var/lib/ekiden/runners";

/// What a build without privileges says at its end.
#[derive(Deserialize)]
struct Built {
    directory: PathBuf,
}

/// The user who has called sudo.
pub struct Invoker(User);

impl Invoker {
    /// If this is root by sudo, and Ekiden's checkout is that user's, who can write there.
    pub fn find() -> Option<Self> {
        let uid = std::env::var("SUDO_UID").ok()?.parse().ok()?;
        let checkout = Checkout::find().ok()?;
        let owner = fs::metadata(checkout.root()).ok()?.uid();
        is_meant(geteuid(), uid, owner).then(|| User::from_uid(Uid::from_raw(uid)).ok().flatten().map(Self))?
    }

    /// Runs `ekiden build` with these options as that user, and returns the directory with root's copies of what it has made.
    pub fn build(&self, options: &[String], progress: &mut Progress) -> Result<PathBuf> {
        self.build_into(&Path::new(COPIES).join(self.0.uid.to_string()), options, progress)
    }

    /// Builds modules of which none can take over from another, beside those that can.
    pub fn build_fixed(&self, options: &[String], progress: &mut Progress) -> Result<PathBuf> {
        let options = [&["--fixed".to_owned()], options].concat();
        self.build_into(&Path::new(COPIES).join(format!("{}-fixed", self.0.uid)), &options, progress)
    }

    fn build_into(&self, copies: &Path, options: &[String], progress: &mut Progress) -> Result<PathBuf> {
        progress.end_step();
        eprintln!("building as {}, who has called sudo", self.0.name);
        let mut command = self.command(&["build".to_owned(), "--json".to_owned()])?;
        let output = command.args(options).stdout(Stdio::piped()).stderr(Stdio::inherit()).output();
        let output = output.context("cannot start the build")?;
        if !output.status.success() {
            let message = format!("the build as {} did not succeed; the reason is above", self.0.name);
            return Err(Failure::new(Exit::NoCompile, message).into());
        }
        let built: Built = serde_json::from_slice(&output.stdout).context("the build says nothing of its modules")?;
        copied(&built.directory, copies)
    }

    /// Builds this program with the policies of the project in the current directory as that user, and returns root's copy of it.
    pub fn runner(&self) -> Result<PathBuf> {
        eprintln!("building as {}, who has called sudo", self.0.name);
        let mut command = self.command(&["build".to_owned(), "--runner".to_owned()])?;
        let output = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).output();
        let output = output.context("cannot start the build")?;
        if !output.status.success() {
            let message = format!("the build as {} did not succeed; the reason is above", self.0.name);
            return Err(Failure::new(Exit::NoCompile, message).into());
        }
        let program = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        let directory = Path::new(RUNNERS).join(self.0.uid.to_string());
        copied_program(&program, &directory)
    }

    /// Runs this whole command again as that user.
    pub fn again(&self) -> Result<ExitCode> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let status = self.command(&arguments)?.status().context("cannot start the build")?;
        Ok(ExitCode::from(status.code().and_then(|code| code.try_into().ok()).unwrap_or(Exit::Other as u8)))
    }

    /// This program, as that user would have called it.
    fn command(&self, arguments: &[String]) -> Result<Command> {
        let User { name, uid, gid, dir, .. } = &self.0;
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        // Root's other groups go with root.
        command.args(arguments).stdin(Stdio::null()).uid(uid.as_raw()).gid(gid.as_raw());
        command.env("HOME", dir).env("USER", name).env("LOGNAME", name);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = [dir.join(".cargo/bin")].into_iter().chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(path).context("PATH cannot be extended")?);
        let own = std::env::vars_os().map(|(name, _)| name);
        let of_root = |name: &std::ffi::OsString| {
            let name = name.to_string_lossy();
            name.starts_with("SUDO_") || name.starts_with("XDG_")
        };
        own.filter(of_root).for_each(|name| _ = command.env_remove(name));
        Ok(command)
    }
}

/// Whether what root by sudo has to build is built as the user who called it.
fn is_meant(here: Uid, caller: u32, owner_of_checkout: u32) -> bool {
    here.is_root() && caller != 0 && caller == owner_of_checkout
}

/// Copies of the modules in a directory, in one that is root's alone.
fn copied(from: &Path, to: &Path) -> Result<PathBuf> {
    let failed = || format!("cannot copy modules from {} to {}", from.display(), to.display());
    if to.exists() {
        fs::remove_dir_all(to).with_context(failed)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(to).with_context(failed)?;
    for entry in fs::read_dir(from).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        let is_module = path.extension().is_some_and(|extension| extension == "ko");
        // Links are not followed.
        if is_module && fs::symlink_metadata(&path).with_context(failed)?.is_file() {
            fs::copy(&path, to.join(path.file_name().unwrap_or_default())).with_context(failed)?;
        }
    }
    Ok(to.to_owned())
}

/// A copy of a program in a directory that is root's alone. One that runs there is not overwritten but replaced.
fn copied_program(program: &Path, to: &Path) -> Result<PathBuf> {
    let failed = || format!("cannot copy {} to {}", program.display(), to.display());
    if to.exists() {
        fs::remove_dir_all(to).with_context(failed)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(to).with_context(failed)?;
    // Links are not followed.
    if !fs::symlink_metadata(program).with_context(failed)?.is_file() {
        return Err(Failure::new(Exit::Other, format!("{}: it is no file", failed())).into());
    }
    let copy = to.join("ekiden");
    fs::copy(program, &copy).with_context(failed)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn root_by_sudo_builds_as_the_owner_of_the_checkout() {
        assert!(is_meant(Uid::from_raw(0), 1000, 1000));
        assert!(!is_meant(Uid::from_raw(0), 1000, 0));
        assert!(!is_meant(Uid::from_raw(0), 0, 0));
        assert!(!is_meant(Uid::from_raw(1000), 1000, 1000));
    }

    #[test]
    fn modules_are_copied_to_a_place_that_is_roots_alone_and_links_are_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("deep/to"));
        fs::create_dir(&from).unwrap();
        for name in ["a.ko", "b.txt"] {
            fs::write(from.join(name), name).unwrap();
        }
        symlink("/etc/passwd", from.join("c.ko")).unwrap();
        // An earlier build has left a module there.
        fs::create_dir_all(&to).unwrap();
        fs::write(to.join("old.ko"), "").unwrap();
        assert_eq!(copied(&from, &to).unwrap(), to);
        let names: Vec<_> = fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["a.ko"]);
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o700);
        let program = copied_program(&from.join("b.txt"), &to).unwrap();
        assert_eq!((program.clone(), fs::read_to_string(program).unwrap()), (to.join("ekiden"), "b.txt".to_owned()));
        assert!(copied_program(&from.join("c.ko"), &to).is_err());
    }

    /// Needs root, as machines that run all tests have.
    #[test]
    fn the_program_runs_again_with_the_rights_and_the_home_of_the_invoking_user() {
        if !geteuid().is_root() {
            return;
        }
        let Some(user) = User::from_name("nobody").unwrap() else { return };
        let mut command = Invoker(user.clone()).command(&[]).unwrap();
        let env: Vec<_> =
            command.get_envs().map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned))).collect();
        let mut id = Command::new("sh");
        id.args(["-c", "id -u; id -g; id -G; echo $HOME"]).uid(user.uid.as_raw()).gid(user.gid.as_raw());
        for (name, value) in env {
            match value {
                Some(value) => id.env(name, value),
                None => id.env_remove(name),
            };
        }
        command.env_clear();
        let text = String::from_utf8(id.output().unwrap().stdout).unwrap();
        let gid = user.gid.to_string();
        assert_eq!(text.lines().collect::<Vec<_>>(), [&user.uid.to_string(), &gid, &gid, user.dir.to_str().unwrap()]);
    }
}
