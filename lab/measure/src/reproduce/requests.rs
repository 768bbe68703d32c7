//! Requests to a simulated server: when they come, and, where marks in the trace say so, when each was served.

use std::collections::HashMap;

use anyhow::{Context, Result, anyhow};
use ekiden_sim::{SimReport, Simulation, What};
use ekiden_trace::Trace;
use ekiden_workload::{Workload, random::Random};
use serde::Serialize;

/// How long a client waits before each request that it sends until `lasts_ns`, if the time between two is `mean_ns` on average (exponentially)
/// and `own_ns` of it is what sending takes.
pub(super) fn waits_between(random: &mut Random, mean_ns: u64, own_ns: u64, lasts_ns: u64) -> Vec<u64> {
    let (mut at_ns, mut waits_ns) = (0, Vec::new());
    while at_ns < lasts_ns {
        let gap_ns = random.exponential(mean_ns);
        at_ns += gap_ns;
        waits_ns.push(gap_ns.saturating_sub(own_ns));
    }
    waits_ns
}

/// Runs a load with a trace. The policy must still run at the end.
pub(super) fn simulate(simulation: Simulation, load: &Workload, what: impl Fn() -> String) -> Result<SimReport> {
    let result = simulation.traced().run(load).with_context(&what)?;
    match &result.fault {
        Some(fault) => Err(anyhow!("{}: the policy was taken out: {fault}", what())),
        None => Ok(result),
    }
}

/// Prints a report, as JSON or in words.
pub(super) fn tell<R: Serialize>(report: &R, json: bool, describe: impl Fn(&R) -> String) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print!("{}", describe(report));
    }
    Ok(())
}

/// One that has been begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    pub(super) begin_ns: u64,
    /// `u64::MAX` while it is being served.
    pub(super) end_ns: u64,
    /// Who serves it, counted from 0, and how many that one had before.
    pub(super) worker: usize,
    pub(super) nth: usize,
}

/// All requests of a load whose first tasks send them, each with a mark, and whose other tasks mark when they begin with one and when they
/// have served it.
pub(super) struct Requests {
    /// When each came, in order.
    pub(super) arrivals_ns: Vec<u64>,
    /// The requests that were served, in the order in which they were begun.
    pub(super) served: Vec<Served>,
}

impl Requests {
    pub(super) fn of(trace: &Trace, senders: usize) -> Self {
        // PIDs are given in the order of the load's tasks.
        let mut first_pid = None;
        let mut arrivals_ns = Vec::new();
        let mut served = Vec::new();
        let mut begun: HashMap<usize, u64> = HashMap::new();
        let mut counts: HashMap<usize, usize> = HashMap::new();
        for record in trace.records() {
            if record.what == What::New {
                first_pid.get_or_insert(record.pid);
            }
            let Some(first_pid) = first_pid.filter(|_| record.what == What::Mark) else { continue };
            match ((record.pid - first_pid) as usize).checked_sub(senders) {
                None => arrivals_ns.push(record.time_ns),
                Some(worker) => match begun.remove(&worker) {
                    None => _ = begun.insert(worker, record.time_ns),
                    Some(begin_ns) => {
                        let count = counts.entry(worker).or_default();
                        served.push(Served { begin_ns, end_ns: record.time_ns, worker, nth: *count });
                        *count += 1;
                    }
                },
            }
        }
        // Requests that are still being served began as well; without them others would be taken for theirs.
        let nth = |worker| counts.get(&worker).copied().unwrap_or_default();
        let open = begun.into_iter();
        let open = open.map(|(worker, begin_ns)| Served { begin_ns, end_ns: u64::MAX, worker, nth: nth(worker) });
        served.extend(open);
        served.sort_unstable_by_key(|it| (it.begin_ns, it.end_ns));
        Self { arrivals_ns, served }
    }

    /// From its arrival until it was served, of each that came after `from_ns` and has been. They are served in the order in which they come:
    /// that which begins next is the one that came next.
    pub(super) fn times(&self, from_ns: u64) -> impl Iterator<Item = (u64, Served)> {
        let all = self.arrivals_ns.iter().zip(&self.served);
        let counts = move |(at_ns, it): &(&u64, &Served)| **at_ns >= from_ns && it.end_ns != u64::MAX;
        all.filter(counts).map(|(at_ns, it)| (it.end_ns - at_ns, *it))
    }
}

/// The time that `part` of all are no longer than, in microseconds.
pub(super) fn percentile_us(ns: impl Iterator<Item = u64>, part: f64) -> Option<f64> {
    let mut ns: Vec<u64> = ns.collect();
    ns.sort_unstable();
    ns.get(((ns.len() as f64 * part) as usize).min(ns.len().saturating_sub(1))).map(|ns| *ns as f64 / 1e3)
}
