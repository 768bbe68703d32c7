//! Busy CPUs take tasks from each other under the policies that balance as the kernel does.

use ekiden::Topology;
use ekiden_policies::{Cfs, Eevdf};
use ekiden_sim::{Machine, PolicyMaker, SimReport, Simulation};
use ekiden_workload::{Step, TaskSpec, Workload};

const MS: u64 = 1_000_000;

/// Hogs that are let off the CPU where they began after a millisecond, for four seconds.
fn hogs(name: &str, cpu: u32, count: u32) -> TaskSpec {
    let program = vec![
        Step::Run { ns: MS },
        Step::SetAffinity { cpus: None },
        Step::Forever { steps: vec![Step::Run { ns: MS }] },
    ];
    TaskSpec::new(name, program).on([cpu]).copies(count)
}

fn run(topology: Topology, policy: PolicyMaker, tasks: Vec<TaskSpec>) -> SimReport {
    let cpus = topology.nr_cpus();
    let load = Workload { duration_ns: Some(4_000 * MS), ..Workload::new("hogs", cpus, tasks) };
    let result = Simulation::with_policy(Machine::new(topology), policy).run(&load).unwrap();
    assert_eq!((&result.fault, result.contract_violations, result.totals.unexpected_transitions), (&None, 0, 0));
    result
}

fn policies() -> [PolicyMaker; 2] {
    [PolicyMaker::of::<Cfs>(""), PolicyMaker::of::<Eevdf>("")]
}

#[test]
fn a_busy_cpu_takes_tasks_from_a_busier_one() {
    for policy in policies() {
        let name = policy.name().to_owned();
        let result = run(Topology::flat(2), policy, vec![hogs("crowd", 0, 5), hogs("alone", 1, 1)]);
        // A third of a CPU each, where the five would have a fifth.
        for task in &result.report.tasks {
            let share = task.cpu_ns as f64 / 4e9;
            assert!((0.3..0.37).contains(&share), "{} has {share} of a CPU under {name}", task.name);
        }
    }
}

#[test]
fn balance_reaches_over_nodes() {
    for policy in policies() {
        let name = policy.name().to_owned();
        let alone = (0..8).filter(|cpu| *cpu != 5).map(|cpu| hogs(&format!("alone-{cpu}"), cpu, 1));
        let result = run(Topology::regular(2, 1, 2, 2), policy, alone.chain([hogs("crowd", 5, 9)]).collect());
        let least = result.report.tasks.iter().map(|task| task.cpu_ns).min().unwrap();
        assert!(least > 1_400 * MS, "half a CPU each is 2,000 ms, and somebody has {least} ns under {name}");
    }
}

#[test]
fn what_is_even_stays_where_it_is() {
    for policy in policies() {
        let name = policy.name().to_owned();
        let result = run(Topology::flat(2), policy, vec![hogs("three", 0, 3), hogs("two", 1, 2)]);
        let moves: u64 = result.report.tasks.iter().filter_map(|task| task.migrations).sum();
        assert_eq!(moves, 0, "five on two CPUs cannot be shared out better, under {name}");
    }
}
