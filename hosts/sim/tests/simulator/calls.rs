//! Every call of the trait reaches a policy, and a panic in any of them ends the policy and nothing else.

use ekiden::Call;
use ekiden_policies::{Fifo, Wfq};
use ekiden_sim::{Machine, SimReport, Simulation, What};
use ekiden_workload::{builtin::find, checks::all_finished};

use crate::probe::{everything, probed, take_seen};

/// Replacing a running policy is up to the engine's owner, and no event.
const NO_EVENT: [Call; 2] = [Call::ReregisterPrep, Call::ReregisterInit];

fn events() -> impl Iterator<Item = Call> {
    Call::ALL.into_iter().filter(|call| !NO_EVENT.contains(call))
}

fn run(params: &str) -> SimReport {
    probed(params).traced().run(&everything()).unwrap_or_else(|error| panic!("{params}: {error}"))
}

#[test]
fn every_call_reaches_the_policy() {
    take_seen();
    let result = run("");
    let seen = take_seen();
    let missing: Vec<_> = events().filter(|call| !seen.contains(call)).collect();
    assert_eq!(missing, [], "these calls never came");
    assert_eq!(all_finished(&result.report), Ok(()));
    assert_eq!((result.fault, result.contract_violations, result.totals.unexpected_transitions), (None, 0, 0));
}

#[test]
fn hints_are_answered() {
    let result = run("");
    let taken: Vec<_> = result.trace.records().filter(|record| record.what == What::Hint).collect();
    // One of a task that is ours, and one of no task; then parameters of which the second are out of their range.
    assert_eq!(taken.iter().map(|record| record.value).collect::<Vec<_>>(), [1, 0, 1, 0]);
    assert_ne!(taken[0].pid, 0);
    assert_eq!(taken[1].pid, 0);
}

#[test]
fn a_panic_in_any_call_ends_the_policy_and_the_tasks_go_on() {
    for call in events() {
        let result = run(&format!("panic_in={}", call as u64));
        let fault = result.fault.unwrap_or_else(|| panic!("{} did not fail", call.name()));
        let expected = format!("planted in {} (hosts/sim/tests/simulator/probe.rs:", call.name());
        assert!(fault.message.contains(&expected), "{}", fault.message);
        assert_eq!(all_finished(&result.report), Ok(()), "{}", call.name());
        assert_eq!(take_seen().last(), Some(&call), "the policy was called after it failed");
        assert_eq!(result.trace.records().filter(|record| record.what == What::Fault).count(), 1);
    }
}

#[test]
fn a_trace_can_tell_which_cpus_a_decision_looked_at() {
    let considered = |simulation: Simulation| {
        let load = find("messaging", 4).unwrap().workload;
        let trace = simulation.traced().run(&load).unwrap().trace;
        trace.records().filter(|record| record.what == What::Considered).map(|record| record.value).collect::<Vec<_>>()
    };
    // WFQ looks at the other CPUs before it goes idle; FIFO never looks beyond its own.
    let wfq = considered(Simulation::of::<Wfq>(Machine::flat(4), "").with_considered());
    assert!(wfq.contains(&0b1111), "{wfq:?}");
    assert!(considered(Simulation::of::<Fifo>(Machine::flat(4), "").with_considered()).is_empty());
    assert!(considered(Simulation::of::<Wfq>(Machine::flat(4), "")).is_empty());
}
