//! Policies that come beside others, are put in another order, get shares and leave, again and again under load: none of it is refused.

use std::{
    collections::BTreeMap,
    mem,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use ekiden::CpuMask;
use ekiden_engine::Share;
use ekiden_loader::{Beside, Inherit, Session, Status, Who, choose};
use serde::Serialize;

use crate::{
    load::{Worker, be_anywhere, pause},
    several::beside,
    storm::{measure_off_times, off_times},
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
    /// How long it took at most until all CPUs had seen one of them, and until a policy had gone, with all of its tasks.
    grace_ns_max: u64,
    departure_ms_max: u64,
    /// How many tasks the policy has that is left, and how many there are.
    tasks: u64,
    tasks_in_all: u64,
    off_ns_max: BTreeMap<String, u64>,
    still_running: bool,
}

/// How many tasks the policies have, and how many there are: the same after a while, as they come and go.
fn tasks() -> Result<(u64, u64)> {
    let start = Instant::now();
    loop {
        let status = Status::read()?.unwrap_or_default();
        let of_policies = status.policies.iter().map(|policy| policy.counts.tasks).sum();
        if of_policies == status.counts.tasks || start.elapsed() > Duration::from_secs(5) {
            return Ok((of_policies, status.counts.tasks));
        }
        pause(50);
    }
}

/// A refusal ends the guest test with its reason. Every other policy that comes gets all tasks; of four departures, two are those of the policy
/// that was there before, whose policy slot is the next one's.
pub(crate) fn comings(modules: &Path, rounds: u32) -> Result<()> {
    be_anywhere()?;
    let mut names = ["wfq", "fifo"];
    let mut first = Session::start(&beside(modules, names[0], Beside::Nobody))?;
    let workers = ["spin", "spin", "yield", "nap", "nap", "forks"];
    let workers = workers.into_iter().map(Worker::anywhere).collect::<Result<Vec<_>>>()?;
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
        grace_ns_max: 0,
        departure_ms_max: 0,
        tasks: 0,
        tasks_in_all: 0,
        off_ns_max: BTreeMap::new(),
        still_running: false,
    };
    measure_off_times()?;
    let before = Status::read()?.unwrap_or_default().stops;
    for round in 0..rounds {
        let way = if round % 2 == 0 { Beside::Others } else { Beside::OthersAsDefault };
        let mut second = Session::start(&beside(modules, names[1], way)).with_context(|| format!("{round}"))?;
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
        if round % 4 > 1 {
            mem::swap(&mut first, &mut second);
            names.reverse();
        }
        // Its tasks go to the one that stays.
        let start = Instant::now();
        second.stop();
        report.departure_ms_max = report.departure_ms_max.max(start.elapsed().as_millis() as u64);
        report.departures += 1;
        for worker in &workers {
            worker.must_run().with_context(|| format!("after departure {round}"))?;
        }
    }
    (report.tasks, report.tasks_in_all) = tasks()?;
    let status = Status::read()?.unwrap_or_default();
    report.contract_violations = status.counts.contract_violations;
    report.unexpected_transitions = status.counts.unexpected_transitions;
    report.stops = status.stops.quick + status.stops.slow - before.quick - before.slow;
    report.graces = status.stops.graces - before.graces;
    report.grace_ns_max = status.stops.grace_ns_max;
    report.off_ns_max = off_times(&status);
    report.still_running = first.is_running();
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
