//! A control group of the storm, and what is started in it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::load::pause;

/// A control group of the storm, and how long what is asked of it may take.
pub(super) struct Group {
    path: PathBuf,
    patience: Duration,
}

impl Group {
    pub(super) fn make(name: &str, patience: Duration) -> Result<Self> {
        let group = Self { path: Path::new("/sys/fs/cgroup").join(name), patience };
        match fs::create_dir(&group.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error).context("cannot make a group")?,
            _ => Ok(group),
        }
    }

    pub(super) fn set(&self, file: &str, value: &str) -> Result<()> {
        fs::write(self.path.join(file), value).with_context(|| format!("cannot write {value} to {file}"))
    }

    /// The processes in it, with those in groups below it: none.
    pub(super) fn processes(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// How many threads they have.
    pub(super) fn threads(&self) -> u64 {
        let text = fs::read_to_string(self.path.join("cgroup.threads")).unwrap_or_default();
        text.lines().count() as u64
    }

    /// Waits until a line of `cgroup.events` is there.
    pub(super) fn must_say(&self, line: &str) -> Result<()> {
        let start = Instant::now();
        loop {
            let events = fs::read_to_string(self.path.join("cgroup.events"))?;
            if events.lines().any(|other| other == line) {
                return Ok(());
            }
            if start.elapsed() > self.patience {
                let of = |pid: i32, file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
                let whose = |pid: i32| format!("{}\n{}{}", of(pid, "status"), of(pid, "sched"), of(pid, "stack"));
                let left: Vec<String> = self.processes().into_iter().map(whose).collect();
                bail!("no `{line}` for {:?}, a task is lost:\n{}", self.patience, left.join("\n"));
            }
            pause(5);
        }
    }

    /// Everybody in it dies, and does so soon.
    pub(super) fn end(self) -> Result<()> {
        self.set("cgroup.kill", "1")?;
        self.must_say("populated 0")
    }
}

/// Starts something in a group.
pub(super) fn start_in(group: &Group, program: &str, arguments: &[&str]) -> Result<Child> {
    let join = "echo 0 > $0/cgroup.procs && exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", join]).arg(&group.path).arg(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().with_context(|| format!("cannot start {program}"))
}
