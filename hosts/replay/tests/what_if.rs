//! What another policy would have decided.

mod common;

use common::record;
use ekiden_policies::{Fifo, Wfq};
use ekiden_replay::Replay;
use ekiden_sim::{Machine, Simulation};
use ekiden_workload::loads;

#[test]
fn the_same_policy_decides_the_same() {
    let load = loads::make("hogs:count=6:ms=100+periodic:tasks=6:rounds=50", 4).unwrap();
    let (recording, _) = record(Simulation::of::<Wfq>(Machine::flat(4), ""), &load);
    let what_if = Replay::of::<Wfq>().what_if("wfq", &recording[..]).unwrap();
    assert_eq!((what_if.same_picks(), what_if.earlier, what_if.later), (1.0, 0, 0), "{what_if}");
    assert!(what_if.same > 100 && what_if.longest.ns > 1_000_000, "{what_if}");
    assert_eq!(what_if.longest, what_if.longest_other);
}

#[test]
fn another_policy_decides_otherwise_and_the_recorded_machine_goes_on() {
    // Hogs before a task that wakes up: a task that has had little comes first under WFQ, and last under FIFO.
    let load = loads::make("hogs:count=4:ms=100+periodic:tasks=2:rounds=50", 1).unwrap();
    let (recording, report) = record(Simulation::of::<Wfq>(Machine::flat(1), ""), &load);
    let what_if = Replay::of::<Wfq>().and::<Fifo>().what_if("fifo", &recording[..]).unwrap();
    let picks = what_if.agreement["pick_next_task"];
    assert!(picks.calls >= report.stats.switches && picks.same < picks.calls, "{what_if}");
    assert!(what_if.later > 20 && what_if.earlier > 20 && what_if.longest_other.ns <= what_if.longest.ns, "{what_if}");
    let shown = what_if.to_string();
    assert!(shown.contains("pick_next_task") && shown.contains("longest wait: "), "{shown}");
}

#[test]
fn unknown_policies_and_parameters_are_refused() {
    let load = loads::make("hogs:count=1:ms=1", 1).unwrap();
    let (recording, _) = record(Simulation::of::<Wfq>(Machine::flat(1), ""), &load);
    let error = Replay::of::<Wfq>().what_if("fifo", &recording[..]).unwrap_err().to_string();
    assert_eq!(error, "there is no policy `fifo`; choose one of wfq");
    let error = Replay::of::<Wfq>().with_params("x=1").what_if("wfq", &recording[..]).unwrap_err().to_string();
    assert!(error.contains("the policy `wfq` refuses"), "{error}");
}
