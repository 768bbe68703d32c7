//! How exactly limits of CPU time hold, for few tasks and for very many, and what very many that have to wait cost.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ekiden_loader::{Config, Session, Status};
use serde::Serialize;

use crate::{
    groups::{Group, percent},
    guest_tests::config,
    load::{Worker, pause},
    storm::{measure_off_times, off_times},
};

/// What [`exact`] found of one limit.
#[derive(Serialize)]
struct ExactReport {
    tasks: u32,
    period_us: u64,
    /// The CPU time that the group of these tasks used, in percent of one CPU, and what it was to use.
    percent: f64,
    expected: f64,
    contract_violations: u64,
    unexpected_transitions: u64,
    still_running: bool,
}

/// Starts tasks that are about to spin, in a group without a limit.
fn crowd(tasks: u32) -> Result<(Worker, Group)> {
    let group = Group::top("limited")?;
    // Each has a stack, and one for signals, and room that is watched before both.
    std::fs::write("/proc/sys/vm/max_map_count", "1000000").context("there cannot be so many threads")?;
    // The task that starts the others spins, too.
    let hogs = Worker::crowd(tasks - 1)?;
    group.take(&hogs)?;
    Ok((hogs, group))
}

/// A group uses what it has at the beginning of a period: what is measured from when it is used up, for whole periods, has none twice.
fn begins_when_used_up(group: &Group, period: Duration) -> Result<()> {
    let (look, start) = (period / 20, Instant::now());
    let mut before = group.used_us()?;
    // In a period of some ticks that cannot be seen, and makes no difference.
    while look > Duration::from_millis(4) && start.elapsed() < 3 * period {
        std::thread::sleep(look);
        let used = group.used_us()?;
        if used == before {
            break;
        }
        before = used;
    }
    Ok(())
}

/// What a group of this many tasks uses that has a fifth of a CPU, in periods of all lengths. The kernel allows no quota below a millisecond: in a
/// period of that length it is a whole CPU. Each limit is looked at for this many `seconds` and one period.
pub(crate) fn exact(modules: &Path, policy: Option<&str>, tasks: &[u32], seconds: u64) -> Result<()> {
    let with_room = |policy| Session::start(&Config { max_tasks: 32_768, ..config(modules, policy) });
    let session = policy.map(with_room).transpose()?;
    for tasks in tasks.iter().copied() {
        let (hogs, group) = crowd(tasks)?;
        // Without a limit, thousands that begin at once keep the watchdog of sched_ext waiting.
        group.set("cpu.max", "1000 10000")?;
        hogs.release()?;
        pause(1_000 + u64::from(tasks) / 10);
        for period_us in [1_000, 100_000, 1_000_000_u64] {
            let (period, quota_us) = (Duration::from_micros(period_us), (period_us / 5).max(1_000));
            group.set("cpu.max", &format!("{quota_us} {period_us}"))?;
            std::thread::sleep(period + Duration::from_millis(tasks.into()));
            begins_when_used_up(&group, period)?;
            let used = group.percent_used(Duration::from_secs(seconds).max(period))?;
            let counts = Status::read()?.unwrap_or_default().counts;
            let report = ExactReport {
                tasks,
                period_us,
                percent: used,
                expected: percent(quota_us, period_us),
                contract_violations: counts.contract_violations,
                unexpected_transitions: counts.unexpected_transitions,
                still_running: session.as_ref().is_none_or(Session::is_running),
            };
            println!("{}", serde_json::to_string(&report)?);
        }
        drop((hogs, group));
    }
    session.map(Session::stop);
    Ok(())
}

/// What [`throttled`] found.
#[derive(Serialize)]
struct ThrottledReport {
    /// The tasks of `tasks` that waited for CPU time of their group at once.
    throttled: u64,
    /// How long it took to start them, and from then on until this many waited.
    started_ms: u64,
    throttled_ms: u64,
    percent: f64,
    /// How long interrupts were off at most, in nanoseconds of the guest, by the kind of event.
    off_ns_max: BTreeMap<String, u64>,
    /// Whether the policy lives through what comes after the limit, too: all of them want the CPU.
    lives_on: bool,
}

/// How long an interrupt takes if this many tasks are throttled, and released again and again: they have a tenth of a CPU.
pub(crate) fn throttled(modules: &Path, tasks: u32, seconds: u64) -> Result<()> {
    let session = Session::start(&Config { max_tasks: 32_768, ..config(modules, "wfq") })?;
    let begin = Instant::now();
    let (hogs, group) = crowd(tasks)?;
    let started_ms = begin.elapsed().as_millis() as u64;
    measure_off_times()?;
    group.set("cpu.max", "1000 10000")?;
    // Each comes to user mode first, and owes that.
    hogs.release()?;
    let (mut throttled, start) = (0, Instant::now());
    while throttled < u64::from(tasks) * 9 / 10 {
        ensure!(start.elapsed() < Duration::from_secs(300), "{throttled} tasks wait for CPU time of their group");
        pause(10);
        throttled = throttled.max(Status::read()?.context("no status")?.throttled);
    }
    let throttled_ms = start.elapsed().as_millis() as u64;
    let percent = group.percent_used(Duration::from_secs(seconds))?;
    session.check()?;
    // All are released in another way.
    group.set("cpu.max", "max")?;
    pause(1_000);
    let status = Status::read()?.context("no status")?;
    let report = ThrottledReport {
        throttled,
        started_ms,
        throttled_ms,
        percent,
        off_ns_max: off_times(&status),
        lives_on: session.is_running(),
    };
    println!("{}", serde_json::to_string(&report)?);
    drop((hogs, group));
    session.stop();
    Ok(())
}
