//! What both sides showed, side by side.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use ekiden::Topology;
use ekiden_bench::{number, table};
use ekiden_sim::{Machine, Model};
use ekiden_trace::Trace;
use serde::Serialize;

use super::{
    calibrate, loads,
    measure::{Measured, Run, Shown, keep_trace},
};
use crate::{markdown, policies};

/// How far a figure may be off.
const LIMIT: f64 = 0.15;

/// How many simulations the medians are of, and by how many thousandths work varies in them. Where a task ends just
/// before another wakes up, one simulation shows one case, and one measurement another.
const SEEDS: u64 = 9;
const WORK_PERMILLE: u32 = 10;

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
    /// Empty if the policy was taken out.
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
    pub(super) fn of(
        measured: &Measured,
        model: impl Fn(&str) -> Result<Model>,
        traces: Option<&Path>,
    ) -> Result<Self> {
        let row = |run: &Run| -> Result<Row> {
            let Run { policy, load, shown } = run.clone();
            let Some(real) = Shown::median(&shown) else {
                return Ok(Row { policy, load, figures: Vec::new(), others: 0.0 });
            };
            let mut model = model(&policy)?;
            model.jitter.work_permille = WORK_PERMILLE;
            let mut all = Vec::new();
            for seed in 1..=SEEDS {
                let (simulated, trace) = simulate(measured, &policy, &load, model.clone(), seed)?;
                all.push(simulated);
                if let Some(directory) = traces.filter(|_| seed == SEEDS) {
                    keep_trace(&trace, directory, "simulated", &policy, &load)?;
                }
            }
            let simulated = Shown::median(&all).context("nothing was simulated")?;
            let others = real.others_ns as f64 / real.done_ns.max(1) as f64;
            Ok(Row { policy, load, figures: figures(&real, &simulated), others })
        };
        // What costs are found by says nothing of how far off the simulator is.
        let by = calibrate::loads();
        let compared = measured.runs.iter().filter(|run| !by.contains(&run.load));
        let rows = compared.map(row).collect::<Result<Vec<Row>>>()?;
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

impl Comparison {
    /// Puts the table into a document, between two lines that mark its place; a document without them gets it at its end.
    pub(super) fn write_into(&self, path: &Path) -> Result<()> {
        markdown::write_into(path, "ekiden fidelity", &self.to_markdown())
    }

    /// A row a load and policy; each cell has the real figure, the simulated one, and by how much that is off.
    fn to_markdown(&self) -> String {
        let names = self.rows.iter().find_map(|row| (!row.figures.is_empty()).then_some(&row.figures));
        let names: Vec<&str> = names.into_iter().flatten().map(|figure| figure.name).collect();
        let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let heading = ["load", "policy"].into_iter().chain(names.iter().copied()).map(str::to_owned);
        let mut text = row(heading.collect()) + &row(vec!["---".to_owned(); names.len() + 2]);
        for Row { policy, load, figures, .. } in &self.rows {
            let cell = |figure: &Compared| {
                let off = match figure.met {
                    true if figure.off.abs() > LIMIT => "few".to_owned(),
                    true => format!("{:+.0} %", 100.0 * figure.off),
                    false => format!("**{:+.0} %**", 100.0 * figure.off),
                };
                format!("{} → {} ({off})", short(figure.real), short(figure.simulated))
            };
            let cells = [format!("`{load}`"), policy.clone()].into_iter().chain(figures.iter().map(cell));
            text += &row(cells.collect());
        }
        let Self { kernel, cpus, within, figures, .. } = self;
        format!(
            "Linux {kernel}, {cpus} CPUs: {within} of {figures} figures within {:.0} %.\n\n{text}",
            100.0 * self.limit
        )
    }
}

/// A number in a narrow column.
fn short(value: f64) -> String {
    if value != 0.0 && value < 100.0 { format!("{value:.1}") } else { number(value.round()).replace(".000", "") }
}

/// Copies what the guest wrote.
pub(crate) fn copy_traces(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("cannot copy the traces to {}", to.display());
    fs::create_dir_all(to).with_context(failed)?;
    for entry in fs::read_dir(from).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        fs::copy(&path, to.join(path.file_name().unwrap_or_default())).with_context(failed)?;
    }
    Ok(())
}

/// Runs the load on the simulated machine, and returns its trace, too.
pub(super) fn simulate(
    measured: &Measured,
    policy: &str,
    load: &str,
    model: Model,
    seed: u64,
) -> Result<(Shown, Trace)> {
    let mut topology = measured.machine.topology().context("what was measured names no machine")?;
    if measured.counts {
        // All CPUs of an emulated machine are one thread of the host, so that they share what it can do.
        topology = Topology::regular(1, 1, 1, topology.nr_cpus());
    }
    let workload = loads::find(load, topology.nr_cpus())?;
    let machine = Machine::new(topology).with_model(model);
    let simulation = policies::simulate(policy, machine, "")
        .with_context(|| format!("there is no policy `{policy}` in the simulator; leave it out with --policy"))?;
    let result = simulation.seed(seed).traced().run(&workload)?;
    Ok((Shown::of(&result.report, &result.trace, 0), result.trace))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(done_ns: u64, wait_ns: u64) -> Shown {
        Shown { done_ns, wait_p50_ns: wait_ns, ..Shown::default() }
    }

    #[test]
    fn a_figure_is_off_by_its_part_of_the_real_one() {
        let figures = figures(&shown(1_000_000, 100_000), &shown(1_250_000, 110_000));
        let of = |name: &str| figures.iter().find(|figure| figure.name == name).unwrap();
        assert!((of("throughput, 1/s").off + 0.2).abs() < 1e-9 && !of("throughput, 1/s").met);
        assert!((of("wait p50, us").off - 0.1).abs() < 1e-9 && of("wait p50, us").met);
    }

    #[test]
    fn what_is_too_small_for_percentages_is_judged_by_its_size() {
        let off = |real_ns, simulated_ns| figures(&shown(1, real_ns), &shown(1, simulated_ns))[4].met;
        assert!(off(1_000, 3_000));
        assert!(!off(1_000, 3_100));
    }
}
