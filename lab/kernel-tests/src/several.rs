//! Several policies at once: each has its tasks, and one that goes wrong goes alone.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ekiden::{Call, CpuMask};
use ekiden_engine::Share;
use ekiden_guest_test::Panics;
use ekiden_loader::{Beside, Config, Inherit, LoadError, PolicyStatus, Session, Status, Who, choose};
use nix::sys::signal::{Signal, kill};
use serde::Serialize;

use crate::{
    guest_tests::config,
    load::{self, Worker, pause},
};

pub(crate) fn beside(modules: &Path, policy: &str, beside: Beside) -> Config {
    Config { beside, arena_bytes: 8 << 20, ..config(modules, policy) }
}

pub(crate) fn find(name: &str) -> Result<PolicyStatus> {
    Ok(Status::read()?.unwrap_or_default().find(Some(name))?.clone())
}

/// The names of the policies, in the order in which they are asked.
fn order() -> Result<Vec<String>> {
    let policies = Status::read()?.unwrap_or_default().policies;
    Ok(policies.into_iter().map(|policy| policy.policy).collect())
}

/// How many tasks a policy has as soon as it has had that many for a while, or after five seconds. A choice for a task has its effect
/// when that one next waits for a CPU; one may not have come yet, and another not have gone.
fn tasks_of(name: &str, expected: u64) -> Result<u64> {
    let now = || Ok::<_, anyhow::Error>(find(name)?.counts.tasks);
    let start = Instant::now();
    loop {
        let before = now()?;
        pause(50);
        let after = now()?;
        if (before, after) == (expected, expected) || start.elapsed() > Duration::from_secs(5) {
            return Ok(after);
        }
    }
}

#[derive(Serialize)]
struct BesideReport {
    order: Vec<String>,
    reordered: Vec<String>,
    /// Tasks of the second policy before it has any, with a worker and its child, and after they were given back.
    tasks: [u64; 3],
    /// What of CPU 0 a spinning task of the second policy gets beside one of the first, when it is asked last and first.
    share_asked_last: f64,
    share_asked_first: f64,
    /// The policies that are left when each has gone while its tasks ran.
    left: Vec<Vec<String>>,
    contract_violations: u64,
    last_contract_violation: Option<String>,
    unexpected_transitions: u64,
    tasks_in_all: u64,
    still_running: bool,
    /// Why it does not run any more, as one says that came second.
    taken_out: String,
}

/// How much of what two workers run is the first one's.
fn share(one: &Worker, other: &Worker) -> f64 {
    let before = (one.ran_ns(), other.ran_ns());
    pause(1500);
    let (one, other) = (one.ran_ns() - before.0, other.ran_ns() - before.1);
    one as f64 / (one + other).max(1) as f64
}

/// WFQ has the machine; a policy comes beside it and gets tasks; CFS comes and gets the rest; each is put first, and goes.
pub(crate) fn several(modules: &Path, policy: &str) -> Result<()> {
    let first = Session::start(&config(modules, "wfq"))?;
    let second = Session::start(&beside(modules, policy, Beside::Others))?;
    let in_order = order()?;
    let none = find(policy)?.counts.tasks;
    let slot = Some(second.slot());
    let (ours, theirs) = (Worker::start("spin")?, Worker::start("spin")?);
    for worker in [&ours, &theirs] {
        worker.pin(0)?;
    }
    choose(&Who::Process(ours.pid().as_raw()), slot, Inherit::Yes)?;
    // What this thread starts from now on is of the second policy, and what its children start.
    choose(&Who::Thread(0), slot, Inherit::Yes)?;
    let child = Worker::start("nap")?;
    choose(&Who::Thread(0), None, Inherit::No)?;
    let given = tasks_of(policy, 2)?;
    let share_asked_last = share(&ours, &theirs);
    second.control().reorder(&[second.slot(), first.slot()])?;
    let reordered = order()?;
    let share_asked_first = share(&ours, &theirs);
    for worker in [&ours, &theirs, &child] {
        worker.must_run()?;
    }
    choose(&Who::Process(ours.pid().as_raw()), None, Inherit::No)?;
    choose(&Who::Process(child.pid().as_raw()), None, Inherit::No)?;
    let taken_back = tasks_of(policy, 0)?;
    choose(&Who::Process(ours.pid().as_raw()), slot, Inherit::Yes)?;
    let mut left = Vec::new();
    // A third one takes the tasks for which no policy was chosen.
    let third = Session::start(&beside(modules, "cfs", Beside::OthersAsDefault))?;
    load::everything(&third)?;
    third.check()?;
    left.push(order()?);
    // The policy that came first goes, and with it the hold on the scheduler that it had.
    drop(first);
    third.check()?;
    left.push(order()?);
    for worker in [&ours, &theirs, &child] {
        worker.must_run()?;
    }
    load::everything(&third)?;
    third.check()?;
    let status = Status::read()?.unwrap_or_default();
    drop(second);
    left.push(order()?);
    for worker in [&ours, &theirs, &child] {
        worker.must_run()?;
    }
    let report = BesideReport {
        order: in_order,
        reordered,
        tasks: [none, given, taken_back],
        share_asked_last,
        share_asked_first,
        left,
        contract_violations: status.counts.contract_violations,
        last_contract_violation: status
            .policies
            .iter()
            .find_map(|policy| policy.counts.last_contract_violation.clone()),
        unexpected_transitions: status.counts.unexpected_transitions,
        tasks_in_all: status.counts.tasks,
        still_running: third.is_running(),
        taken_out: taken_out(&third)?,
    };
    ours.must_run()?;
    println!("{}", serde_json::to_string(&report)?);
    third.stop();
    Ok(())
}

