//! Policies take over from others at any moment, and no task notices.

use std::collections::BTreeSet;

use ekiden::{Call, Scheduler};
use ekiden_policies::{Cfs, Eevdf, Fifo, Wfq, for_each_policy};
use ekiden_sim::{Machine, SimError, SimReport, Simulation, Successor, What};
use ekiden_test_policies::Faulty;
use ekiden_workload::builtin::{Case, churn, find};
use ekiden_workload::{Step, TaskSpec, Workload, checks::all_finished};

const MS: u64 = 1_000_000;

fn case(name: &str) -> Case {
    find(name, 4).unwrap()
}

fn simulation<S: Scheduler>() -> Simulation {
    Simulation::of::<S>(Machine::flat(4), "").traced()
}

/// The load has run to its end under policies that were never taken out.
fn assert_good(result: &SimReport, what: &str) {
    assert_eq!((&result.fault, result.contract_violations), (&None, 0), "{what}");
    all_finished(&result.report).unwrap_or_else(|why| panic!("{what}: {why}"));
}

fn small() -> Workload {
    let sleeper = TaskSpec::new("sleeper", vec![Step::repeat(4, [Step::Run { ns: MS / 2 }, Step::Sleep { ns: MS }])]);
    let hog = TaskSpec::new("hog", vec![Step::Run { ns: 6 * MS }, Step::Yield, Step::Run { ns: MS }]);
    let parent = TaskSpec::new("parent", vec![Step::fork(vec![Step::Run { ns: MS }]), Step::Wait]);
    Workload::new("small", 2, [sleeper.copies(3), hog.copies(2), parent])
}

/// Every moment at which something happens, and the one after.
fn moments(load: &Workload) -> BTreeSet<u64> {
    let trace = Simulation::of::<Fifo>(Machine::flat(2), "").traced().run(load).unwrap().trace;
    trace.records().flat_map(|record| [record.time_ns, record.time_ns + 1]).collect()
}

fn at_every_moment<From: Scheduler, To: Scheduler>() {
    let load = small();
    let moments = moments(&load);
    assert!(moments.len() > 50);
    for at_ns in moments {
        let simulation = Simulation::of::<From>(Machine::flat(2), "").upgrade(at_ns, Successor::of::<To>(""));
        assert_good(&simulation.run(&load).unwrap(), &format!("{} to {} at {at_ns} ns", From::NAME, To::NAME));
    }
}

#[test]
fn policies_that_balance_may_take_over_from_each_other() {
    at_every_moment::<Eevdf, Cfs>();
    at_every_moment::<Cfs, Eevdf>();
}

macro_rules! every_policy {
    ($($module:ident $policy:ident)*) => {$(
        mod $module {
            use ekiden_policies::{$policy as This, Fifo as Before, Wfq as After};

            #[test]
            fn takes_over_at_any_moment() {
                super::at_every_moment::<Before, This>();
            }

            #[test]
            fn takes_over_from_itself_at_any_moment() {
                super::at_every_moment::<This, This>();
            }

            #[test]
            fn gives_way_at_any_moment() {
                super::at_every_moment::<This, After>();
            }
        }
    )*};
}

for_each_policy!(every_policy);

macro_rules! successors {
    ($($module:ident $policy:ident)*) => { [$(|| Successor::of::<ekiden_policies::$policy>("")),*] };
}

#[test]
fn a_thousand_upgrades_in_one_run_lose_nothing() {
    let load = churn(4, 8, 100, 1);
    let mut simulation = simulation::<Fifo>();
    let mut successors: Vec<fn() -> Successor> = for_each_policy!(successors).to_vec();
    successors.push(|| Successor::of::<Wfq>("slice_min_us=500"));
    for (number, successor) in (0..1_000).zip(successors.iter().cycle()) {
        simulation = simulation.upgrade(number * MS / 20, successor());
    }
    assert_good(&simulation.run(&load).unwrap(), "a thousand upgrades");
}

#[test]
fn the_successor_is_the_one_that_decides() {
    // Under FIFO nice values do not count; under WFQ they do, however late it comes.
    let case = case("nice:0:5");
    let result = simulation::<Fifo>().upgrade(0, Successor::of::<Wfq>("")).run(&case.workload).unwrap();
    (case.check)(&result.report).unwrap();
    let alone = simulation::<Fifo>().run(&case.workload).unwrap();
    assert!((case.check)(&alone.report).is_err());
}

#[test]
fn a_successor_of_the_same_kind_takes_over_the_queues() {
    let load = case("fair-share").workload;
    let alone = simulation::<Wfq>().run(&load).unwrap();
    let upgraded = simulation::<Wfq>().upgrade(5 * MS, Successor::of::<Wfq>("")).run(&load).unwrap();
    let of =
        |result: &SimReport| result.trace.records().filter(|record| record.what != What::Upgrade).collect::<Vec<_>>();
    assert!(of(&alone) == of(&upgraded), "a state that moves as a whole goes on as if nothing had happened");
}

#[test]
fn a_panic_in_either_half_leaves_the_tasks_to_the_kernel() {
    let upgraded = |from: &str, to: &str| {
        let simulation = Simulation::of::<Faulty>(Machine::flat(2), from).traced();
        simulation.upgrade(MS, Successor::of::<Faulty>(to)).run(&small()).unwrap()
    };
    let number = |call: Call| format!("call={}", call as u32);
    for call in [Call::ReregisterPrep, Call::ReregisterInit] {
        let result = upgraded(&number(call), &number(call));
        assert!(result.fault.is_some(), "{call:?}");
        all_finished(&result.report).unwrap_or_else(|why| panic!("{call:?}: {why}"));
        assert!(result.trace.records().any(|record| record.what == What::Fault));
    }
}

#[test]
fn another_policy_that_panics_at_its_first_task_leaves_the_tasks_to_the_kernel() {
    let successor = Successor::of::<Faulty>(&format!("call={}", Call::TaskNew as u32));
    let result = Simulation::of::<Wfq>(Machine::flat(2), "").upgrade(MS, successor).run(&small()).unwrap();
    assert!(result.fault.is_some());
    all_finished(&result.report).unwrap();
}

#[test]
fn a_successor_with_wrong_parameters_is_refused_before_anything_runs() {
    let refused = simulation::<Fifo>().upgrade(5 * MS, Successor::of::<Wfq>("nonsense=1")).run(&small());
    assert!(matches!(refused, Err(SimError::Params { .. })));
}
