//! Runs programs of this machine and turns their failure into an [`Error`].

use crate::{Error, Result, error::Context};
use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

/// Which Debian package brings which program.
const PACKAGES: &[(&str, &str)] = &[
    ("apt-get", "apt"),
    ("apt-cache", "apt"),
    ("busybox", "busybox-static"),
    ("debian-archive-keyring", "debian-archive-keyring"),
    ("dpkg-deb", "dpkg"),
    ("ldd", "libc-bin"),
    ("make", "make"),
    ("mke2fs", "e2fsprogs"),
    ("mmdebstrap", "mmdebstrap"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("setpriv", "util-linux"),
    ("timeout", "coreutils"),
    ("unshare", "util-linux"),
    ("virtiofsd", "virtiofsd (Debian 12 has it in qemu-system-common)"),
    ("xz", "xz-utils"),
];

/// Where programs may be that only root has in `PATH`.
pub(crate) const SYSTEM_PATHS: &[&str] = &["/usr/sbin", "/sbin"];

/// Lines of a program's output that are worth showing.
const SHOWN_LINES: usize = 40;

/// A command that the kernel kills when this process ends, however that happens, so that it cannot get in the way of the
/// next try.
pub(crate) fn mortal(program: &str) -> Result<Command> {
    let program = find(program, SYSTEM_PATHS)?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    Ok(command)
}

/// A mortal command that mounts things: all that it starts dies with it, and its mounts with all of them.
pub(crate) fn contained(program: &str) -> Result<Command> {
    let program = find(program, SYSTEM_PATHS)?;
    let mut command = mortal("unshare")?;
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(program);
    Ok(command)
}

/// Whether sudo is there and lets this user do anything without a password.
pub fn sudo_works() -> bool {
    find("sudo", &[]).is_ok() && output(Command::new("sudo").args(["-n", "true"])).is_ok()
}

/// Runs to the end, with the outputs captured.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    let output = command.output().map_err(|error| cannot_start(command, &error))?;
    if output.status.success() {
        return Ok(output);
    }
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Err(Error::Program {
        command: line(command),
        status: output.status.to_string(),
        output: last_lines(&text, SHOWN_LINES),
    })
}

/// Runs to the end and returns the standard output.
pub(crate) fn stdout(command: &mut Command) -> Result<String> {
    output(command).map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(crate) fn cannot_start(command: &Command, error: &std::io::Error) -> Error {
    let program = command.get_program().to_string_lossy().into_owned();
    if error.kind() == std::io::ErrorKind::NotFound {
        return missing(&program);
    }
    Error::Program { command: line(command), status: error.to_string(), output: String::new() }
}

pub(crate) fn missing(program: &str) -> Error {
    let package =
        PACKAGES.iter().find(|(name, _)| *name == program).map_or("the package that has it", |(_, package)| package);
    Error::MissingProgram { program: program.to_owned(), package }
}

fn line(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

/// The end of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Unpacks the Debian packages of a directory whose names are wanted into another.
pub(crate) fn unpack(packages: &Path, into: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(packages).context("list", packages)?.flatten() {
        if is_wanted(&entry.file_name().to_string_lossy()) {
            output(mortal("dpkg-deb")?.arg("-x").arg(entry.path()).arg(into))?;
        }
    }
    Ok(())
}

/// Where a program is: in `PATH`, or in one of `elsewhere`.
pub(crate) fn find(program: &str, elsewhere: &[&str]) -> Result<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(elsewhere.iter().map(Into::into))
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
        .ok_or_else(|| missing(program))
}
