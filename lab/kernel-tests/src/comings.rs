//! Policies that come beside others, are put in another order, get shares and leave, again and again under load: none of it is refused.

use std::path::Path;

use anyhow::{Context, Result};
use ekiden::CpuMask;
use ekiden_engine::Share;
use ekiden_loader::{Beside, Inherit, Session, Status, Who, choose};
use serde::Serialize;

use crate::{
    load::{Worker, be_anywhere},
    several::beside,
};

#[derive(Serialize)]
struct ComingsReport {
    /// How often each was done.
    comings: u32,
    orders: u32,
    shares: u32,
    departures: u32,
    contract_violations: u64,
    unexpected_transitions: u64,
    /// For how many of them all CPUs stood still, and for how many none did.
    stops: u64,
    graces: u64,
    /// For how long a CPU waited at most.
    wait_ns_max: u64,
    still_running: bool,
}

/// A refusal ends the guest test with its reason.
pub(crate) fn comings(modules: &Path, rounds: u32) -> Result<()> {
    be_anywhere()?;
    let first = Session::start(&beside(modules, "wfq", Beside::Nobody))?;
    let workers =
        ["spin", "spin", "yield", "nap", "nap"].into_iter().map(Worker::anywhere).collect::<Result<Vec<_>>>()?;
    let all = CpuMask::first_n(std::thread::available_parallelism()?.get() as u32);
    let mut report = ComingsReport {
        comings: 0,
        orders: 0,
        shares: 0,
        departures: 0,
        contract_violations: 0,
        unexpected_transitions: 0,
        stops: 0,
        graces: 0,
        wait_ns_max: 0,
        still_running: false,
    };
    let before = Status::read()?.unwrap_or_default().stops;
    for round in 0..rounds {
        let second = Session::start(&beside(modules, "fifo", Beside::Others)).with_context(|| format!("{round}"))?;
        report.comings += 1;
        let worker = &workers[round as usize % workers.len()];
        choose(&Who::Process(worker.pid().as_raw()), Some(second.slot()), Inherit::Yes)?;
        second.control().reorder(&[second.slot(), first.slot()]).with_context(|| format!("order {round}"))?;
        report.orders += 1;
        let share = Share { is_strict: false, weight: 1 + round % 100 };
        second.control().share(second.slot(), &all, share).with_context(|| format!("share {round}"))?;
        report.shares += 1;
        worker.must_run()?;
        second.check()?;
        // Its task goes back to the first.
        second.stop();
        report.departures += 1;
    }
    for worker in &workers {
        worker.must_run()?;
    }
    let status = Status::read()?.unwrap_or_default();
    report.contract_violations = status.counts.contract_violations;
    report.unexpected_transitions = status.counts.unexpected_transitions;
    report.stops = status.stops.quick + status.stops.slow - before.quick - before.slow;
    report.graces = status.stops.graces - before.graces;
    report.wait_ns_max = status.stops.wait_ns_max;
    report.still_running = first.is_running();
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
