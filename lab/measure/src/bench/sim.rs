//! `ekiden bench sim`: how fast the simulator is, and how that changes with the size of machine and load.

use std::{fs, process::ExitCode, time::Instant};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use ekiden_bench::{Judged, Limit, Summary, number, table};
use ekiden_sim::Machine;
use ekiden_workload::loads;
use serde::Serialize;

use super::{Output, Verdict};
use crate::{
    own::{AsRoot, Needs},
    policies,
    progress::Progress,
};

/// Events of one measurement, at least.
const EVENTS: u64 = 1_000_000;

/// Wake-ups of each task, at least, so that what it takes to make the tasks is not what is measured.
const ROUNDS: u64 = 40;

/// How many measurements; their median counts.
const TRIES: usize = 5;

/// The policy whose decisions take much more than queueing, which has a limit of its own.
const ELABORATE: &str = "eevdf";
const PLAIN: &str = "fifo";

/// Nodes of each machine.
const NODES: u32 = 4;

/// Tasks of the widest machine.
const CROWD: u32 = 16_384;

/// The most tasks, for the memory that they take.
const MANY: u32 = 1_000_000;

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Tasks wake up periodically, each with a period of its own, and fill half of a
machine of four nodes; a switch to a task and a wake-up are an event each. It
runs on one CPU of this machine, in real time, so nothing else should run beside
it. The median of five measurements counts. How an event's cost grows with the
machine is judged for a load that grows with it, from 32 to 16,384 tasks, and
for one of 16,384 tasks on either machine. The limits are those of fifo, and one
of eevdf.
Examples:
  ekiden bench sim
  ekiden bench sim -p fifo --json
  ekiden bench sim --check        exits with 116 if a limit is missed")]
pub(crate) struct SimBench {
    /// The policy
    #[arg(short, long, default_value = PLAIN)]
    policy: String,
    #[command(flatten)]
    as_root: AsRoot,
    #[command(flatten)]
    output: Output,
}

/// A machine with a load.
#[derive(Clone, Copy, Debug, Serialize)]
struct Size {
    cpus: u32,
    tasks: u32,
}

#[derive(Serialize)]
struct Row {
    policy: String,
    #[serde(flatten)]
    size: Size,
    /// How the trace was used.
    trace: &'static str,
    events: u64,
    events_per_s: f64,
    ns_per_event: f64,
}

#[derive(Serialize)]
struct Report {
    policy: String,
    rows: Vec<Row>,
    limits: Vec<Judged>,
    passed: bool,
}

const SMALL: Size = Size { cpus: 8, tasks: 32 };
const MIDDLE: Size = Size { cpus: 64, tasks: 1_000 };
const LARGE: Size = Size { cpus: 256, tasks: 10_000 };

