//! Trials of what watches the kernel: the live checker and the counter of waits, under policies and without.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use ekiden_loader::{Config, Finding, LiveChecker, LookCounts, RunqLat, Session, Whom, sysfs};
use serde::Serialize;

use crate::{
    load::{Worker, pause},
    trials::config,
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
    /// BPF links that are left when the checker is gone, beyond those that were there before.
    links_left: usize,
}

fn links() -> usize {
    libbpf_rs::query::LinkInfoIter::default().count()
}

/// Runs `load` in front of a live checker, under a policy (with `params`) or under the kernel's own scheduler.
fn watch(config: Option<&Config>, seconds: u64, load: impl FnOnce() -> Result<Vec<Worker>>) -> Result<()> {
    let session = config.map(Session::start).transpose()?;
    let links_before = links();
    let workers = load()?;
    let mut checker = LiveChecker::load(PERSISTS)?;
    let (mut findings, start) = (Vec::new(), Instant::now());
    let mut sleep = |time| {
        thread::sleep(time);
        true
    };
    while start.elapsed() < Duration::from_secs(seconds) {
        thread::sleep(EVERY);
        findings.extend(checker.look(&mut sleep)?.map(|evidence| evidence.finding));
    }
    let counts = checker.counts;
    drop(checker);
    let report = WatchReport {
        counts,
        findings,
        pids: workers.iter().map(|worker| worker.pid().as_raw()).collect(),
        scheduler: sysfs::scheduler(),
        links_left: links().saturating_sub(links_before),
    };
    println!("{}", serde_json::to_string(&report)?);
    drop(workers);
    session.map_or(Ok(()), |session| Ok(session.check()?))
}

/// Two that turn on CPU 0 and may use CPU 1, which stays idle if nobody steals.
pub(crate) fn wasted(modules: &Path, policy: Option<&str>, behind_real_time: bool) -> Result<()> {
    let config = policy.map(|policy| config(modules, policy));
    watch(config.as_ref(), 4, || {
        let workers = vec![Worker::start("spin")?, Worker::start("spin")?];
        for worker in &workers {
            worker.pin(0)?;
        }
        pause(50);
        if behind_real_time {
            // It stays where it is, and so does whoever waits there under a policy that does not steal.
            workers[0].class(libc::SCHED_FIFO)?;
            workers[1].unpin()?;
        } else {
            workers.iter().try_for_each(Worker::unpin)?;
        }
        Ok(workers)
    })
}

/// Tasks of all kinds, more than there are CPUs.
pub(crate) fn busy(modules: &Path, policy: Option<&str>, seconds: u64) -> Result<()> {
    let config = policy.map(|policy| {
        // Without a call that goes wrong it is a FIFO with stealing.
        Config { params: if policy == "faulty" { "call=99".into() } else { String::new() }, ..config(modules, policy) }
    });
    watch(config.as_ref(), seconds, || {
        ["spin", "nap", "yield", "nap", "forks", "spin"].into_iter().map(Worker::start).collect()
    })
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
    let ours = RunqLat::start(&Whom { pid: Some(std::process::id()), name: Some("ekiden-trial".into()) })?;
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
