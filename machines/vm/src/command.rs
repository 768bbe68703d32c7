//! A command to run in a guest, what it came to, and what switching the guest off came to.

use ekiden_guest::{Size, Status};
use std::time::Duration;

/// A command to run in a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestCommand {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: Option<String>,
    pub(crate) timeout: Duration,
    pub(crate) terminal: Option<Size>,
}

impl GuestCommand {
    /// Program and arguments; the program is looked up in the guest's `PATH`, which ends with `/host/bin`.
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            timeout: Duration::from_secs(60),
            terminal: None,
        }
    }

    /// A line for the guest's shell.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::new(["sh".to_owned(), "-c".to_owned(), line.into()])
    }

    /// Adds a variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets the working directory; it is `/` otherwise.
    pub fn cwd(mut self, path: impl Into<String>) -> Self {
        self.cwd = Some(path.into());
        self
    }

    /// Sets how long it may take, by the host's clock; a minute otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Gives it a terminal of the guest. A program that is missing is reported there and ends with 127, instead of an error.
    pub fn terminal(mut self, size: Size) -> Self {
        self.terminal = Some(size);
        self
    }
}

impl std::fmt::Display for GuestCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.argv.join(" "))
    }
}

/// What a command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub status: Status,
    /// What it wrote to standard output; bytes that are no UTF-8 are replaced.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

/// How a machine was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It switched itself off.
    Obeyed,
    /// It was killed, for this reason.
    Forced(String),
}
