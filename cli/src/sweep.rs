//! `ekiden sim --sweep`: a load under policies, on machines, with seeds; one table of everything.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden::Topology;
use ekiden_sim::{Jitter, Machine, Model};
use serde::Serialize;

use crate::{
    failure::{Exit, Failure},
    loads::load,
    own, parallel, policies,
    progress::Progress,
    sim::{JITTER, machine, model},
};

/// The parameter that varies.
#[derive(Args, Clone, Debug)]
pub(crate) struct Sweep {
    /// Run the load under all policies, on all machines, with all seeds, and write a table as CSV (`-` for standard output)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["trace", "invariants", "report", "json", "check", "seed", "set"])]
    sweep: Option<PathBuf>,
    /// With --sweep: policies, each with parameters if it has any, as in wfq,cfs:group_imbalance=1
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "fifo,wfq,cfs", requires = "sweep")]
    policies: Vec<String>,
    /// With --sweep: machines, as for --machine
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1x1x4x1", requires = "sweep")]
    machines: Vec<String>,
    /// With --sweep: the first and the last seed
    #[arg(long, value_name = "FROM-TO", value_parser = seeds, default_value = "1-10", requires = "sweep")]
    seeds: (u64, u64),
}

fn seeds(text: &str) -> Result<(u64, u64), String> {
    let range = text.split_once('-').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    match range {
        Some((from, to)) if from <= to && to - from < 1_000_000 => Ok((from, to)),
        _ => Err(format!("`{text}` is not a range of at most a million seeds; write for example 1-10")),
    }
}

/// One simulation.
struct Point<'a> {
    policy: &'a str,
    params: &'a str,
    machine: &'a str,
    topology: &'a Topology,
    seed: u64,
}

/// The result of one value; times in nanoseconds.
#[derive(Serialize)]
struct Row {
    load: String,
    policy: String,
    params: String,
    machine: String,
    cpus: u32,
    seed: u64,
    wall_ns: u64,
    cpu_ns: u64,
    wait_ns: u64,
    switches: u64,
    wakeups: u64,
    migrations: u64,
    contract_violations: u32,
    fault: String,
}

impl Sweep {
    /// Whether a sweep is wanted.
    pub(crate) fn is_wanted(&self) -> bool {
        self.sweep.is_some()
    }

    /// The policies that are compared.
    pub(crate) fn policies(&self) -> &[String] {
        &self.policies
    }

    /// Runs the load of this name; `model` is how the machines behave.
    pub(crate) fn run(&self, name: &str, model: Option<&Path>) -> Result<ExitCode> {
        let wrong = |why: String| Failure::new(Exit::Usage, why);
        let machines: Vec<(&str, Topology)> = self
            .machines
            .iter()
            .map(|text| Ok((text.as_str(), machine(text).map_err(wrong)?)))
            .collect::<Result<_>>()?;
        let mut points = Vec::new();
        for policy in &self.policies {
            let (policy, params) = policy.split_once(':').unwrap_or((policy, ""));
            policies::check_params(policy, params)?;
            for (machine, topology) in &machines {
                points.extend((self.seeds.0..=self.seeds.1).map(|seed| Point {
                    policy,
                    params,
                    machine,
                    topology,
                    seed,
                }));
            }
        }
        let mut progress = Progress::new();
        progress.step(format!("running {} simulations", points.len()));
        let mut done = 0;
        let rows = parallel::map(
            &points,
            |point| simulate(name, point, model),
            |_| {
                done += 1;
                if done % points.len().div_ceil(10).max(1) == 0 {
                    progress.note(&format!("{done} of {}", points.len()));
                }
            },
        );
        drop(progress);
        self.write(rows)
    }

    fn write(&self, rows: Vec<Result<Row>>) -> Result<ExitCode> {
        let path = self.sweep.as_deref().unwrap_or("-".as_ref());
        let output: Box<dyn io::Write> = if path.as_os_str() == "-" {
            Box::new(io::stdout().lock())
        } else {
            Box::new(File::create(path).with_context(|| format!("cannot write {}", path.display()))?)
        };
        let mut table = csv::Writer::from_writer(output);
        for row in rows {
            table.serialize(row?).with_context(|| format!("cannot write {}", path.display()))?;
        }
        table.flush().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn simulate(name: &str, point: &Point<'_>, path: Option<&Path>) -> Result<Row> {
    let (load, _) = load(name, point.topology.nr_cpus())?;
    let model = path.map_or_else(|| Ok(Model::default()), |path| model(path, point.policy))?;
    let jitter = if model.jitter == Jitter::default() { JITTER } else { model.jitter };
    let machine = Machine::new(point.topology.clone()).with_model(Model { jitter, ..model });
    let Some(simulation) = policies::simulate(point.policy, machine, point.params) else {
        return Err(Failure::new(Exit::NoPolicy, own::unknown(point.policy)).into());
    };
    let result = simulation.seed(point.seed).run(&load)?;
    let tasks = &result.report.tasks;
    Ok(Row {
        load: name.to_owned(),
        policy: point.policy.to_owned(),
        params: point.params.to_owned(),
        machine: point.machine.to_owned(),
        cpus: point.topology.nr_cpus(),
        seed: point.seed,
        wall_ns: result.report.wall_ns,
        cpu_ns: result.report.cpu_ns(),
        wait_ns: tasks.iter().filter_map(|task| task.wait_ns).sum(),
        switches: result.stats.switches,
        wakeups: result.stats.wakeups,
        migrations: tasks.iter().filter_map(|task| task.migrations).sum(),
        contract_violations: result.contract_violations,
        fault: result.fault.map(|fault| fault.to_string()).unwrap_or_default(),
    })
}
