//! Guest tests of what watches the kernel: the live checker and the counter of waits, under policies and without.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ekiden_loader::{Config, Finding, LiveChecker, LookCounts, RunqLat, Scope, Session, Whom, sysfs};
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo};
use serde::Serialize;
use serde_json::Value;

use crate::{
    groups::Group,
    guest_tests::{SCHED_EXT, config},
    load::{Worker, pause},
};

/// M, and how often to look.
const PERSISTS: Duration = Duration::from_millis(100);
const EVERY: Duration = Duration::from_millis(200);

#[derive(Serialize)]
struct WatchReport {
    counts: LookCounts,
    findings: Vec<Finding>,
    /// The tasks that were put onto CPU 0 and may use CPU 1 too.
    pids: Vec<i32>,
    /// The name of the policy, if it is still in charge.
    scheduler: Option<String>,
    /// BPF programs that were attached, beyond those before, at most: while no CPU was suspected of being wasted, and while one was.
    links_unsuspected: usize,
    links_suspected: usize,
    /// How many were attached when the checker was gone.
    links_left: usize,
}

fn links() -> usize {
    LinkInfoIter::default().count()
}

/// Links of programs that run when something happens; an iterator runs when it is read.
fn attached() -> usize {
    LinkInfoIter::default().filter(|link| !matches!(link.info, LinkTypeInfo::Iter(_))).count()
}

/// Runs `load` in front of a live checker, under a policy (with `params`) or under the kernel's own scheduler.
fn watch(config: Option<&Config>, seconds: u64, load: impl FnOnce() -> Result<Vec<Worker>>) -> Result<()> {
    watch_while(config, || {
        let (workers, start) = (load()?, Instant::now());
        Ok((workers, move || Ok(start.elapsed() < Duration::from_secs(seconds))))
    })
}

/// Checks until the load ends; `load` returns how to ask whether it still runs.
fn watch_while<G: FnMut() -> Result<bool>>(
    config: Option<&Config>,
    load: impl FnOnce() -> Result<(Vec<Worker>, G)>,
) -> Result<()> {
    let session = config.map(Session::start).transpose()?;
    let (links_before, attached_before) = (links(), attached());
    let mut checker = LiveChecker::load(PERSISTS)?;
    let (workers, mut goes_on) = load()?;
    let (mut findings, mut links_unsuspected, mut links_suspected) = (Vec::new(), 0, 0);
    let more_links = || links().saturating_sub(links_before);
    let more_attached = || attached().saturating_sub(attached_before);
    // It pauses only while it suspects a CPU.
    let mut sleep = |time| {
        links_suspected = links_suspected.max(more_attached());
        thread::sleep(time);
        true
    };
    while goes_on()? {
        thread::sleep(EVERY);
        links_unsuspected = links_unsuspected.max(more_attached());
        findings.extend(checker.look(&mut sleep)?.map(|evidence| evidence.finding));
    }
    let counts = checker.counts;
    drop(checker);
    let report = WatchReport {
        counts,
        findings,
        pids: workers.iter().map(|worker| worker.pid().as_raw()).collect(),
        scheduler: sysfs::scheduler(),
        links_unsuspected,
        links_suspected,
        links_left: more_links(),
    };
    println!("{}", serde_json::to_string(&report)?);
    drop(workers);
    session.map_or(Ok(()), |session| Ok(session.check()?))
}

/// Two that turn on CPU 0 and may use CPU 1, which stays idle if no CPU steals.
pub(crate) fn wasted(modules: &Path, policy: Option<&str>, behind_real_time: bool, seconds: u64) -> Result<()> {
    let config = policy.map(|policy| config(modules, policy));
    let first = if behind_real_time { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
    watch(config.as_ref(), seconds, || two_on_cpu_0([first, libc::SCHED_OTHER]))
}

/// Two tasks of these classes.
pub(crate) fn two_on_cpu_0(classes: [i32; 2]) -> Result<Vec<Worker>> {
    let workers = vec![Worker::start("spin")?, Worker::start("spin")?];
    for worker in &workers {
        worker.pin(0)?;
    }
    pause(50);
    for (worker, class) in workers.iter().zip(classes) {
        worker.class(class)?;
    }
    for (worker, class) in workers.iter().zip(classes) {
        // A real-time task stays where it is, and so does a task that waits there under a policy that does not steal.
        if class != libc::SCHED_FIFO {
            worker.unpin()?;
        }
    }
    Ok(workers)
}

/// One that may use any CPU, and two that may but have, most of the time, used up what their group may use; if it is little.
pub(crate) fn limited(modules: &Path, policy: Option<&str>, quota_us: u64, seconds: u64) -> Result<()> {
    let config = policy.map(|policy| config(modules, policy));
    let group = Group::top("limited")?;
    group.set("cpu.max", &format!("{quota_us} 1000000"))?;
    watch(config.as_ref(), seconds, || {
        let workers = vec![Worker::start("spin")?, group.start("spin")?, group.start("spin")?];
        workers.iter().try_for_each(|worker| worker.pin(0))?;
        pause(50);
        workers.iter().try_for_each(Worker::unpin)?;
        Ok(workers)
    })
}

/// What a live checker saw while something was done.
#[derive(Serialize)]
pub(crate) struct Watched {
    counts: LookCounts,
    findings: Vec<Finding>,
}

/// Says that it is over when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Does something while a live checker looks, from a thread of its own.
pub(crate) fn watched<T>(act: impl FnOnce() -> Result<T>) -> Result<(T, Watched)> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut checker = LiveChecker::load(PERSISTS)?;
            let mut findings = Vec::new();
            let mut sleep = |time| {
                thread::sleep(time);
                !is_over.load(Relaxed)
            };
            while sleep(EVERY / 10) {
                findings.extend(checker.look(&mut sleep)?.map(|evidence| evidence.finding));
            }
            anyhow::Ok(Watched { counts: checker.counts, findings })
        });
        // Also if that panics.
        let over = Over(&is_over);
        let done = act();
        drop(over);
        let watched = looks.join().map_err(|_| anyhow::anyhow!("the checker panicked"))?;
        Ok((done?, watched?))
    })
}