impl SimBench {
    /// The policies that have to be in this process.
    pub(crate) fn needs(&self) -> Needs {
        Needs::of([&self.policy], self.as_root)
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut progress = Progress::new();
        let mut rows = Vec::new();
        let mut measure = |policy: &str, size: Size, trace: &'static str| -> Result<f64> {
            progress.step(format!("{policy}, {} CPUs, {} tasks, trace: {trace}", size.cpus, size.tasks));
            let row = measure(policy, size, trace)?;
            let ns_per_event = row.ns_per_event;
            rows.push(row);
            Ok(ns_per_event)
        };
        let mut limits = Vec::new();
        let mut judge = |name, figure, at_most| limits.push(Limit { name, at_most }.judge(Some(figure)));
        let policy = &self.policy;
        judge("ns an event, 8 CPUs, 32 tasks (5 million a second)", measure(policy, SMALL, "memory")?, 200.0);
        judge("ns an event, 64 CPUs, 1,000 tasks (4 million a second)", measure(policy, MIDDLE, "memory")?, 250.0);
        judge("ns an event, 256 CPUs, 10,000 tasks (2 million a second)", measure(policy, LARGE, "memory")?, 500.0);
        if policy == PLAIN {
            let elaborate_ns = measure(ELABORATE, MIDDLE, "memory")?;
            judge("eevdf: ns an event, 64 CPUs, 1,000 tasks (2.5 million a second)", elaborate_ns, 400.0);
        }
        let untraced_ns = measure(policy, MIDDLE, "none")?;
        judge("64 CPUs, trace to a file ÷ none", measure(policy, MIDDLE, "file")? / untraced_ns, 1.3);
        let small_ns = measure(policy, SMALL, "none")?;
        let wide_ns = measure(policy, Size { cpus: 4_096, tasks: CROWD }, "none")?;
        judge("an event on 4,096 CPUs with 16,384 tasks ÷ on 8 with 32", wide_ns / small_ns, 3.0);
        let narrow_ns = measure(policy, Size { cpus: 8, tasks: CROWD }, "none")?;
        judge("16,384 tasks, an event on 4,096 CPUs ÷ on 8", wide_ns / narrow_ns, 3.0);
        let few_ns = measure(policy, Size { cpus: 64, tasks: 100 }, "none")?;
        let many_ns = measure(policy, Size { cpus: 64, tasks: 100_000 }, "none")?;
        judge("64 CPUs, an event of 100,000 tasks ÷ of 100", many_ns / few_ns, 2.0);
        measure(policy, Size { cpus: 64, tasks: MANY }, "none")?;
        judge("GiB of memory for a million tasks", peak_gib()?, 8.0);
        drop(progress);
        let verdict = Verdict::of_limits(&limits, true);
        let report = Report { policy: self.policy.clone(), rows, passed: verdict.limits_met, limits };
        self.output.show(&report, &report.to_text(), &verdict)
    }
}

fn measure(policy: &str, size: Size, trace: &'static str) -> Result<Row> {
    const WORK_US: u64 = 100;
    let Size { cpus, tasks } = size;
    let period_us = u64::from(tasks) * WORK_US * 2 / u64::from(cpus);
    let rounds = if tasks == MANY { 1 } else { (EVENTS / 2 / u64::from(tasks)).max(ROUNDS) };
    let period_us = period_us.clamp(1, 1_000_000);
    let text = format!("periodic:tasks={tasks}:rounds={rounds}:period_us={period_us}:work_us={WORK_US}");
    let load = loads::make(&text, cpus).map_err(|error| anyhow!("{text}: {error}"))?;
    let shape = format!("{NODES}x1x{}x1", cpus / NODES);
    let topology = ekiden_machine::parse(&shape).with_context(|| format!("{shape} is no machine"))?;
    let (mut costs, mut events) = (Vec::new(), 0);
    for _ in 0..if tasks == MANY { 1 } else { TRIES } {
        let simulation = policies::simulate(policy, Machine::new(topology.clone()), "")
            .with_context(|| format!("there is no policy `{policy}` in the simulator"))?;
        let simulation = match trace {
            "memory" => simulation.traced(),
            "file" => simulation.trace_into(std::io::BufWriter::with_capacity(
                1 << 20,
                tempfile::tempfile().context("cannot create a file for the trace")?,
            )),
            _ => simulation,
        };
        let start = Instant::now();
        let result = simulation.time_limit_ns(u64::MAX).run(&load)?;
        let took_ns = start.elapsed().as_nanos() as f64;
        events = result.stats.events();
        costs.push(took_ns / events as f64);
    }
    let ns_per_event = Summary::of(&costs).context("nothing was measured")?.median;
    Ok(Row { policy: policy.into(), size, trace, events, events_per_s: 1e9 / ns_per_event, ns_per_event })
}

/// The most memory that this program has had, in GiB.
fn peak_gib() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: f64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).context("no VmHWM")?;
    Ok(kib / f64::from(1 << 20))
}

impl Report {
    fn to_text(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            let Size { cpus, tasks } = row.size;
            let machine = format!("{}, {cpus} CPUs, {tasks} tasks", row.policy);
            [machine, row.trace.to_owned(), number(row.events_per_s), number(row.ns_per_event)]
        });
        let figures = table(&["", "trace", "events a second", "ns an event"], rows);
        let limits = table(&["", "figure", "limit", ""], self.limits.iter().map(Judged::cells));
        format!("{figures}\n{limits}")
    }
}
