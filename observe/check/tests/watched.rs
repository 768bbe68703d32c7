//! A policy that is wrapped in the checks behaves as it does alone, and the same is found as in its trace.

use std::cell::Cell;
use std::rc::Rc;

use ekiden::{Env, Scheduler};
use ekiden_check::{Checker, Findings, Limits, Violation, Watched};
use ekiden_host::Adapter;
use ekiden_policies::{Fifo, Wfq};
use ekiden_sim::{Machine, PolicyMaker, SimReport, Simulation};
use ekiden_workload::{Step, TaskSpec, Workload, builtin};

const MS: u64 = 1_000_000;

fn limits() -> Limits {
    Limits { every_ns: 200 * MS, ..Limits::default() }
}

/// Runs a load under `S` with the checks around it.
fn watched<S: Scheduler>(load: &Workload) -> (SimReport, Vec<Violation>) {
    let findings: Rc<Cell<Option<Findings>>> = Rc::default();
    let theirs = findings.clone();
    let maker = PolicyMaker::new(S::NAME, move |topology, max_tasks, host| {
        let env = Env::new(topology.clone(), max_tasks, S::PARAMS, "")?;
        let policy = Box::new(Adapter::<S>::new(&env, host.clone()));
        let (watched, found) = Watched::around(policy, host, &topology, &limits());
        theirs.set(Some(found));
        Ok(Box::new(watched))
    });
    let report = Simulation::with_policy(Machine::flat(4), maker).traced().run(load).unwrap();
    (report, findings.take().expect("the policy was made").finish())
}

/// Four begin on CPU 0, where they have to be for a while, and they are not moved.
fn crowd() -> Workload {
    let steps = vec![Step::Run { ns: MS }, Step::SetAffinity { cpus: None }, Step::Run { ns: 400 * MS }];
    Workload::new("crowd", 4, [TaskSpec::new("crowd", steps).on([0]).copies(4)])
}

#[test]
fn the_wrapper_finds_what_the_trace_shows() {
    let (report, found) = watched::<Fifo>(&crowd());
    let mut checker = Checker::new(&report.trace.header().unwrap(), &limits());
    report.trace.records().for_each(|record| checker.record(&record));
    let place = |violation: &Violation| (violation.check, violation.cpus.clone());
    let in_trace: Vec<_> = checker.finish().iter().map(place).collect();
    assert!(!in_trace.is_empty(), "FIFO does not steal");
    assert_eq!(found.iter().map(place).collect::<Vec<_>>(), in_trace);
    assert!(found[0].tasks.iter().all(|task| task.pid >= 1_000), "{found:#?}");
}

#[test]
fn there_is_no_false_alarm_about_a_policy_that_keeps_its_promises() {
    for case in builtin::all(4) {
        let (report, found) = watched::<Wfq>(&case.workload);
        assert_eq!(found, [], "{}", case.workload.name);
        let alone = Simulation::of::<Wfq>(Machine::flat(4), "").traced().run(&case.workload).unwrap();
        assert_eq!(report.report, alone.report, "{} goes another way when it is watched", case.workload.name);
    }
}
