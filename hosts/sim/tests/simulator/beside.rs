//! Two policies: the first gets what it wants, and the second what is left of it (papers/000, section 5.4: batch work beside
//! Shinjuku).

use ekiden_policies::{Eevdf, Shinjuku, Wfq};
use ekiden_sim::{Machine, Model, PolicyMaker, SimReport, Simulation};
use ekiden_workload::{Step, TaskSpec, Workload};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const CPUS: u32 = 2;

/// One task for each CPU that wants so much of it, and as many hogs.
fn load(percent: u64, batch: bool) -> Workload {
    let steps = vec![Step::Run { ns: percent * 10 * US }, Step::Sleep { ns: (100 - percent) * 10 * US }];
    let first =
        (0..CPUS).map(|cpu| TaskSpec::new(format!("first-{cpu}"), vec![Step::forever(steps.clone())]).on([cpu]));
    let hog = TaskSpec::new("batch", vec![Step::forever([Step::Run { ns: MS }])]).nice(19).copies(CPUS);
    Workload::new("beside", CPUS, first.chain(batch.then_some(hog))).lasting(2_000 * MS)
}

/// The part of all CPUs that tasks had whose names begin so.
fn share(report: &SimReport, name: &str) -> f64 {
    let of = report.report.tasks.iter().filter(|task| task.name.starts_with(name));
    of.map(|task| task.cpu_ns).sum::<u64>() as f64 / (2_000 * MS * u64::from(CPUS)) as f64
}

fn run(first: PolicyMaker, load: &Workload) -> SimReport {
    // A CPU that has batch work does not sleep, from which a task that is alone waits for it to wake up.
    let model = Model { idle_states: Vec::new(), ..Model::default() };
    let simulation = Simulation::with_policy(Machine::flat(CPUS).with_model(model), first);
    let report = simulation.beside(PolicyMaker::of::<Eevdf>(""), &["batch"]).run(load).unwrap();
    assert_eq!((report.fault.clone(), report.contract_violations, report.totals.unexpected_transitions), (None, 0, 0));
    report
}

/// Both within five per cent of what is due: the first what it has without the second, the second the rest.
fn both_get_what_is_due(first: impl Fn() -> PolicyMaker) {
    for percent in [10, 50, 80] {
        let alone = share(&run(first(), &load(percent, false)), "first");
        let both = run(first(), &load(percent, true));
        let (has, left) = (share(&both, "first"), share(&both, "batch"));
        println!("{percent} %: alone {alone:.4}, beside batch work {has:.4}, which has {left:.4}");
        assert!((has / alone - 1.0).abs() < 0.05, "{percent} %: {has} instead of {alone}");
        assert!((left / (1.0 - alone) - 1.0).abs() < 0.05, "{percent} %: {left} instead of {}", 1.0 - alone);
    }
}

#[test]
fn batch_work_gets_what_shinjuku_leaves_and_shinjuku_what_it_wants() {
    both_get_what_is_due(|| PolicyMaker::of::<Shinjuku>(""));
}

#[test]
fn batch_work_gets_what_wfq_leaves_and_wfq_what_it_wants() {
    both_get_what_is_due(|| PolicyMaker::of::<Wfq>(""));
}

#[test]
fn a_second_policy_that_cannot_be_made_is_an_error() {
    let simulation = Simulation::of::<Wfq>(Machine::flat(CPUS), "");
    let wrong = simulation.beside(PolicyMaker::of::<Eevdf>("colour=3"), &["batch"]);
    let error = wrong.run(&load(10, true)).unwrap_err().to_string();
    assert!(error.contains("colour"), "{error}");
}
