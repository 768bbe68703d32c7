//! What the policy promises, checked on a simulated machine. The loads and checks are those that also judge policies in
//! a real kernel.

use ekiden_replay::Replay;
use ekiden_sim::{Machine, SimReport, Simulation};
use ekiden_workload::Workload;
use ekiden_workload::builtin;
use ekiden_workload::checks::all_finished;
use my_policy::MyPolicy;
use std::fs::File;

/// Runs a load on a machine with `cpus` CPUs. Neither may the policy fail, nor the engine have anything to put right.
fn run(load: &Workload, cpus: u32, params: &str) -> SimReport {
    let simulation = Simulation::of::<MyPolicy>(Machine::flat(cpus), params);
    let result = simulation.run(load).unwrap_or_else(|error| panic!("{}: {error}", load.name));
    assert!(result.fault.is_none(), "{}: {:?}", load.name, result.fault);
    assert_eq!((result.contract_violations, result.last_contract_violation), (0, None), "{}", load.name);
    result
}

#[test]
fn no_task_is_forgotten() {
    // Pipes, messages, sleepers, and a storm of forks, exits and moves.
    for case in builtin::all(4) {
        let result = run(&case.workload, 4, "");
        if case.workload.duration_ns.is_none() {
            assert_eq!(all_finished(&result.report), Ok(()), "{}", case.workload.name);
        }
    }
}

#[test]
fn tasks_on_one_cpu_have_equal_shares() {
    let (load, check) = builtin::fair_share_test();
    let result = run(&load, 1, "");
    assert_eq!(check(&result.report), Ok(()), "{}", result.report);
}

#[test]
fn a_cpu_without_work_takes_a_task_from_another() {
    let (load, check) = builtin::forced_move_test(2);
    let result = run(&load, 2, "");
    assert_eq!(check(&result.report), Ok(()), "{}", result.report);
}

#[test]
fn shorter_turns_mean_more_switches() {
    let (load, _) = builtin::fair_share_test();
    let switches = |params| run(&load, 1, params).stats.switches;
    assert!(switches("slice_us=500") > 2 * switches("slice_us=10000"));
}

/// A file that `ekiden record` wrote where the policy went wrong makes a test in the same way: keep it beside this one.
#[test]
fn what_was_recorded_is_decided_again() {
    let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/churn.ekirec");
    let simulation = Simulation::of::<MyPolicy>(Machine::flat(4), "").recorded_into(File::create(path).unwrap());
    simulation.run(&builtin::find("churn", 4).unwrap().workload).unwrap();

    let outcome = Replay::of::<MyPolicy>().run(File::open(path).unwrap()).unwrap();
    assert_eq!(outcome.differences, 0, "{}", outcome.first.unwrap());
    assert!(outcome.replayed > 100);
}
