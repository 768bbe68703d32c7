//! `ekiden sim`: a load on a simulated machine.

use std::{
    fs,
    fs::File,
    io::{self, BufWriter},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden::Topology;
use ekiden_check::{Checker, Violation};
use ekiden_host::Figure;
use ekiden_page::Notes;
use ekiden_sim::{Jitter, Machine, Model, SimError, SimReport};
use ekiden_workload::{builtin, checks, loads};
use serde::Serialize;

use crate::{
    check::{self, Bounds},
    failure::{Exit, Failure},
    figures,
    loads::load,
    models::Models,
    output::Output,
    own::{self, AsRoot, Needs},
    policies,
    progress::Progress,
    report,
    sweep::Sweep,
};

/// What varies where a seed is given: the kernel's timer slack, and a twentieth of the work.
pub(crate) const JITTER: Jitter = Jitter { sleep_ns: 50_000, work_permille: 50 };

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden sim list
      the loads that come with Ekiden
  ekiden sim fair-share -p wfq
      on 4 CPUs
  ekiden sim messaging -p wfq --machine 2x2x4x2
      2 nodes of 2 caches of 4 cores of 2 threads
  ekiden sim mine.json -p fifo --seed 7 --trace out
      a load of your own, with the trace in a file
  ekiden sim nas-lu -p cfs --machine bulldozer64
      that of papers/002
  ekiden sim churn -p fifo --invariants
      whether CPUs idled while tasks waited, and the like
  ekiden sim churn -p wfq --record out.ekirec
      every call, for ekiden replay
  ekiden sim churn -p mlfq --debug
      what the policy says of its decisions
  ekiden sim churn -p fifo --upgrade 5=wfq
      another policy takes over after 5 ms
  ekiden sim churn -p wfq --report out.html
      what happened, as a page for a browser
  ekiden sim make --sweep out.csv --policies wfq,cfs --seeds 1-20 \\
      --machines xeon80,laptop
  ekiden sim model > mine.json
      how a machine behaves, to be edited and given with --model
  ekiden sim pipe -p my-policy
      a policy of your own, in the directory of its project
The same command gives the same trace, byte for byte. A load of your own:
ekiden-load show pipe > mine.json")]
pub(crate) struct Sim {
    /// A load that comes with Ekiden, a JSON file (Ekiden's or rt-app's), `list`, or `model`
    load: String,
    /// The policy
    #[arg(short, long, default_value = "wfq")]
    policy: String,
    /// A parameter of the policy
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// CPUs of the machine, all alike
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=8_192))]
    cpus: u32,
    /// Nodes x caches of each x cores of each x threads of each, as in 2x2x4x2 or, with slower cores and distances
    /// between nodes, 2x1x4x2+1x8x1@512:21; `host` for this machine; or one of bulldozer64, core8, xeon80, laptop
    #[arg(long, value_name = "SPEC", value_parser = machine, conflicts_with = "cpus")]
    machine: Option<Topology>,
    /// How the machine behaves (costs, tick, idle states, interrupts), in a JSON file: `ekiden sim model` prints
    /// one, `ekiden fidelity --calibrate` measures one
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Let sleeps and work vary by chance, the same for the same seed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Let another policy take over after so many milliseconds, as in 5=wfq or 5=wfq:slice_min_us=500; may be repeated
    #[arg(long, value_name = "MS=POLICY", value_parser = upgrade)]
    upgrade: Vec<(u64, String)>,
    /// Write the trace to this file; compressed if its name ends in .zst
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write every call into the policy to this file, for `ekiden replay`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Say on standard error what the policy says of its decisions: what it notes, and the text of `ekiden::debug!`
    #[arg(long)]
    debug: bool,
    /// Check what schedulers promise: see `ekiden check --help`
    #[arg(long, conflicts_with = "trace")]
    invariants: bool,
    /// Write a page that shows it all to this file, for any browser: run queues, tasks and violations over time
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    report: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Exit with 116 if the load's own check fails, with 101 if the policy was taken out, with 118 if a promise was not kept
    #[arg(long)]
    check: bool,
    #[command(flatten, next_help_heading = "Bounds, with --invariants and --report")]
    bounds: Bounds,
    #[command(flatten, next_help_heading = "Many simulations at once")]
    sweep: Sweep,
    #[command(flatten)]
    as_root: AsRoot,
}

