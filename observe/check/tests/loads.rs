//! No false alarm on a policy that keeps its promises, over every load; and the right alarm on one that does not.

use ekiden_check::{Checker, Limits, Violation};
use ekiden_policies::{Cfs, Eevdf, Fifo, GlobalFifo, LlcFifo, Wfq, for_each_policy};
use ekiden_sim::{Machine, PolicyMaker, Simulation};
use ekiden_test_policies::Drowsy;
use ekiden_workload::{Step, TaskSpec, Workload, builtin};

const MS: u64 = 1_000_000;

fn check(policy: PolicyMaker, cpus: u32, load: &Workload, limits: &Limits) -> Vec<Violation> {
    let result = Simulation::with_policy(Machine::flat(cpus), policy).traced().run(load).unwrap();
    assert_eq!(result.fault, None);
    let mut checker = Checker::new(&result.trace.header().unwrap(), limits);
    result.trace.records().for_each(|record| checker.record(&record));
    checker.finish()
}

/// S, M and windows so short that every load has many of them.
fn strict() -> Limits {
    let sum = Limits { window_ns: 250 * MS, ..Limits::default() };
    Limits { every_ns: 15 * MS, persists_ns: 10 * MS, wait_ns: 2_000 * MS, kick_ns: MS / 4, ..sum }
}

