//! What a task has of a CPU that it shares with many others of another nice value.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use ekiden_loader::{Session, Status};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use serde::Serialize;

use crate::{
    bound::Bound,
    guest_tests::config,
    load::{Worker, stay_on_cpu_1},
};

#[derive(Serialize)]
struct DueReport {
    /// What the one task had, and all of them.
    had_ns: u64,
    all_ns: u64,
    seconds: f64,
    /// How many turns it had without its policy.
    turns: u64,
    /// Ticks that found a task of the policy running, since it came.
    ticks: u64,
    still_running: bool,
}

fn threads_of(others: &Worker) -> Result<Vec<Pid>> {
    let of = format!("/proc/{}/task", others.pid());
    let tids = fs::read_dir(&of).with_context(|| of.clone())?;
    tids.map(|entry| Ok(Pid::from_raw(entry?.file_name().to_string_lossy().parse()?))).collect()
}

fn ran_ns(thread: &Pid) -> Result<u64> {
    let path = format!("/proc/{thread}/schedstat");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).with_context(|| format!("{path}: {text}"))
}

/// One task beside this many others on a CPU: it is measured for this many seconds, after this many others.
pub(crate) fn due(
    modules: &Path,
    policy: &str,
    others: u32,
    nices: [i32; 2],
    seconds: [u32; 2],
    starved_after_ms: Option<u64>,
) -> Result<()> {
    let [before_s, measured_s] = seconds.map(|seconds| Duration::from_secs(seconds.into()));
    let session = Session::start(&config(modules, policy))?;
    let _bound = starved_after_ms.map(Bound::of_ms).transpose()?;
    stay_on_cpu_1()?;
    // With its first thread.
    let crowd = Worker::crowd(others.saturating_sub(1))?;
    let threads = threads_of(&crowd)?;
    let mut cpu_0 = CpuSet::new();
    cpu_0.set(0)?;
    for thread in &threads {
        sched_setaffinity(*thread, &cpu_0).context("cannot set the affinity of a thread")?;
        // SAFETY: plain system call on a thread of a child of ours.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, thread.as_raw() as libc::id_t, nices[0]) };
    }
    crowd.release()?;
    let one = Worker::start("spin")?;
    one.nice(nices[1]);
    one.pin(0)?;
    thread::sleep(before_s);
    let look = || -> Result<(u64, u64)> {
        let of_others = threads.iter().map(ran_ns).sum::<Result<u64>>()?;
        Ok((one.ran_ns(), of_others))
    };
    let (before, start) = (look()?, Instant::now());
    thread::sleep(measured_s);
    let after = look()?;
    let had_ns = after.0 - before.0;
    let counts = Status::read()?.unwrap_or_default().counts;
    let report = DueReport {
        had_ns,
        all_ns: had_ns + after.1 - before.1,
        seconds: start.elapsed().as_secs_f64(),
        turns: counts.turns,
        ticks: counts.ticks,
        still_running: session.is_running(),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(session.check()?)
}
