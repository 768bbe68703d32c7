//! Parameters of a task: the policy looks at them first, and then goes by them.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use ekiden_loader::{Beside, ChooseOptions, Inherit, LoadError, Session, Status, Who, choose};
use nix::sys::signal::{Signal, kill};
use serde::Serialize;

use crate::{
    guest_tests::config,
    load::{Worker, pause},
    several::beside,
    storm::{measure_off_times, off_times},
};

#[derive(Serialize)]
struct TaskParamsReport {
    /// Why a slice that is too short, a parameter that is not there, and any parameter of FIFO's, are not set.
    refusals: Vec<String>,
    /// How often two tasks that share a CPU have it in turn: with a short slice, with a long one, and with the usual one, which
    /// is set after the others.
    turns: Vec<u64>,
    contract_violations: u64,
    off_ns_max: BTreeMap<String, u64>,
    still_running: bool,
}

fn set(worker: &Worker, slot: u32, params: &str) -> Result<usize, LoadError> {
    choose(&Who::Process(worker.pid().as_raw()), Some(slot), ChooseOptions { inherit: Inherit::Yes, params })
}

/// How often the task has come to run.
fn turns(worker: &Worker) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/schedstat", worker.pid()))?;
    stat.split_whitespace().nth(2).and_then(|turns| turns.parse().ok()).context("no turns in /proc/PID/schedstat")
}

/// New parameters count from the next time that the task wakes up.
fn sleep_and_wake(hog: &Worker) -> Result<()> {
    kill(hog.pid(), Signal::SIGSTOP)?;
    // It has to come to run for that.
    while !fs::read_to_string(format!("/proc/{}/stat", hog.pid()))?.contains(") T ") {
        pause(1);
    }
    kill(hog.pid(), Signal::SIGCONT).context("cannot let a worker go on")
}

/// EEVDF has the machine, and FIFO is beside it.
pub(crate) fn task_params(modules: &Path) -> Result<()> {
    let session = Session::start(&config(modules, "eevdf"))?;
    let beside = Session::start(&beside(modules, "fifo", Beside::Others))?;
    measure_off_times()?;
    let hogs = [Worker::start("spin")?, Worker::start("spin")?];
    hogs.iter().try_for_each(|hog| hog.pin(0))?;
    let mut refusals = Vec::new();
    for (slot, params) in
        [(session.slot(), "slice_us=99"), (session.slot(), "colour=3"), (beside.slot(), "slice_us=300")]
    {
        let refusal = set(&hogs[0], slot, params).err().with_context(|| format!("{params} was taken"))?;
        refusals.push(refusal.to_string());
    }
    let mut all_turns = Vec::new();
    for params in ["slice_us=2000", "slice_us=100000", ""] {
        for hog in &hogs {
            set(hog, session.slot(), params)?;
            sleep_and_wake(hog)?;
        }
        pause(100);
        let before = turns(&hogs[0])?;
        pause(2000);
        all_turns.push(turns(&hogs[0])? - before);
    }
    hogs.iter().try_for_each(Worker::must_run)?;
    let status = Status::read()?.unwrap_or_default();
    let report = TaskParamsReport {
        refusals,
        turns: all_turns,
        contract_violations: status.counts.contract_violations,
        off_ns_max: off_times(&status),
        still_running: session.is_running(),
    };
    println!("{}", serde_json::to_string(&report)?);
    beside.stop();
    session.stop();
    Ok(())
}
