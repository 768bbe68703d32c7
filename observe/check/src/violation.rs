//! What a check has found.

use std::fmt;

use serde::Serialize;

/// A task, as people call it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct TaskName {
    /// Its PID.
    pub pid: u32,
    /// Its name; empty if the trace does not tell.
    pub name: String,
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => write!(f, "PID {}", self.pid),
            name => write!(f, "{name} (PID {})", self.pid),
        }
    }
}

/// A promise that was not kept: which, when, by whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The name of the check.
    pub check: &'static str,
    /// When it began, in nanoseconds since the trace did.
    pub since_ns: u64,
    /// When it was certain.
    pub at_ns: u64,
    /// The CPUs concerned.
    pub cpus: Vec<u32>,
    /// The tasks concerned.
    pub tasks: Vec<TaskName>,
    /// What happened.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |ns: u64| ns as f64 / 1e9;
        write!(f, "{:.6} s: {}: {}", seconds(self.at_ns), self.check, self.message)?;
        if self.since_ns < self.at_ns {
            write!(f, "; since {:.6} s", seconds(self.since_ns))?;
        }
        Ok(())
    }
}