#[derive(Serialize)]
struct FoundReport {
    /// The tasks that were put onto CPU 0 and may use CPU 1 too.
    pids: Vec<i32>,
    /// How the command ended, and what it printed and said.
    code: Option<i32>,
    printed: Value,
    said: String,
    /// What `ekiden top` shows of the same.
    top: Value,
}

/// What `ekiden check --live` says and writes of such a machine, and what `ekiden top` shows. The policy has all tasks, or these two
/// only: then the kernel's own scheduler keeps balancing, and leaves them.
pub(crate) fn found(modules: &Path, policy: &str, attached: bool, ekiden: &Path, report: &Path) -> Result<()> {
    let (scope, class) = if attached { (Scope::Attached, SCHED_EXT) } else { (Scope::All, libc::SCHED_OTHER) };
    let session = Session::start(&Config { scope, ..config(modules, policy) })?;
    let workers = two_on_cpu_0([class; 2])?;
    let libraries = ekiden.parent().context("no directory")?;
    let ekiden = |arguments: &[&str]| {
        let mut command = Command::new(ekiden);
        command.env("LD_LIBRARY_PATH", libraries).args(arguments);
        command.output().with_context(|| format!("cannot run {}", ekiden.display()))
    };
    let path = report.to_str().context("a path that is no text")?;
    let output = ekiden(&["check", "--live", "--every=200", "--for=8s", "--json", "--report", path])?;
    let top = ekiden(&["top", "--once", "--interval=3", "--json"])?;
    let report = FoundReport {
        pids: workers.iter().map(|worker| worker.pid().as_raw()).collect(),
        code: output.status.code(),
        printed: serde_json::from_slice(&output.stdout).unwrap_or_default(),
        said: String::from_utf8_lossy(&output.stderr).into(),
        top: serde_json::from_slice(&top.stdout).unwrap_or_default(),
    };
    println!("{}", serde_json::to_string(&report)?);
    drop(workers);
    Ok(session.check()?)
}

/// A FIFO with stealing is the policy that goes wrong, without a call in which it does.
fn balancing(modules: &Path, policy: &str) -> Config {
    Config { params: if policy == "faulty" { "call=99".into() } else { String::new() }, ..config(modules, policy) }
}

/// Any load, as long as it lasts.
pub(crate) fn beside(modules: &Path, policy: Option<&str>, command: &[OsString]) -> Result<()> {
    let config = policy.map(|policy| balancing(modules, policy));
    watch_while(config.as_ref(), || {
        let [program, arguments @ ..] = command else { bail!("no command") };
        let mut load = Command::new(program);
        // A load that stops tasks of its own and ends has the kernel hang up on all of its process group.
        load.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        let mut child = load.spawn()?;
        let goes_on = move || Ok(child.try_wait()?.is_none());
        Ok((Vec::new(), goes_on))
    })
}

/// Tasks of all kinds, more than there are CPUs.
pub(crate) fn busy(modules: &Path, policy: Option<&str>, seconds: u64) -> Result<()> {
    let config = policy.map(|policy| balancing(modules, policy));
    watch(config.as_ref(), seconds, || {
        ["spin", "nap", "yield", "nap", "forks", "spin"].into_iter().map(Worker::start).collect()
    })
}

#[derive(Serialize)]
struct TriedReport {
    /// How the command ended, and what it printed and said.
    code: Option<i32>,
    printed: String,
    said: String,
    links_left: usize,
}

/// Runs a command that may not be able to do what it should, and looks at what it leaves in the kernel.
pub(crate) fn tried(command: &[OsString]) -> Result<()> {
    let [program, arguments @ ..] = command else { bail!("no command") };
    let links_before = links();
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
    let links_left = || links().saturating_sub(links_before);
    // The kernel takes its time to take down what a killed process had.
    let start = Instant::now();
    while links_left() > 0 && start.elapsed() < Duration::from_secs(2) {
        pause(50);
    }
    let report = TriedReport {
        code: output.status.code(),
        printed: String::from_utf8_lossy(&output.stdout).into(),
        said: String::from_utf8_lossy(&output.stderr).into(),
        links_left: links_left(),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

#[derive(Serialize)]
struct WaitsReport {
    naps: u64,
    waits: u64,
    max_ns: u64,
    sum_ns: u64,
    of_nobody: u64,
}

/// Counts the waits of this thread, which naps a hundred times.
pub(crate) fn waits() -> Result<()> {
    let naps = 100;
    let ours = RunqLat::start(&Whom { pid: Some(std::process::id()), name: Some("ekiden-test".into()) })?;
    let nobodys = RunqLat::start(&Whom { pid: None, name: Some("nobody".into()) })?;
    for _ in 0..naps {
        thread::sleep(Duration::from_micros(500));
    }
    let waits = ours.waits()?;
    let report = WaitsReport {
        naps,
        waits: waits.buckets.iter().sum(),
        max_ns: waits.max_ns,
        sum_ns: waits.sum_ns,
        of_nobody: nobodys.waits()?.buckets.iter().sum(),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