/// What a session says after an administrator had the kernel take back all tasks, with the key that is there for it.
fn taken_out(session: &Session) -> Result<String> {
    fs::write("/proc/sysrq-trigger", "S")?;
    for _ in 0..100 {
        if let Err(error) = session.check() {
            return Ok(error.to_string());
        }
        pause(20);
    }
    bail!("the kernel keeps the policy")
}

#[derive(Serialize)]
struct SharesReport {
    /// What the first of two workers on one CPU gets, by the weights of their policies.
    weights: Vec<(u32, u32, f64)>,
    /// What the owner of a CPU gets of it beside another policy that is asked first elsewhere.
    share_of_owner: f64,
    /// On which CPUs workers that may run anywhere were seen: one of the policy that has CPU 1 alone, one of the other.
    seen_of_owner: BTreeSet<u32>,
    seen_of_other: BTreeSet<u32>,
    /// How the policy's share looks in the status.
    cpus: Option<String>,
    strict: bool,
    contract_violations: u64,
    unexpected_transitions: u64,
    still_running: bool,
}

/// FIFO comes beside WFQ, and they share CPUs out: by weights, by sets of CPUs, and by sets that are one's alone.
pub(crate) fn shares(modules: &Path) -> Result<()> {
    let first = Session::start(&config(modules, "wfq"))?;
    let second = Session::start(&beside(modules, "fifo", Beside::Others))?;
    let control = second.control();
    let (ours, theirs) = (Worker::start("spin")?, Worker::start("spin")?);
    choose(&Who::Process(ours.pid().as_raw()), Some(second.slot()), Inherit::Yes)?;
    for worker in [&ours, &theirs] {
        worker.pin(0)?;
    }
    let none = CpuMask::new();
    let mut weights = Vec::new();
    for (one, other) in [(300, 100), (100, 900), (50, 50)] {
        for (slot, weight) in [(second.slot(), one), (first.slot(), other)] {
            control.share(slot, &none, Share { weight, ..Share::default() })?;
        }
        pause(200);
        weights.push((one, other, share(&ours, &theirs)));
    }
    control.share(first.slot(), &none, Share::default())?;
    let refused = control.share(second.slot(), &CpuMask::single(9), Share { is_strict: true, weight: 0 });
    ensure!(refused.is_err(), "a set of CPUs that are not there was taken");
    // It is asked last, but for its own CPU, which another one has if it has nothing to run.
    control.share(second.slot(), &CpuMask::single(0), Share::default())?;
    pause(200);
    let share_of_owner = share(&ours, &theirs);
    kill(ours.pid(), Signal::SIGSTOP)?;
    theirs.must_run().context("on the CPU of a policy that has nothing to run")?;
    kill(ours.pid(), Signal::SIGCONT)?;
    // CPU 1 is its alone, and it has no other.
    control.share(second.slot(), &CpuMask::single(1), Share { is_strict: true, weight: 0 })?;
    let found = find("fifo")?;
    for worker in [&ours, &theirs] {
        worker.unpin()?;
    }
    pause(300);
    let (mut seen_of_owner, mut seen_of_other) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..100 {
        seen_of_owner.insert(ours.cpu()?);
        seen_of_other.insert(theirs.cpu()?);
        pause(7);
    }
    // Who may run nowhere else runs where it may.
    ours.pin(0)?;
    theirs.pin(1)?;
    for worker in [&ours, &theirs] {
        worker.must_run().context("where its policy has no CPU")?;
    }
    // A CPU whose owner has gone is any policy's.
    drop(second);
    ours.pin(1)?;
    theirs.pin(1)?;
    for worker in [&ours, &theirs] {
        worker.must_run().context("after the owner of the CPU has gone")?;
    }
    let status = Status::read()?.unwrap_or_default();
    let report = SharesReport {
        weights,
        share_of_owner,
        seen_of_owner,
        seen_of_other,
        cpus: found.cpus,
        strict: found.strict,
        contract_violations: status.counts.contract_violations,
        unexpected_transitions: status.counts.unexpected_transitions,
        still_running: first.is_running(),
    };
    println!("{}", serde_json::to_string(&report)?);
    first.stop();
    Ok(())
}