#[derive(Serialize)]
struct Summary<'a> {
    #[serde(flatten)]
    report: &'a ekiden_workload::Report,
    events: u64,
    switches: u64,
    wakeups: u64,
    contract_violations: u32,
    last_contract_violation: Option<String>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    figures: &'a [Figure],
    fault: Option<String>,
    check: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    violations: Option<Vec<Violation>>,
}

impl Sim {
    /// The policies that have to be in this process.
    pub(crate) fn needs(&self) -> Needs {
        if ["list", "model"].contains(&self.load.as_str()) {
            return Needs::default();
        }
        if self.sweep.is_wanted() {
            return Needs::of(self.sweep.policies(), self.as_root);
        }
        Needs::of([&self.policy].into_iter().chain(self.upgrade.iter().map(|(_, policy)| policy)), self.as_root)
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        let topology = match &self.machine {
            Some(machine) => machine.clone(),
            None => Topology::flat(self.cpus),
        };
        if self.load == "list" {
            list(topology.nr_cpus());
            return Ok(ExitCode::SUCCESS);
        }
        if self.load == "model" {
            println!("{}", Model::default().to_json());
            return Ok(ExitCode::SUCCESS);
        }
        if self.sweep.is_wanted() {
            return self.sweep.run(&self.load, self.model.as_deref());
        }
        let params = self.set.join(" ");
        policies::check_params(&self.policy, &params)?;
        let mut machine = Machine::new(topology);
        if let Some(path) = &self.model {
            machine.model = model(path, &self.policy)?;
        }
        if self.seed.is_some() && machine.model.jitter == Jitter::default() {
            machine.model.jitter = JITTER;
        }
        let (load, check) = load(&self.load, machine.topology.nr_cpus())?;
        let Some(mut simulation) = policies::simulate(&self.policy, machine, &params) else {
            return Err(Failure::new(Exit::NoPolicy, own::unknown(&self.policy)).into());
        };
        simulation = simulation.seed(self.seed.unwrap_or_default());
        for (at_ns, policy) in &self.upgrade {
            simulation = simulation.upgrade(*at_ns, policies::successor(policy)?);
        }
        let trace = self.trace.as_deref().map(Output::create).transpose()?;
        if let Some(trace) = &trace {
            simulation = simulation.trace_into(BufWriter::with_capacity(1 << 20, trace.clone())).with_considered();
        } else if self.invariants || self.report.is_some() {
            simulation = simulation.traced();
            if self.report.is_some() {
                simulation = simulation.with_considered();
            }
        }
        if let Some(path) = &self.record {
            let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            simulation = simulation.recorded_into(BufWriter::with_capacity(1 << 20, file));
        }
        if self.debug {
            simulation = simulation.debug_into(BufWriter::new(io::stderr()));
        }
        let busy = (!self.debug).then(|| Progress::brief(format!("simulating {} under {}", self.load, self.policy)));
        let result = simulation.run(&load);
        if let Some(trace) = trace.filter(|_| matches!(result, Ok(_) | Err(SimError::Unfinished { .. }))) {
            trace.finish()?;
        }
        let result = match result {
            Ok(result) => result,
            // The report up to there says more than that it did not finish.
            Err(SimError::Unfinished { at_ns, why, stuck, so_far }) => {
                drop(busy);
                eprintln!("{}", so_far.report);
                return Err(SimError::Unfinished { at_ns, why, stuck, so_far }.into());
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(path) = &self.report {
            self.write_report(path, &result)?;
        }
        let violations = self.invariants.then(|| self.violations(&result));
        drop(busy);
        self.show(&result, check(&result.report), violations)
    }

    fn show(
        &self,
        result: &SimReport,
        verdict: checks::Verdict,
        violations: Option<Vec<Violation>>,
    ) -> Result<ExitCode> {
        let fault = result.fault.as_ref().map(ToString::to_string);
        if self.json {
            let all = Summary {
                report: &result.report,
                events: result.stats.events(),
                switches: result.stats.switches,
                wakeups: result.stats.wakeups,
                contract_violations: result.contract_violations,
                last_contract_violation: result.last_contract_violation.as_ref().map(ToString::to_string),
                figures: &result.figures,
                fault: fault.clone(),
                check: verdict.clone().err(),
                violations: violations.clone(),
            };
            println!("{}", serde_json::to_string_pretty(&all)?);
        } else {
            print!("{}", result.report);
            println!("{} switches, {} wake-ups", result.stats.switches, result.stats.wakeups);
            print!("{}", figures::in_words(&result.figures, ""));
            if let Some(contract_violation) = &result.last_contract_violation {
                println!(
                    "{} contract violations of the policy were put right; the last: {contract_violation}",
                    result.contract_violations
                );
            }
            if let Some(fault) = &fault {
                println!("the policy was taken out: {fault}");
            }
            match &verdict {
                Ok(()) => println!("check passed"),
                Err(why) => println!("check failed: {why}"),
            }
            if let Some(violations) = &violations {
                print!("{}", check::describe(violations));
            }
            match (&self.report, &self.record) {
                (Some(path), _) => println!("next: open {} in a browser", path.display()),
                (None, Some(path)) => println!("next: ekiden replay {}", path.display()),
                (None, None) => println!("next: ekiden vm run {} -- ekiden-load run {}", self.policy, self.load),
            }
        }
        Ok(match (&fault, &verdict) {
            _ if !self.check => ExitCode::SUCCESS,
            (Some(_), _) => Exit::TakenOut.into(),
            (None, Err(_)) => Exit::LimitMissed.into(),
            (None, Ok(())) if violations.is_some_and(|violations| !violations.is_empty()) => Exit::BrokenPromise.into(),
            (None, Ok(())) => ExitCode::SUCCESS,
        })
    }

    fn write_report(&self, path: &Path, result: &SimReport) -> Result<()> {
        let mut counters =
            vec![("contract violations of the policy".to_owned(), result.contract_violations.to_string())];
        counters.extend(result.fault.as_ref().map(|fault| ("the policy was taken out".to_owned(), fault.to_string())));
        let own = |figure: &Figure| (figure.name.clone(), figures::amount(&figure.value));
        counters.extend(result.figures.iter().map(own));
        let notes = Notes { counters, ..Notes::default() };
        let header = result.trace.header().context("the trace is empty: this is a bug of Ekiden, report it")?;
        report::write_report(path, &header, result.trace.records(), &self.bounds.limits(), notes)?;
        Ok(())
    }

    fn violations(&self, result: &SimReport) -> Vec<Violation> {
        let Some(header) = result.trace.header() else { return Vec::new() };
        let mut checker = Checker::new(&header, &self.bounds.limits());
        result.trace.records().for_each(|record| checker.record(&record));
        checker.finish()
    }
}

fn list(cpus: u32) {
    for case in builtin::all(cpus) {
        println!("{:14} {}", case.workload.name, case.about);
    }
    print!("\nWith parameters, and several at once, as in make:jobs=64+r:count=2\n{}", loads::overview());
}

/// How a machine behaves, from a file; from one that `ekiden fidelity --calibrate` wrote, under this policy.
pub(crate) fn model(path: &Path, policy: &str) -> Result<Model> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read the model {}", path.display()))?;
    if let Ok(models) = serde_json::from_str::<Models>(&text) {
        return models.of(policy);
    }
    Model::from_json(&text).map_err(|why| Failure::new(Exit::Usage, format!("{}: {why}", path.display())).into())
}

fn upgrade(text: &str) -> Result<(u64, String), String> {
    let wrong = || format!("`{text}` is not milliseconds=policy: write for example 5=wfq");
    let (at_ms, policy) = text.split_once('=').ok_or_else(wrong)?;
    let at_ns = at_ms.parse::<f64>().ok().filter(|ms| (0.0..1e9).contains(ms)).ok_or_else(wrong)? * 1e6;
    Ok((at_ns as u64, policy.to_owned()))
}

pub(crate) fn machine(text: &str) -> Result<Topology, String> {
    ekiden_machine::parse(text).map_err(|error| error.to_string())
}
