//! The program that serves the directory which a guest shares with this machine.

use super::daemon::{Daemon, listen_at};
use crate::{Cache, Error, Qemu, Result, error::Context, process};
use std::{ffi::OsStr, os::fd::OwnedFd, path::Path, process::Command, thread, time::Duration};

/// How long the share's server may take to find that it cannot start.
const SHARE_STARTS: Duration = Duration::from_millis(100);

/// Starts the program that serves the shared directory; it ends when QEMU disconnects.
pub(crate) fn start(share_dir: &Path, directory: &Path, outlives: bool) -> Result<Daemon> {
    let installed = process::find("virtiofsd", &["/usr/libexec", "/usr/lib/qemu"])?;
    let share_dir = share_dir.canonicalize().context("find", share_dir)?.display().to_string();
    let socket = directory.join("share.sock");
    // It is handed the socket: by a path, the one written in C keeps a file of its own elsewhere, which two of the same path fight for.
    let listener = listen_at(&socket).context("create", &socket)?;
    let socket_arg = "--fd=0".to_owned();
    // Nothing is cached in the guest: a file replaced here must be the new one there at once.
    let is_c = is_written_in_c(&installed)?;
    let is_root = nix::unistd::geteuid().is_root();
    let mut server = match is_c {
        // Only root may run it.
        true if !is_root => Qemu::fetched_share_server(&Cache::from_env()?, &mut |_| {})?,
        _ => Command::new(&installed),
    };
    if is_c && is_root {
        server.args([socket_arg, format!("-osource={share_dir}"), "-ocache=none".into(), "-osandbox=chroot".into()]);
    } else {
        let sandbox = if is_root { "chroot" } else { "none" };
        server.args([socket_arg, format!("--shared-dir={share_dir}"), "--cache=never".into()]);
        server.arg(format!("--sandbox={sandbox}"));
    }
    let args: Vec<&OsStr> = server.get_args().collect();
    let stdin = OwnedFd::from(listener).into();
    let log = directory.join("share.log");
    let server = Daemon::start(Path::new(server.get_program()), &args, stdin, &log, outlives)?;
    // It ends at once if it refuses its arguments.
    thread::sleep(SHARE_STARTS);
    if !server.is_running() {
        return Err(Error::Boot {
            reason: format!("the share's server did not start: {}", server.last_words()),
            console: String::new(),
            log: server.log,
        });
    }
    Ok(server)
}

/// Whether it is QEMU's own server, which differs from its successor in its options. It gives up its groups before it looks at them, so that
/// it tells its version to root only.
fn is_written_in_c(server: &Path) -> Result<bool> {
    let mut command = Command::new(server);
    let output = command.arg("--version").output().map_err(|error| process::cannot_start(&command, &error))?;
    let said = [output.stdout, output.stderr].concat();
    Ok(!output.status.success() || String::from_utf8_lossy(&said).contains("FUSE kernel interface"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_server_that_tells_its_version_to_root_only_is_the_one_written_in_c() {
        let is_c = |program: &str| is_written_in_c(&process::find(program, &[]).unwrap()).unwrap();
        assert!(is_c("false"));
        assert!(!is_c("true"));
        // Debian 12 has it there, and Debian 13 a link to its successor.
        let installed = Path::new("/usr/lib/qemu/virtiofsd");
        assert!(!installed.exists() || is_written_in_c(installed).unwrap() != installed.is_symlink());
    }
}
