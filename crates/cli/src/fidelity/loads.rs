//! What is run on both sides: the loads that are compared, and the small ones that costs are found by.

use anyhow::Result;
use ekiden_workload::{Step, TaskSpec, Workload};

/// What is compared unless other loads are named. Those with `on=0` are about one CPU.
pub(super) const COMPARED: [&str; 8] = [
    "pipes:round_trips=3000:on=0",
    "pipe-across",
    "hackbench:groups=1:pairs=5:loops=40:on=0",
    "hackbench:groups=2:pairs=5:loops=40",
    "hogs:count=2:ms=150:on=0+hogs:count=1:ms=150:nice=3:on=0+hogs:count=1:ms=150:nice=6:on=0",
    "hogs:count=3:ms=150+hogs:count=2:ms=150:nice=4",
    "schbench:messengers=1:workers=4:rounds=60",
    "forks:parents=2:rounds=40:children=4:work_us=300",
];

/// Begins the names of the loads that costs are found by.
const COST: &str = "cost-";

/// A load by its name.
pub(super) fn find(name: &str, cpus: u32) -> Result<Workload> {
    match name.strip_prefix(COST).and_then(small) {
        Some(load) => Ok(load),
        None => Ok(crate::sim::load(name, cpus)?.0),
    }
}

/// The load that shows one cost, and as little else as can be.
fn small(name: &str) -> Option<Workload> {
    let one = |steps: Vec<Step>| vec![TaskSpec::new("task", steps).on([0])];
    let tasks = match name {
        // A task that never waits for its own byte.
        "syscall" => one(vec![Step::repeat(2_000, [Step::PipeWrite { pipe: 0 }, Step::PipeRead { pipe: 0 }])]),
        "sleep" => one(vec![Step::repeat(200, [Step::Sleep { ns: 1_000_000 }])]),
        "fork" => one(vec![Step::repeat(100, [Step::fork([]), Step::Wait])]),
        "exec" => one(vec![Step::repeat(30, [Step::fork([Step::Exec]), Step::Wait])]),
        "run" => one(vec![Step::Run { ns: 400_000_000 }]),
        "switch" => ekiden_workload::builtin::pipe(2_000, ekiden_workload::builtin::Where::SameCpu).tasks,
        "across" => ekiden_workload::builtin::pipe(1_000, ekiden_workload::builtin::Where::Across).tasks,
        _ => return None,
    };
    let cpus = if name == "across" { 2 } else { 1 };
    Some(Workload::new(format!("{COST}{name}"), cpus, tasks))
}
