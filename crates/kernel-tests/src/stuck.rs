//! Trials of policies that do not come back from a call.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use ekiden::Call;
use ekiden_loader::{LoadError, Session, Status, sysfs};
use serde::Serialize;

use crate::{
    load::{Worker, pause},
    trials::config,
};

#[derive(Serialize)]
struct StuckReport<'a> {
    /// Parameter `fault`, and the call in which it does so.
    way: u64,
    call: &'a str,
    round: u32,
    cpus: usize,
    fault: String,
    /// From when the policy was in place until it was gone, and from then until every task had run.
    gone_ms: u64,
    back_in_ms: u64,
}

/// The ways, and the calls, another one of which belongs to each in each round: with the run queue locked and without, in the middle of a wake-up and in an interrupt.
const WAYS: [u64; 4] = [6, 7, 8, 9];
const CALLS: [Call; 5] = [Call::PickNextTask, Call::TaskWakeup, Call::Timer, Call::TaskTick, Call::SelectTaskRq];

/// The policy must go with the place as its reason, every task must go on, and the policy can be loaded again.
pub(crate) fn stuck(modules: &Path, rounds: u32) -> Result<()> {
    let cpus = std::thread::available_parallelism()?.get();
    // Whoever naps is woken on other CPUs, which then want the run-queue lock of the one that is stuck.
    let kinds = ["spin", "nap", "nap", "yield"].into_iter().cycle().take(3 * cpus);
    let workers: Vec<Worker> = kinds.map(Worker::anywhere).collect::<Result<_>>()?;
    for (round, way, index) in
        (0..rounds).flat_map(|round| WAYS.iter().enumerate().map(move |(index, way)| (round, *way, index)))
    {
        // With one CPU there is none to choose.
        let calls = if cpus == 1 { &CALLS[..4] } else { &CALLS[..] };
        let call = calls[(round as usize + index) % calls.len()];
        let (fault, gone_ms) = one(modules, way, call, round)?;
        let start = Instant::now();
        ensure!(sysfs::state().as_deref() == Some("disabled"), "{}: the policy is still there", call.name());
        for worker in &workers {
            worker.must_run()?;
        }
        let back_in_ms = start.elapsed().as_millis() as u64;
        let report = StuckReport { way, call: call.name(), round, cpus, fault, gone_ms, back_in_ms };
        println!("{}", serde_json::to_string(&report)?);
    }
    Ok(())
}

/// Runs the policy until it goes wrong: the reason that the kernel half kept, and when it was gone.
fn one(modules: &Path, way: u64, call: Call, round: u32) -> Result<(String, u64)> {
    let mut config = config(modules, "faulty");
    config.params = format!("call={} fault={way} after={}", call as u32, 1 + 20 * (round % 3));
    config.arena_bytes = 4 << 20;
    let start = Instant::now();
    match Session::start(&config) {
        Ok(session) => {
            while session.is_running() {
                ensure!(start.elapsed() < Duration::from_secs(30), "{} never came", call.name());
                pause(1);
            }
        }
        // It may go wrong before `start` returns, because the machine's tasks come at once.
        Err(LoadError::ThrownOut(_) | LoadError::Bpf { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let gone_ms = start.elapsed().as_millis() as u64;
    while sysfs::state().as_deref() != Some("disabled") && start.elapsed() < Duration::from_secs(40) {
        pause(1);
    }
    match Status::read()?.unwrap_or_default().fault {
        Some(fault) => Ok((fault, gone_ms)),
        None => bail!("{} went without a reason", call.name()),
    }
}
