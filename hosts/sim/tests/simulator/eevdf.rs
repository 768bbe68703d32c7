//! What EEVDF promises: shares by nice value, a place in time for those that sleep, and short waits for short slices.

use ekiden::Scheduler;
use ekiden_policies::{Eevdf, Fifo};
use ekiden_sim::{Injection, Machine, Model, SimReport, Simulation};
use ekiden_workload::{Step, TaskSpec, Workload};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

fn forever(name: &str, steps: Vec<Step>) -> TaskSpec {
    TaskSpec::new(name, vec![Step::Forever { steps }])
}

fn hog(name: &str) -> TaskSpec {
    forever(name, vec![Step::Run { ns: MS }])
}

fn sleeper(name: &str, run_ns: u64, sleep_ns: u64) -> TaskSpec {
    forever(name, vec![Step::Run { ns: run_ns }, Step::Sleep { ns: sleep_ns }])
}

fn load(tasks: Vec<TaskSpec>) -> Workload {
    Workload { duration_ns: Some(4_000 * MS), ..Workload::new("load", 1, tasks) }
}

fn run<S: Scheduler>(tasks: Vec<TaskSpec>, params: &str, injections: &[Injection]) -> SimReport {
    let simulation = Simulation::of::<S>(Machine::flat(1).with_model(Model::free()), params);
    let injected = injections.iter().fold(simulation, |simulation, injection| simulation.inject(1, injection.clone()));
    let result = injected.run(&load(tasks)).unwrap();
    assert_eq!((&result.fault, result.contract_violations, result.totals.unexpected_transitions), (&None, 0, 0));
    result
}

/// The part of all CPU time that a task had.
fn share(result: &SimReport, name: &str) -> f64 {
    result.report.task(name).unwrap().cpu_ns as f64 / result.report.cpu_ns() as f64
}

/// How long a task waits each time, in the mean.
fn wait_us(result: &SimReport, name: &str) -> f64 {
    let task = result.report.task(name).unwrap();
    let times = task.voluntary_switches + task.involuntary_switches;
    task.wait_ns.unwrap() as f64 / times as f64 / US as f64
}

fn assert_near(share: f64, expected: f64) {
    assert!((share - expected).abs() < 0.02 * expected.max(0.25), "{share} is not {expected}");
}

#[test]
fn cpu_time_is_shared_by_nice_values() {
    let nices = [-5, 0, 0, 5];
    let tasks = (0..).zip(nices).map(|(index, nice)| TaskSpec { nice, ..hog(&format!("hog{index}")) }).collect();
    let result = run::<Eevdf>(tasks, "", &[]);
    let weights = nices.map(|nice| f64::from(ekiden::weight_of_nice(nice)));
    for (index, weight) in weights.iter().enumerate() {
        assert_near(share(&result, &format!("hog{index}")), weight / weights.iter().sum::<f64>());
    }
}

#[test]
fn a_nice_value_that_changes_counts_from_then_on() {
    let renice = Injection::Nice { task: "a".into(), nice: 5 };
    let result = run::<Eevdf>(vec![hog("a"), hog("b")], "", &[renice]);
    assert_near(share(&result, "a"), 335.0 / (335.0 + 1024.0));
}

#[test]
fn who_sleeps_for_a_moment_is_not_better_off() {
    // It owes some milliseconds each time that it goes to sleep, and the others do not catch up in ten microseconds.
    let result = run::<Eevdf>(vec![sleeper("short", 6 * MS, 10 * US), hog("a"), hog("b")], "", &[]);
    assert_near(share(&result, "short"), 1.0 / 3.0);
}

#[test]
fn who_sleeps_for_a_moment_is_not_worse_off() {
    // It sleeps before it has had its slice, and is owed the rest when it wakes up.
    let result = run::<Eevdf>(vec![sleeper("short", 500 * US, 10 * US), hog("a"), hog("b")], "", &[]);
    assert_near(share(&result, "short"), 1.0 / 3.0);
}

