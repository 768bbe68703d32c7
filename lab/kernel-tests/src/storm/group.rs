//! A control group of the storm, and what is started in it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::load::pause;

/// However much CPU time they have.
const MOST: Duration = Duration::from_secs(600);

/// A control group of the storm, and for how long those in it may have no CPU where something is asked of them.
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

    /// CPU time that those who were ever in it have had there, in microseconds.
    pub(super) fn ran_us(&self) -> u64 {
        let text = fs::read_to_string(self.path.join("cpu.stat")).unwrap_or_default();
        let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
        usage.and_then(|usage| usage.parse().ok()).unwrap_or_default()
    }

    /// Waits until a line of `cgroup.events` is there, which processes in the group and those that `join` it bring about.
    pub(super) fn must_say(&self, line: &str, join: &[u32]) -> Result<()> {
        let ran_us = || self.ran_us() + join.iter().map(|pid| ran_us(*pid)).sum::<u64>();
        let is_there = || {
            let events = fs::read_to_string(self.path.join("cgroup.events"))?;
            Ok(events.lines().any(|other| other == line))
        };
        until(self.patience, ran_us, is_there).with_context(|| {
            let of = |pid: i32, file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let whose = |pid: i32| format!("{}\n{}{}", of(pid, "status"), of(pid, "sched"), of(pid, "stack"));
            let left: Vec<String> = self.processes().into_iter().map(whose).collect();
            format!("no `{line}`:\n{}", left.join("\n"))
        })
    }

    /// Everybody in it dies, and does so soon.
    pub(super) fn end(self) -> Result<()> {
        self.set("cgroup.kill", "1")?;
        self.must_say("populated 0", &[])
    }
}

/// CPU time that a process has had, in microseconds.
fn ran_us(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or_default() / 1000
}

/// Waits until something is so, as long as the CPU time grows of those who are to bring it about: if none of them has had a CPU for `patience`, a task is
/// lost. How much of a CPU they have is for the policies: one that is asked later has an eighth of each CPU, for all its tasks, and may prefer others.
pub(super) fn until(
    patience: Duration,
    ran_us: impl Fn() -> u64,
    mut is_so: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let start = Instant::now();
    let (mut had, mut had_at) = (ran_us(), start);
    while !is_so()? {
        let has = ran_us();
        if has != had {
            (had, had_at) = (has, Instant::now());
        }
        let (all, idle) = (start.elapsed(), had_at.elapsed());
        ensure!(idle < patience && all < MOST, "not after {all:?}; the last CPU time was {idle:?} ago: a task is lost");
        pause(5);
    }
    Ok(())
}

/// Starts something in a group.
pub(super) fn start_in(group: &Group, program: &str, arguments: &[&str]) -> Result<Child> {
    let join = "echo 0 > $0/cgroup.procs && exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", join]).arg(&group.path).arg(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().with_context(|| format!("cannot start {program}"))
}