/// The checks that find what a policy gives up, as the head of its file names them.
fn given_up_in(file: &'static str) -> Vec<&'static str> {
    let head = file.lines().map_while(|line| line.strip_prefix("//!"));
    let checks = head.filter_map(|line| line.strip_prefix(" Checks that find it:"));
    checks.flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

fn keeps_its_promises_under_every_load(policy: fn() -> PolicyMaker, mut given_up: Vec<&str>) {
    let name = policy().name().to_owned();
    let may_be_found = given_up.clone();
    for cpus in [2, 4, 7] {
        for case in builtin::all(cpus) {
            let mut found = check(policy(), cpus, &case.workload, &strict());
            given_up.retain(|check| found.iter().all(|violation| violation.check != *check));
            found.retain(|violation| !may_be_found.contains(&violation.check));
            assert_eq!(found, [], "{} on {cpus} CPUs under {name}", case.workload.name);
        }
    }
    assert!(given_up.is_empty(), "no load shows that {name} gives up {given_up:?}");
}

macro_rules! every_policy {
    ($($module:ident $policy:ident)*) => {$(
        mod $module {
            use ekiden_sim::PolicyMaker;

            #[test]
            fn keeps_its_promises_under_every_load() {
                let file = include_str!(concat!("../../../policies/src/", stringify!($module), ".rs"));
                let policy = || PolicyMaker::of::<ekiden_policies::$policy>("");
                super::keeps_its_promises_under_every_load(policy, super::given_up_in(file));
            }
        }
    )*};
}

for_each_policy!(every_policy);

#[test]
fn a_fifo_that_steals_keeps_its_promises_under_every_load() {
    keeps_its_promises_under_every_load(|| PolicyMaker::of::<Drowsy>("careful=1"), Vec::new());
}

#[test]
fn wfq_and_eevdf_are_fair_to_those_that_share_a_cpu() {
    let limits = Limits { lag_ns: Some(30 * MS), ..strict() };
    for name in ["fair-share", "weights", "nice:0:5"] {
        let load = builtin::find(name, 2).unwrap().workload;
        assert_eq!(check(PolicyMaker::of::<Wfq>(""), 2, &load, &limits), [], "{name} under WFQ");
        assert_eq!(check(PolicyMaker::of::<Eevdf>(""), 2, &load, &limits), [], "{name} under EEVDF");
    }
    let load = builtin::find("nice:0:5", 2).unwrap().workload;
    let found = check(PolicyMaker::of::<Fifo>(""), 2, &load, &limits);
    assert!(found.iter().any(|violation| violation.check == "fairness"), "FIFO knows no weights: {found:#?}");
}

/// Four begin on CPU 0, where they have to be for a while, and they are not moved.
fn crowd() -> Workload {
    let steps = vec![Step::Run { ns: MS }, Step::SetAffinity { cpus: None }, Step::Run { ns: 400 * MS }];
    Workload::new("crowd", 4, [TaskSpec::new("crowd", steps).on([0]).copies(4)])
}

#[test]
fn a_policy_that_never_steals_is_found_with_its_cpus_and_tasks() {
    let limits = Limits { every_ns: 200 * MS, ..Limits::default() };
    let found = check(PolicyMaker::of::<Fifo>(""), 4, &crowd(), &limits);
    let violation = found.first().expect("FIFO does not steal");
    assert_eq!(violation.check, "work-conservation", "{violation}");
    assert_eq!(violation.cpus, [1, 2, 3, 0], "{violation}");
    assert!(violation.tasks.len() == 3 && violation.tasks[0].name.starts_with("crowd."), "{violation}");
    assert_eq!((violation.since_ns, violation.at_ns), (200 * MS, 300 * MS));
    assert_eq!(check(PolicyMaker::of::<Wfq>(""), 4, &crowd(), &limits), [], "WFQ steals");
}

/// Make and two R on the machine of papers/002, each started from another node.
fn make_beside_two_r(policy: PolicyMaker) -> Vec<Violation> {
    let load = "make:jobs=64:files=40:ms=20:start_ms=20:from=0+r:count=2:ms=1500:from=20/44";
    let load = ekiden_workload::loads::make(load, 64).unwrap();
    let machine = Machine::new(ekiden_machine::preset("bulldozer64").unwrap());
    let result = Simulation::with_policy(machine, policy).traced().run(&load).unwrap();
    let mut checker = Checker::new(&result.trace.header().unwrap(), &Limits::default());
    result.trace.records().for_each(|record| checker.record(&record));
    checker.finish()
}

#[test]
fn group_imbalance_wastes_in_turn_what_no_single_look_sees() {
    let found = make_beside_two_r(PolicyMaker::of::<Cfs>("group_imbalance=1 overload_on_wakeup=1"));
    assert!(!found.is_empty() && found.iter().all(|violation| violation.check == "wasted-time"), "{found:#?}");
    // The nodes of the two R, which have too much load to be helped, and to help.
    for node in [16..24, 40..48] {
        assert!(found[0].cpus.iter().any(|cpu| node.contains(cpu)), "{found:#?}");
    }
    assert!(found[0].tasks.iter().all(|task| task.name.starts_with("make")), "{found:#?}");
}

#[test]
fn make_beside_two_r_wastes_little_without_the_bug() {
    for policy in [
        PolicyMaker::of::<Cfs>(""),
        PolicyMaker::of::<Cfs>("overload_on_wakeup=1"),
        PolicyMaker::of::<Eevdf>(""),
        PolicyMaker::of::<Wfq>(""),
        PolicyMaker::of::<GlobalFifo>(""),
        PolicyMaker::of::<LlcFifo>(""),
    ] {
        let name = policy.name().to_owned();
        assert_eq!(make_beside_two_r(policy), [], "{name}");
    }
}

#[test]
fn no_promise_is_broken_by_programs_of_every_kind() {
    // A small load of each kind, on a machine of more than one node.
    let machine = || Machine::new(ekiden::Topology::regular(2, 1, 2, 2));
    for kind in [
        "pipes",
        "hackbench",
        "hogs:count=12",
        "periodic:tasks=40",
        "forks",
        "limited",
        "schbench",
        "requests:requests=300",
        "nas-bt:ms=40",
        "nas-cg:ms=20",
        "nas-ep:ms=60",
        "nas-is:ms=40",
        "nas-lu:ms=20",
        "nas-ua:ms=20",
        "make",
        "r:ms=200",
        "database:queries=2",
        "desktop",
        "hogs:count=12+hotplug:cpu=3:off_us=30000",
    ] {
        let load = ekiden_workload::loads::make(kind, 8).unwrap();
        for policy in [PolicyMaker::of::<Wfq>(""), PolicyMaker::of::<Cfs>(""), PolicyMaker::of::<Eevdf>("")] {
            let name = policy.name().to_owned();
            let result = Simulation::with_policy(machine(), policy).traced().run(&load).unwrap();
            let mut checker = Checker::new(&result.trace.header().unwrap(), &strict());
            result.trace.records().for_each(|record| checker.record(&record));
            assert_eq!((result.fault, checker.finish()), (None, vec![]), "{kind} under {name}");
        }
    }
}

#[test]
fn groups_keep_to_their_limits_and_a_limit_that_is_not_kept_is_found() {
    let group = |quota_ms, name: &str| ekiden_workload::Group {
        limit: Some(ekiden_workload::Limit { quota_ns: quota_ms * MS, period_ns: 50 * MS }),
        ..ekiden_workload::Group::new(name)
    };
    let hogs = |name: &str| {
        TaskSpec::new(name, vec![Step::Forever { steps: vec![Step::Run { ns: MS }] }]).copies(3).in_group(name)
    };
    let load = Workload::new("limits", 4, [hogs("less"), hogs("more")]);
    let load =
        Workload { duration_ns: Some(3_500 * MS), ..load.with_group(group(20, "less")).with_group(group(60, "more")) };
    let result = Simulation::of::<Eevdf>(Machine::flat(4), "").traced().run(&load).unwrap();
    let found = |lie: bool| {
        let mut checker = Checker::new(&result.trace.header().unwrap(), &Limits::default());
        for mut record in result.trace.records() {
            // The checker is told of half of what the first group really has.
            if lie && (record.what, record.pid, record.cpu) == (ekiden_trace::What::Limit, 1, 0) {
                record.value /= 2;
            }
            checker.record(&record);
        }
        checker.finish()
    };
    assert_eq!(found(false), []);
    let violations = found(true);
    assert_eq!(violations.len(), 3, "one for each second: {violations:#?}");
    assert!(
        violations.iter().all(|violation| violation.check == "bandwidth" && violation.message.contains("group 1 "))
    );
}
