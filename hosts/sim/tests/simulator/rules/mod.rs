//! The rules of policies, one file each: what the head of a policy's file says of it, in the simulator.

mod arbiter;
mod bpfland;
mod central_fifo;
mod mlfq;
mod modular;
mod nest;
mod shinjuku;
mod sjf;

use ekiden::{Scheduler, Topology};
use ekiden_sim::{Machine, Model, SimReport, Simulation};
use ekiden_workload::{Step, TaskSpec, Workload};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

fn forever(name: &str, steps: impl IntoIterator<Item = Step>) -> TaskSpec {
    TaskSpec::new(name, vec![Step::Forever { steps: steps.into_iter().collect() }])
}

fn hog(name: &str) -> TaskSpec {
    forever(name, [Step::Run { ns: MS }])
}

fn hogs(count: u32) -> impl Iterator<Item = TaskSpec> {
    (0..count).map(|number| hog(&format!("hog{number}")))
}

fn sleeper(name: &str, run_ns: u64, sleep_ns: u64) -> TaskSpec {
    forever(name, [Step::Run { ns: run_ns }, Step::Sleep { ns: sleep_ns }])
}

/// For so long, where nothing costs anything.
fn run_on<S: Scheduler>(topology: Topology, params: &str, ms: u64, tasks: Vec<TaskSpec>) -> SimReport {
    let cpus = topology.nr_cpus();
    let load = Workload { duration_ns: Some(ms * MS), ..Workload::new("load", cpus, tasks) };
    good(Simulation::of::<S>(Machine::new(topology).with_model(Model::free()), params).traced().run(&load).unwrap())
}

fn run<S: Scheduler>(cpus: u32, params: &str, ms: u64, tasks: Vec<TaskSpec>) -> SimReport {
    run_on::<S>(Topology::flat(cpus), params, ms, tasks)
}

fn good(result: SimReport) -> SimReport {
    assert_eq!((&result.fault, result.contract_violations, result.totals.unexpected_transitions), (&None, 0, 0));
    result
}

fn cpu_ns(result: &SimReport, name: &str) -> u64 {
    result.report.task(name).unwrap().cpu_ns
}

/// The part of all CPU time that a task had.
fn share(result: &SimReport, name: &str) -> f64 {
    cpu_ns(result, name) as f64 / result.report.cpu_ns() as f64
}

/// How long a task waits each time, in the mean.
fn wait_us(result: &SimReport, name: &str) -> f64 {
    let task = result.report.task(name).unwrap();
    let times = task.voluntary_switches + task.involuntary_switches;
    task.wait_ns.unwrap() as f64 / times as f64 / US as f64
}

fn interruptions(result: &SimReport) -> u64 {
    result.report.tasks.iter().map(|task| task.involuntary_switches).sum()
}