#[derive(Serialize)]
struct AloneReport {
    call: &'static str,
    is_default: bool,
    fault: String,
    /// From when the fault was seen until every worker had run.
    all_run_ms: u64,
    others: Vec<String>,
}

/// A policy beside WFQ goes wrong in each call. WFQ keeps running, and gets its tasks; the policy can come again.
pub(crate) fn alone(modules: &Path, panics: &Panics) -> Result<()> {
    let host = Session::start(&config(modules, "wfq"))?;
    let bystander = Worker::start("nap")?;
    for round in 0..panics.rounds {
        for call in panics.calls() {
            let is_default = (round + call as u32) % 2 == 1;
            let mut config =
                beside(modules, "faulty", if is_default { Beside::OthersAsDefault } else { Beside::Others });
            config.params = format!("call={} fault=0 after={}", call as u32, 1 + round % 3);
            let report = one_alone(&config, call, is_default, &host, &bystander)
                .with_context(|| format!("round {round}, {}", call.name()))?;
            println!("{}", serde_json::to_string(&report)?);
        }
    }
    ensure!(host.is_running(), "the other policy is gone too");
    host.stop();
    Ok(())
}

fn one_alone(config: &Config, call: Call, is_default: bool, host: &Session, bystander: &Worker) -> Result<AloneReport> {
    let start = Instant::now();
    let mut workers = Vec::new();
    let fault = match Session::start(config) {
        Ok(session) => {
            // It may be gone by then.
            if !is_default && choose(&Who::Thread(0), Some(session.slot()), Inherit::Yes).is_err() {
                ensure!(!session.is_running(), "no task can be given to it");
            }
            for what in ["nap", "yield", "spin"] {
                workers.push(Worker::start(what)?);
            }
            while session.is_running() && start.elapsed() < Duration::from_secs(20) {
                load::everything(&session)?;
            }
            match session.check() {
                Err(LoadError::TakenOutOfSeveral(fault)) => fault,
                Err(LoadError::TakenOut(_)) if call == Call::CpuOffline => bail!("everything was taken out"),
                other => bail!("it never went wrong: {other:?}"),
            }
        }
        // It may go wrong before `start` returns.
        Err(LoadError::TakenOutOfSeveral(fault) | LoadError::Refused(fault)) => fault,
        Err(error) => return Err(error.into()),
    };
    let seen = Instant::now();
    let before: Vec<u64> = workers.iter().map(Worker::ran_ns).collect();
    while workers.iter().zip(&before).any(|(worker, before)| worker.ran_ns() == *before) {
        ensure!(seen.elapsed() < Duration::from_secs(5), "a task does not run any more");
        pause(1);
    }
    let all_run_ms = seen.elapsed().as_millis() as u64;
    bystander.must_run()?;
    choose(&Who::Thread(0), None, Inherit::No)?;
    host.check()?;
    Ok(AloneReport { call: call.name(), is_default, fault, all_run_ms, others: order()? })
}

#[derive(Serialize)]
struct ClaimedReport {
    /// How often a task that sleeps for a millisecond each time did so, while CPU 1 was idle and CPU 0 busy.
    naps: u64,
    still_running: bool,
}

/// The kernel finds CPU 1 idle for tasks whose policy then sends them to CPU 0. It has to count as idle for others all the same.
pub(crate) fn claimed(modules: &Path) -> Result<()> {
    let first = Session::start(&config(modules, "fifo"))?;
    let huddles = Config { params: "fault=30".into(), ..beside(modules, "faulty", Beside::Others) };
    let second = Session::start(&huddles)?;
    let hog = Worker::start("spin")?;
    hog.pin(0)?;
    let huddled = Worker::start("nap")?;
    choose(&Who::Process(huddled.pid().as_raw()), Some(second.slot()), Inherit::Yes)?;
    let other = Worker::start("nap")?;
    pause(200);
    let before = naps(&other)?;
    // Meanwhile nothing happens on CPU 1, where we are.
    pause(2_000);
    let naps = naps(&other)? - before;
    let still_running = first.is_running() && second.is_running();
    println!("{}", serde_json::to_string(&ClaimedReport { naps, still_running })?);
    Ok(())
}

/// How often a worker has slept.
fn naps(worker: &Worker) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", worker.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).context("no count of switches")
}
