//! Policies that take over from each other in an agent while the machine is busy.

use std::{
    fs::File,
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use ekiden::{Call, Scheduler};
use ekiden_agent::{Agent, Config, Next};
use ekiden_linked::{ALL, Linked, find, make_next};
use ekiden_loader::{Drain, LoadError, Moved, sysfs};
use ekiden_test_policies::{Fault, Faulty};
use serde::Serialize;

use crate::load::{Worker, pause};

/// More than the calls of some seconds.
const CALL_LOG_RECORDS: u64 = 1 << 18;

#[derive(Serialize)]
struct TookOver {
    upgrades: u64,
    /// How often one took over the state of the one before.
    with_state: u64,
    /// The most tasks that one took over.
    tasks_max: u64,
    wait_us_max: f64,
    was_scheduler: bool,
    records_lost: u64,
}

fn next(linked: &Linked, params: &str, start_over: bool) -> Next {
    Next { policy: linked.name.to_owned(), params: params.to_owned(), start_over }
}

/// Each policy takes over from another one, and then from itself, as often as that.
pub(crate) fn upgrades(rounds: usize, recording: &Path) -> Result<()> {
    let first = find("fifo").context("no fifo")?;
    let config = Config { call_log_records: CALL_LOG_RECORDS, ..Config::new(first.name) };
    let agent = Agent::start(&config, first.make)?;
    let call_log = agent.call_log()?.context("there is no call log")?;
    let drain =
        Drain::of(call_log, &agent.header("agent-upgrades")?, File::create(recording)?, agent.tells_instances())?;
    let mut messaging = messaging()?;
    let workers: Vec<Worker> =
        ["spin", "spin", "yield", "nap", "nap", "forks"].into_iter().map(Worker::start).collect::<Result<_>>()?;
    let (mut with_state, mut tasks_max, mut wait_ns_max) = (0, 0, 0);
    for round in 0..rounds {
        let linked = &ALL[(1 + round / 2) % ALL.len()];
        let (is_same, start_over) = (round % 2 == 1, round % 6 == 5);
        let before = agent.instance().policy;
        let done = agent
            .upgrade(&next(linked, "", start_over), linked.make_next)
            .with_context(|| format!("round {round}, from {before} to {}", linked.name))?;
        let expected = if is_same && !start_over { Moved::ByPointer } else { Moved::StartedOver };
        ensure!(done.moved == expected, "round {round}, from {before} to {}: {done:?}", linked.name);
        with_state += u64::from(done.moved == Moved::ByPointer);
        (tasks_max, wait_ns_max) = (done.tasks.max(tasks_max), done.wait_ns.max(wait_ns_max));
        pause(5);
        agent.check().with_context(|| format!("after round {round}, under {}", linked.name))?;
    }
    refused(&agent)?;
    workers.iter().try_for_each(Worker::must_run)?;
    agent.check()?;
    let status = agent.status()?;
    let [policy] = &status.policies[..] else { bail!("{status:?}") };
    ensure!(policy.policy == agent.instance().policy && status.counts.picks > 100, "{status:?}");
    ensure!(policy.upgrade_wait_ns_max == wait_ns_max && status.counts.contract_violations == 0, "{status:?}");
    let (upgrades, was_scheduler) = (policy.upgrades, agent.is_running());
    // It says itself if it came to no end, or another scheduler had it.
    ensure!(messaging.wait()?.success(), "messaging has failed");
    agent.check()?;
    drop(agent);
    let (records_lost, wait_us_max) = (drain.stop()?.lost, wait_ns_max as f64 / 1e3);
    let report = TookOver { upgrades, with_state, tasks_max, wait_us_max, was_scheduler, records_lost };
    println!("{}", serde_json::to_string(&report)?);
    upgrade_to_one_that_panics()
}

fn messaging() -> Result<Child> {
    let mut command = Command::new("ekiden-load");
    command.args(["messaging", "--groups", "2", "--loops", "60"]).stdout(Stdio::null());
    command.spawn().context("cannot run ekiden-load")
}

/// What is refused leaves the old policy where it is.
fn refused(agent: &Agent) -> Result<()> {
    let before = agent.instance();
    let wfq = find("wfq").context("no wfq")?;
    match agent.upgrade(&next(wfq, "period_us=0", false), wfq.make_next) {
        Err(LoadError::Refused(reason)) if reason.contains("period_us") => {}
        other => bail!("a parameter out of range: {other:?}"),
    }
    ensure!(agent.instance() == before, "{:?} has taken over from {before:?}", agent.instance());
    agent.check().context("after what was refused")
}

/// A policy that panics with the first task that it is told of ends the agent, and the kernel's own scheduler has all tasks.
fn upgrade_to_one_that_panics() -> Result<()> {
    let fifo = find("fifo").context("no fifo")?;
    let agent = Agent::start(&Config::new(fifo.name), fifo.make)?;
    let workers: Vec<Worker> = ["spin", "spin", "spin", "nap"].map(Worker::start).into_iter().collect::<Result<_>>()?;
    pause(50);
    let params = format!("call={} fault={} after=1", Call::TaskNew as u32, Fault::Panic as u32);
    let next = Next { policy: Faulty::NAME.to_owned(), params, start_over: false };
    let reason = match agent.upgrade(&next, make_next::<Faulty>) {
        Err(LoadError::TakenOut(reason)) => reason,
        other => bail!("it should have been taken out: {other:?}"),
    };
    drop(agent);
    workers.iter().try_for_each(Worker::must_run)?;
    println!("{}", serde_json::json!({ "reason": reason, "state": sysfs::state() }));
    Ok(())
}
