//! Guest tests of commands beside policies that run: who is given a policy by `ekiden attach --follow`, what is left of a recording whose reader is
//! killed, what a finding of `ekiden check --live` saves, and how soon it is told what happens to policies.

use std::{
    fs,
    os::{fd::AsFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ekiden::Call;
use ekiden_loader::{Beside, Changes, Config, Session};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::Serialize;
use serde_json::Value;

use crate::{
    groups::Group,
    guest_tests::config,
    load::{Worker, pause},
    several::{beside, find},
    watches::two_on_cpu_0,
};

/// Limit for what a command does at its beginning, and for its effects.
const PATIENCE: Duration = Duration::from_secs(10);

/// `ekiden`, with its libraries beside it.
fn command(ekiden: &Path, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(ekiden);
    command.env("LD_LIBRARY_PATH", ekiden.parent().context("no directory")?).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

fn spawn(ekiden: &Path, arguments: &[&str]) -> Result<Child> {
    command(ekiden, arguments)?.spawn().with_context(|| format!("cannot run {}", ekiden.display()))
}

/// Waits until something is so. Returns after how many milliseconds.
fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<u64> {
    let start = Instant::now();
    while !is_so()? {
        ensure!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        pause(5);
    }
    Ok(start.elapsed().as_millis() as u64)
}

#[derive(Serialize)]
struct FollowReport {
    /// How long one who came later waited for the policy.
    later_ms: u64,
    /// Tasks of the policy beside one who is not meant, when the command has ended, and when one more has come after that.
    tasks: [u64; 3],
    /// How the command ended, and what it printed last.
    code: Option<i32>,
    printed: String,
}

/// FIFO comes beside WFQ and is given to those in a control group, and to those of a name.
pub(crate) fn followed(modules: &Path, ekiden: &Path) -> Result<()> {
    let first = Session::start(&config(modules, "wfq"))?;
    let second = Session::start(&beside(modules, "fifo", Beside::Others))?;
    let group = Group::top("followed")?;
    let in_group = || group.start("nap");
    let path = group.path().to_str().context("a path that is no text")?;
    follow(ekiden, ["--cgroup", path], &in_group)?;
    follow(ekiden, ["--comm", "called-so"], &|| Worker::called("called-so", "nap"))?;
    second.check()?;
    first.check()?;
    second.stop();
    first.stop();
    Ok(())
}

/// `come` starts one that is meant.
fn follow(ekiden: &Path, who: [&str; 2], come: &dyn Fn() -> Result<Worker>) -> Result<()> {
    let tasks = || -> Result<u64> { Ok(find("fifo")?.counts.tasks) };
    wait_until("those of the one before are gone", || Ok(tasks()? == 0))?;
    let early = come()?;
    let mut child = spawn(ekiden, &["attach", "fifo", who[0], who[1], "--follow"])?;
    wait_until("one who was there has the policy", || {
        ensure!(child.try_wait()?.is_none(), "the command has ended");
        Ok(tasks()? == 1)
    })?;
    let later = come()?;
    let later_ms = wait_until("one who came later has the policy", || Ok(tasks()? == 2))?;
    let other = Worker::start("nap")?;
    pause(300);
    let beside_other = tasks()?;
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT)?;
    let output = child.wait_with_output()?;
    let when_ended = tasks()?;
    let late = come()?;
    pause(300);
    let after_that = tasks()?;
    [&early, &later, &other, &late].into_iter().try_for_each(Worker::must_run)?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let report = FollowReport {
        later_ms,
        tasks: [beside_other, when_ended, after_that],
        code: output.status.code(),
        printed: printed.lines().last().unwrap_or_default().into(),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

#[derive(Serialize)]
struct KilledReport {
    /// What it had written.
    bytes: u64,
    /// How many records the next reader kept.
    again: Value,
    still_running: bool,
}

/// The reader is killed while calls come; then another one reads.
pub(crate) fn reader_killed(modules: &Path, ekiden: &Path, to: &Path) -> Result<()> {
    let session = Session::start(&config(modules, "wfq"))?;
    let workers = [Worker::start("nap")?, Worker::start("nap")?, Worker::start("spin")?];
    let file = to.to_str().context("a path that is no text")?;
    let mut child = spawn(ekiden, &["record", "-o", file])?;
    let length = || fs::metadata(to).map_or(0, |metadata| metadata.len());
    wait_until("the file has some of it", || {
        ensure!(child.try_wait()?.is_none(), "the command has ended");
        Ok(length() > 64 << 10)
    })?;
    child.kill()?;
    child.wait()?;
    workers.iter().try_for_each(Worker::must_run)?;
    session.check()?;
    let output = command(ekiden, &["record", "--json", "-o", "/tmp/again.ekirec", "--", "sleep", "0.2"])?.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the next reader ends with {}: {said}", output.status);
    let again: Value = serde_json::from_slice(&output.stdout)?;
    workers.iter().try_for_each(Worker::must_run)?;
    drop(workers);
    let report = KilledReport { bytes: length(), again, still_running: session.is_running() };
    println!("{}", serde_json::to_string(&report)?);
    session.stop();
    Ok(())
}

#[derive(Serialize)]
struct FlightReport {
    code: Option<i32>,
    /// What each finding saved.
    recordings: Vec<Vec<PathBuf>>,
    still_running: bool,
}

/// Two tasks are on one CPU under a policy that does not steal.
pub(crate) fn found_flight(modules: &Path, ekiden: &Path, to: &Path) -> Result<()> {
    let session = Session::start(&config(modules, "fifo"))?;
    let workers = two_on_cpu_0([libc::SCHED_OTHER; 2])?;
    let output = command(ekiden, &["check", "--live", "--every=200", "--for=4s", "--json"])?.output()?;
    drop(workers);
    let printed: Value =
        serde_json::from_slice(&output.stdout).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let recordings: Vec<Vec<PathBuf>> = printed["findings"]
        .as_array()
        .context("no findings")?
        .iter()
        .map(|finding| serde_json::from_value(finding["recordings"].clone()))
        .collect::<Result<_, _>>()?;
    for path in recordings.iter().flatten() {
        fs::copy(path, to).with_context(|| format!("cannot copy {}", path.display()))?;
    }
    let report = FlightReport { code: output.status.code(), recordings, still_running: session.is_running() };
    println!("{}", serde_json::to_string(&report)?);
    session.stop();
    Ok(())
}

#[derive(Serialize)]
struct ToldReport {
    /// How often something was told until the second policy had come, was taken out, and had gone.
    changes: [u32; 3],
    /// How long after it was taken out that was told.
    told_us: u64,
    /// Whether nothing was told while nothing happened.
    is_quiet: bool,
    still_running: bool,
}

/// A stream whose other end is closed after a while.
fn ends_in(time: Duration) -> Result<UnixStream> {
    let (end, stream) = UnixStream::pair()?;
    thread::spawn(move || {
        thread::sleep(time);
        drop(end);
    });
    Ok(stream)
}

/// Another policy comes, panics, and goes.
pub(crate) fn told(modules: &Path) -> Result<()> {
    let first = Session::start(&config(modules, "wfq"))?;
    let mut changes = Changes::of_module()?;
    // The end of all waiting.
    let over = ends_in(PATIENCE)?;
    let mut until = |is_so: &dyn Fn() -> Result<bool>| -> Result<u32> {
        for told in 1..10 {
            ensure!(changes.wait(over.as_fd())?, "not within {PATIENCE:?}");
            if is_so()? {
                return Ok(told);
            }
        }
        bail!("it is told again and again, and is not so");
    };
    let params = format!("call={} after=300", Call::TaskWakeup as u32);
    let config = Config { params, ..beside(modules, "faulty", Beside::OthersAsDefault) };
    let second = Session::start(&config)?;
    let has_come = until(&|| Ok(find("faulty").is_ok()))?;
    let workers = [Worker::start("nap")?, Worker::start("yield")?];
    let is_out = until(&|| Ok(!find("faulty")?.alive))?;
    let told_us = find("faulty")?.faulted_ago().context("no time")?.as_micros() as u64;
    workers.iter().try_for_each(Worker::must_run)?;
    drop(second);
    let has_gone = until(&|| Ok(find("faulty").is_err()))?;
    let is_quiet = !changes.wait(ends_in(Duration::from_millis(300))?.as_fd())?;
    let changes = [has_come, is_out, has_gone];
    println!(
        "{}",
        serde_json::to_string(&ToldReport { changes, told_us, is_quiet, still_running: first.is_running() })?
    );
    first.stop();
    Ok(())
}
