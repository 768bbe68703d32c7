//! What WFQ and CFS promise besides shares: a task that wakes up does not wait for a slice to end, and equal tasks are spread over CPUs.

use ekiden::Scheduler;
use ekiden_policies::{Cfs, Wfq};
use ekiden_sim::{Machine, Model, SimReport, Simulation};
use ekiden_workload::{Step, TaskSpec, Workload};

const MS: u64 = 1_000_000;

fn hogs(count: usize) -> Vec<TaskSpec> {
    let hog = |index| TaskSpec::new(format!("hog{index}"), vec![Step::forever(vec![Step::Run { ns: MS }])]);
    (0..count).map(hog).collect()
}

fn sleeper(nice: i32) -> TaskSpec {
    let steps = vec![Step::Run { ns: MS / 10 }, Step::Sleep { ns: 5 * MS }];
    TaskSpec::new("sleeper", vec![Step::forever(steps)]).nice(nice)
}

fn run<S: Scheduler>(cpus: u32, tasks: Vec<TaskSpec>, params: &str) -> SimReport {
    let load = Workload::new("load", cpus, tasks).lasting(10_000 * MS);
    let result = Simulation::of::<S>(Machine::flat(cpus).with_model(Model::free()), params).run(&load).unwrap();
    assert_eq!((&result.fault, result.contract_violations, result.totals.unexpected_transitions), (&None, 0, 0));
    result
}

/// How long the sleeper waits each time, in the mean.
fn wait_ns(result: &SimReport) -> u64 {
    let task = result.report.task("sleeper").unwrap();
    task.wait_ns.unwrap() / (task.voluntary_switches + task.involuntary_switches)
}

fn least_by_most(result: &SimReport) -> f64 {
    let times = || result.report.tasks.iter().filter(|task| task.name.starts_with("hog")).map(|task| task.cpu_ns);
    times().min().unwrap() as f64 / times().max().unwrap() as f64
}

fn wakes_up_at_once_beside_a_hog<S: Scheduler>() {
    let tasks = |nice| [hogs(1), vec![sleeper(nice)]].concat();
    let (with, without) = (run::<S>(1, tasks(0), ""), run::<S>(1, tasks(0), "wakeup_us=1000000"));
    assert!(wait_ns(&with) < MS / 10, "{} waits {} ns", S::NAME, wait_ns(&with));
    assert!(wait_ns(&without) > MS, "{} without preemption {} ns", S::NAME, wait_ns(&without));
    // Its head start is worth less than what a light task must be behind.
    let light = run::<S>(1, tasks(19), "");
    assert!(wait_ns(&light) > MS, "{}: a light task waits {} ns", S::NAME, wait_ns(&light));
}

#[test]
fn who_wakes_up_under_wfq_does_not_wait_for_the_slice_of_a_hog() {
    wakes_up_at_once_beside_a_hog::<Wfq>();
}

#[test]
fn who_wakes_up_under_cfs_does_not_wait_for_the_slice_of_a_hog() {
    wakes_up_at_once_beside_a_hog::<Cfs>();
}

#[test]
fn equal_hogs_are_spread_over_cpus_under_wfq() {
    for (cpus, count) in [(2, 4), (4, 8), (3, 6)] {
        let result = run::<Wfq>(cpus, [hogs(count), vec![sleeper(0)]].concat(), "");
        assert!(least_by_most(&result) >= 0.95, "{count} hogs on {cpus} CPUs: {}", least_by_most(&result));
        // Once they are spread, they stay where they are.
        let moved: u64 = result.report.tasks.iter().filter_map(|task| task.migrations).sum();
        assert!(moved < 100, "{moved} migrations");
    }
    // No spread is even: two share a CPU for good, as in the paper.
    let three = run::<Wfq>(2, hogs(3), "");
    assert!((0.45..0.55).contains(&least_by_most(&three)), "{}", least_by_most(&three));
}
