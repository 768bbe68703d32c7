//! Everything that can go wrong here, each with what to do next.

use crate::Holder;
use std::{io, path::PathBuf, time::Duration};

/// Short for a result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a kernel could not be had, a module not be built, or a machine not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {what} {}: {source}; check the path, its permissions and the free space", path.display())]
    File {
        /// The operation, as a verb.
        what: &'static str,
        /// Its object.
        path: PathBuf,
        /// The operating system's word.
        source: io::Error,
    },
    /// A program is not installed.
    #[error("`{program}` is not installed; on Debian or Ubuntu run: apt-get install {package}")]
    MissingProgram {
        /// Its name.
        program: String,
        /// The Debian package that brings it.
        package: &'static str,
    },
    /// A program that was run failed.
    #[error("`{command}` failed ({status}):\n{output}\nrun it by hand to see more")]
    Program {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// The end of what it printed.
        output: String,
    },
    /// Apt could not fetch something.
    #[error(
        "cannot fetch from the Debian mirror {mirror}:\n{output}\ncheck the network, the free space and the mirror in /etc/apt, then run \
         the same command again: what was downloaded is kept"
    )]
    Fetch {
        /// Address of the mirror.
        mirror: String,
        /// The end of what apt printed.
        output: String,
    },
    /// No mirror is configured.
    #[error(
        "/etc/apt names no Debian mirror; give its address in EKIDEN_DEBIAN_MIRROR (Debian's site lists the mirrors)"
    )]
    NoMirror,
    /// No kernel fits.
    #[error("no suitable kernel: {reasons}; give another release, or list the candidates")]
    NoKernel {
        /// The thing that was looked for, and why each candidate was skipped.
        reasons: String,
    },
    /// BTF cannot be read.
    #[error("{what} has no readable BTF: {reason}; the kernel must be built with CONFIG_DEBUG_INFO_BTF=y")]
    Btf {
        /// The file.
        what: String,
        /// Why.
        reason: String,
    },
    /// The init process of guests has not been built.
    #[error("ekiden-guest was not found beside {}; build it with: cargo build -p ekiden-guest, or name it in EKIDEN_GUEST", beside.display())]
    NoGuest {
        /// The running program.
        beside: PathBuf,
    },
    /// There is nothing that could boot one.
    #[error(
        "this `ekiden` was built without virtual machines; build it with the feature `vm` of ekiden-cli, as `./ekiden` does where it can"
    )]
    WithoutVm,
    /// The machine did not come up.
    #[error("the virtual machine did not come up: {reason}\nlast lines of its console ({}):\n{console}", log.display())]
    Boot {
        /// Why.
        reason: String,
        /// The end of the console.
        console: String,
        /// The console's file.
        log: PathBuf,
    },
    /// The machine ended or its channel broke while it was needed.
    #[error("the virtual machine is gone: {reason}\nlast lines of its console ({}):\n{console}", log.display())]
    Gone {
        /// Why.
        reason: String,
        /// The end of the console.
        console: String,
        /// The console's file.
        log: PathBuf,
    },
    /// A command took too long.
    #[error(
        "`{command}` was killed after {timeout:?}; last output:\n{output}\nlast lines of the guest's console:\n{console}\ngive it more time, or look for a hang"
    )]
    Timeout {
        /// The command line.
        command: String,
        /// The time it had.
        timeout: Duration,
        /// The end of what it printed.
        output: String,
        /// The end of the guest's console.
        console: String,
    },
    /// The guest could not start a command.
    #[error("the guest cannot run `{command}`: {reason}; programs must be in the initramfs or under the share, /host")]
    Guest {
        /// The command line.
        command: String,
        /// Why.
        reason: String,
    },
    /// A command failed and the caller wanted it to succeed.
    #[error("`{command}` in the guest failed ({status}):\n{output}\nlast lines of the guest's console:\n{console}")]
    Failed {
        /// The command line.
        command: String,
        /// How it ended.
        status: ekiden_guest::Status,
        /// Its output.
        output: String,
        /// The end of the guest's console.
        console: String,
    },
    /// The machine description makes no sense.
    #[error("bad machine: {0}")]
    Spec(String),
    /// Only root may do this.
    #[error("only root can {0}; run the same command with sudo")]
    NeedRoot(&'static str),
    /// Another process uses the machine.
    #[error(
        "{what} is used by {}; wait for it to end, or stop it",
        .holder.as_ref().map_or("another process".to_owned(), ToString::to_string)
    )]
    Busy {
        /// The thing that is used.
        what: String,
        /// The process that uses it, if that is known.
        holder: Option<Holder>,
    },
    /// A machine of this name is there already.
    #[error("{0} runs already; use it, or switch it off first (`ekiden vm stop`)")]
    Runs(String),
    /// No QEMU that will do.
    #[error("{found}; {needed}")]
    Qemu {
        /// The version that was found.
        found: String,
        /// The thing that is needed, why, and how to get it.
        needed: String,
    },
}

/// Attaches what was attempted to an I/O error.
pub(crate) trait Context<T> {
    fn context(self, what: &'static str, path: impl Into<PathBuf>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: &'static str, path: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|source| Error::File { what, path: path.into(), source: source.into() })
    }
}
