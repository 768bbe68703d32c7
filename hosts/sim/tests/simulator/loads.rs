//! The loads that also run on real kernels, judged by the same checks.

use ekiden_engine::Totals;
use ekiden_policies::{Eevdf, Fifo, Wfq, for_each_policy};
use ekiden_sim::{Machine, PolicyMaker, SimReport, Simulation};
use ekiden_workload::builtin::{self, Case};
use ekiden_workload::checks::all_finished;
use ekiden_workload::{Workload, loads};

fn run(case: &Case, cpus: u32, policy: PolicyMaker) -> SimReport {
    let name = policy.name().to_owned();
    let result = Simulation::with_policy(Machine::flat(cpus), policy).run(&case.workload);
    let result = result.unwrap_or_else(|error| panic!("{} on {cpus} CPUs under {name}: {error}", case.workload.name));
    assert_eq!(
        (result.contract_violations, result.last_contract_violation, &result.fault),
        (0, None, &None),
        "{}",
        case.workload.name
    );
    assert_eq!(Totals { unexpected_transitions: 0, ..result.totals }, result.totals, "{}", case.workload.name);
    result
}

fn passes_what_every_load_checks(policy: fn() -> PolicyMaker) {
    for cpus in [1, 2, 4] {
        for case in builtin::all(cpus) {
            let result = run(&case, cpus, policy());
            if let Err(why) = (case.check)(&result.report) {
                panic!("{} on {cpus} CPUs: {why}\n{}", case.workload.name, result.report);
            }
        }
    }
}

#[test]
fn wfq_passes_what_every_load_checks() {
    passes_what_every_load_checks(|| PolicyMaker::of::<Wfq>(""));
}

#[test]
fn eevdf_passes_what_every_load_checks() {
    passes_what_every_load_checks(|| PolicyMaker::of::<Eevdf>(""));
}

fn finishes_every_load_that_ends(policy: fn() -> PolicyMaker) {
    for cpus in [1, 4] {
        for case in builtin::all(cpus).into_iter().filter(|case| case.workload.duration_ns.is_none()) {
            let result = run(&case, cpus, policy());
            assert_eq!(all_finished(&result.report), Ok(()), "{} on {cpus} CPUs", case.workload.name);
        }
    }
}

fn finishes_every_kind_of_load(policy: fn() -> PolicyMaker) {
    for kind in loads::ALL {
        let case = builtin::find(kind.name, 4).unwrap();
        let result = run(&case, 4, policy());
        assert_eq!((case.check)(&result.report), Ok(()), "{}", kind.name);
    }
}

macro_rules! every_policy {
    ($($module:ident $policy:ident)*) => {$(
        mod $module {
            use ekiden_sim::PolicyMaker;

            #[test]
            fn finishes_every_load_that_ends() {
                super::finishes_every_load_that_ends(|| PolicyMaker::of::<ekiden_policies::$policy>(""));
            }

            #[test]
            fn finishes_every_kind_of_load() {
                super::finishes_every_kind_of_load(|| PolicyMaker::of::<ekiden_policies::$policy>(""));
            }
        }
    )*};
}

for_each_policy!(every_policy);

#[test]
fn without_a_policy_the_kernel_finishes_every_load_that_ends() {
    for case in builtin::all(2).into_iter().filter(|case| case.workload.duration_ns.is_none()) {
        let result = Simulation::without_policy(Machine::flat(2)).run(&case.workload).unwrap();
        assert_eq!(all_finished(&result.report), Ok(()), "{}", case.workload.name);
        assert_eq!(result.report.scheduler, None);
    }
}

#[test]
fn fifo_fails_where_nice_values_count() {
    let (load, check) = builtin::weights_test();
    let result = Simulation::of::<Fifo>(Machine::flat(1), "").run(&load).unwrap();
    assert!(check(&result.report).is_err(), "{}", result.report);
}

#[test]
fn threads_that_spin_suffer_most_where_they_share_cpus() {
    let slowdown = |name: &str| {
        let load = loads::make(&format!("{name}:threads=4:ms=50"), 4).unwrap();
        let wall_ns = |cpus| {
            let machine = Machine::flat(cpus);
            let load = Workload { cpus, ..load.clone() };
            Simulation::of::<Wfq>(machine, "").run(&load).unwrap().report.wall_ns as f64
        };
        wall_ns(1) / wall_ns(4)
    };
    // Pure computation takes four times as long on a quarter of the CPUs.
    let (ep, lu) = (slowdown("nas-ep"), slowdown("nas-lu"));
    assert!((3.7..4.3).contains(&ep), "{ep}");
    assert!(lu > 2.0 * ep, "{lu}");
}