#[test]
fn who_wants_less_than_its_share_has_what_it_wants_beside_hogs() {
    let hogs = || (0..4).map(|index| hog(&format!("hog{index}")));
    let tasks = || hogs().chain([sleeper("modest", MS, 19 * MS)]).collect();
    let result = run::<Eevdf>(tasks(), "", &[]);
    assert!(share(&result, "modest") > 0.04, "{}", share(&result, "modest"));
    let fifo = run::<Fifo>(tasks(), "", &[]);
    assert!(share(&fifo, "modest") < 0.02, "{}", share(&fifo, "modest"));
    assert!(wait_us(&result, "modest") < wait_us(&fifo, "modest") / 5.0);
}

#[test]
fn who_asks_for_a_short_slice_waits_less_and_gets_no_more() {
    let tasks =
        || (0..3).map(|index| hog(&format!("hog{index}"))).chain([sleeper("waker", 300 * US, 2 * MS)]).collect();
    let hint = Injection::Hint { task: Some("waker".into()), bytes: (300 * US).to_ne_bytes().to_vec() };
    let set = |settings: &str| Injection::Params { task: "waker".into(), settings: settings.into() };
    let without = run::<Eevdf>(tasks(), "slice_us=2800", &[]);
    let long = wait_us(&without, "waker");
    for asked in [hint, set("slice_us=300")] {
        let with = run::<Eevdf>(tasks(), "slice_us=2800", &[asked]);
        let short = wait_us(&with, "waker");
        assert!(short < long / 2.0, "{short} beside {long}");
        assert!(share(&with, "waker") < 0.25);
        assert!(short < wait_us(&run::<Fifo>(tasks(), "", &[]), "waker") / 50.0);
    }
    // One of its own, the default, and one that is too short to be taken.
    let settings = [set("slice_us=300"), set("slice_us=0"), set("slice_us=99")];
    assert_eq!(wait_us(&run::<Eevdf>(tasks(), "slice_us=2800", &settings), "waker"), long);
}

#[test]
fn protection_delays_those_that_wake_up() {
    let hogs = || (0..3).map(|index| hog(&format!("hog{index}")));
    // It weighs more, so that its slice is due earlier than those of the others.
    let tasks = || hogs().chain([sleeper("waker", 300 * US, 5 * MS).nice(-10)]).collect();
    let (without, with) =
        (run::<Eevdf>(tasks(), "slice_us=2800 protected_us=0", &[]), run::<Eevdf>(tasks(), "slice_us=2800", &[]));
    let (short, long) = (wait_us(&without, "waker"), wait_us(&with, "waker"));
    assert!(short < long * 0.9, "{short} without protection, {long} with");
}

#[test]
fn nobody_starves() {
    let light = TaskSpec { nice: 19, ..hog("light") };
    let hogs = (0..5).map(|index| hog(&format!("hog{index}")));
    let wakers = (0..5).map(|index| sleeper(&format!("waker{index}"), MS, MS));
    let result = run::<Eevdf>(hogs.chain(wakers).chain([light]).collect(), "", &[]);
    // Its weight is 15 of some ten thousand: one slice or two in four seconds.
    let cpu_ns = result.report.task("light").unwrap().cpu_ns;
    assert!((2 * MS..12 * MS).contains(&cpu_ns), "{cpu_ns}");
}

#[test]
fn whoever_yields_lets_the_others_run() {
    let yields = forever("yields", vec![Step::Run { ns: 10 * US }, Step::Yield]);
    let result = run::<Eevdf>(vec![yields, hog("hog")], "", &[]);
    assert!(share(&result, "yields") < 0.05, "{}", share(&result, "yields"));
}

#[test]
fn on_one_cpu_a_slice_is_the_kernels_and_those_that_wake_up_wait_for_no_longer() {
    let tasks =
        || (0..3).map(|index| hog(&format!("hog{index}"))).chain([sleeper("waker", 300 * US, 2 * MS)]).collect();
    let wait = |params: &str| wait_us(&run::<Eevdf>(tasks(), params, &[]), "waker");
    let (kernels, long) = (wait(""), wait("slice_us=2800"));
    assert_eq!(kernels, wait("slice_us=700"));
    assert!(kernels < long, "{kernels} with the kernel's slice, {long} with one of eight CPUs");
}
