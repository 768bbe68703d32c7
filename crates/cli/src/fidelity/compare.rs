//! What both sides showed, side by side.

use anyhow::{Context, Result};
use ekiden::Topology;
use ekiden_bench::{number, table};
use ekiden_sim::{Machine, Model};
use serde::Serialize;

use super::{
    loads,
    measure::{Measured, Run, Shown},
};
use crate::policies;

/// How far a figure may be off.
const LIMIT: f64 = 0.15;

/// Below this, a count is too small for percentages: it may be off by as much.
const FEW: f64 = 20.0;

/// Waits shorter than this are differences of some instructions.
const SHORT_NS: f64 = 2_000.0;

/// One figure of both sides.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Compared {
    pub(super) name: &'static str,
    pub(super) real: f64,
    pub(super) simulated: f64,
    /// By how much of the real one the simulated one is greater.
    pub(super) off: f64,
    pub(super) met: bool,
}

/// One load under one policy.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) policy: String,
    pub(super) load: String,
    /// Empty if the policy was thrown out.
    pub(super) figures: Vec<Compared>,
    /// What other tasks took of the real machine meanwhile, as a part of one CPU.
    pub(super) others: f64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Comparison {
    kernel: String,
    counts_instructions: bool,
    cpus: u32,
    limit: f64,
    pub(super) rows: Vec<Row>,
    pub(super) all_stayed: bool,
    /// Figures that are within the limit, and all of them.
    within: usize,
    figures: usize,
    pub(super) passed: bool,
}

impl Comparison {
    pub(super) fn of(measured: &Measured, model: impl Fn(&str) -> Result<Model>) -> Result<Self> {
        let row = |run: &Run| -> Result<Row> {
            let Run { policy, load, shown } = run.clone();
            let Some(real) = shown else { return Ok(Row { policy, load, figures: Vec::new(), others: 0.0 }) };
            let simulated = simulate(measured, &policy, &load, model(&policy)?)?;
            let others = real.others_ns as f64 / real.done_ns.max(1) as f64;
            Ok(Row { policy, load, figures: figures(&real, &simulated), others })
        };
        let rows = measured.runs.iter().map(row).collect::<Result<Vec<Row>>>()?;
        let all = || rows.iter().flat_map(|row| &row.figures);
        let (figures, within) = (all().count(), all().filter(|figure| figure.met).count());
        Ok(Self {
            kernel: measured.kernel.clone(),
            counts_instructions: measured.counts,
            cpus: measured.machine.nr_cpus(),
            limit: LIMIT,
            all_stayed: measured.all_stayed(),
            within,
            figures,
            passed: within == figures,
            rows,
        })
    }

    pub(super) fn to_text(&self) -> String {
        let heading = ["load", "policy", "figure", "real", "simulated", "off", ""];
        let lines = self.rows.iter().flat_map(|row| {
            row.figures.iter().enumerate().map(|(place, figure)| {
                let (load, policy) =
                    if place == 0 { (row.load.clone(), row.policy.clone()) } else { Default::default() };
                let verdict = if figure.met { "" } else { "OFF" };
                let off = format!("{:+.1} %", 100.0 * figure.off);
                [load, policy, figure.name.into(), number(figure.real), number(figure.simulated), off, verdict.into()]
            })
        });
        let unit = if self.counts_instructions { "a nanosecond is an instruction" } else { "real time" };
        format!(
            "{}\nLinux {}, {} CPUs, {unit}: {} of {} figures within {:.0} %",
            table(&heading, lines),
            self.kernel,
            self.cpus,
            self.within,
            self.figures,
            100.0 * self.limit
        )
    }
}

/// The same on the simulated machine.
pub(super) fn simulate(measured: &Measured, policy: &str, load: &str, model: Model) -> Result<Shown> {
    let mut topology = measured.machine.topology().context("what was measured names no machine")?;
    if measured.counts {
        // All CPUs of an emulated machine are one thread of the host, so that they share what it can do.
        topology = Topology::regular(1, 1, 1, topology.nr_cpus());
    }
    let workload = loads::find(load, topology.nr_cpus())?;
    let machine = Machine::new(topology).with_model(model);
    let simulation = policies::simulate(policy, machine, "")
        .with_context(|| format!("there is no policy `{policy}` in the simulator; leave it out with --policy"))?;
    let result = simulation.traced().run(&workload)?;
    Ok(Shown::of(&result.report, &result.trace, 0))
}

fn figures(real: &Shown, simulated: &Shown) -> Vec<Compared> {
    let compare = |name, real: f64, simulated: f64, least: f64| {
        let off = if real == simulated { 0.0 } else { (simulated - real) / real.max(least / 100.0) };
        let met = off.abs() <= LIMIT || (simulated - real).abs() <= least;
        Compared { name, real, simulated, off, met }
    };
    let per_s = |shown: &Shown| 1e9 / shown.done_ns.max(1) as f64;
    vec![
        compare("throughput, 1/s", per_s(real), per_s(simulated), 0.0),
        compare("switches", real.switches as f64, simulated.switches as f64, FEW),
        compare("migrations", real.migrations as f64, simulated.migrations as f64, FEW),
        compare("wait mean, us", real.wait_mean_ns / 1e3, simulated.wait_mean_ns / 1e3, SHORT_NS / 1e3),
        compare("wait p50, us", us(real.wait_p50_ns), us(simulated.wait_p50_ns), SHORT_NS / 1e3),
        compare("wait p90, us", us(real.wait_p90_ns), us(simulated.wait_p90_ns), SHORT_NS / 1e3),
        compare("wait p99, us", us(real.wait_p99_ns), us(simulated.wait_p99_ns), SHORT_NS / 1e3),
    ]
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}
