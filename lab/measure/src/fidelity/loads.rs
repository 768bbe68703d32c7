//! Loads that run on both sides: those that are compared, and the small ones that costs are found by.

use anyhow::Result;
use ekiden_workload::{
    Step, TaskSpec, Workload,
    builtin::{self, Where},
};

/// Loads that are compared unless others are named. Loads with `on=0` are about one CPU.
pub(super) const COMPARED: [&str; 8] = [
    "pipes:round_trips=3000:on=0",
    "pipe-across",
    "hackbench:groups=1:pairs=5:loops=200:on=0",
    "hackbench:groups=2:pairs=5:loops=100",
    "hogs:count=2:ms=150:on=0+hogs:count=1:ms=150:nice=3:on=0+hogs:count=1:ms=150:nice=6:on=0",
    "hogs:count=4:ms=150+hogs:count=2:ms=150:nice=4",
    "schbench:messengers=1:workers=4:rounds=100",
    "forks:parents=2:rounds=40:children=4:work_us=300",
];

/// Begins the names of the loads that costs are found by.
const COST: &str = "cost-";

/// The task that lets the others begin.
pub(super) const STARTER: &str = "starter";

/// Begins the names of the tasks that run and end before the others begin.
pub(super) const SETTLER: &str = "settler-";

/// A load by its name, with a start that is the same on both sides.
pub(super) fn find(name: &str, cpus: u32) -> Result<Workload> {
    match name.strip_prefix(COST).and_then(small) {
        Some(load) => Ok(staged(load, cpus)),
        None => Ok(staged(crate::loads::load(name, cpus)?.0, cpus)),
    }
}

/// The load with a start of its own: its tasks are put on the CPUs in turn, wait there for a byte from another task,
/// which is part of the load too, and are then free. Where processes are when a real load begins depends on how it was
/// set up, and under a policy that moves few of them that is all that one would see. Once they wait, a task on each CPU runs
/// and sleeps until the virtual times of all have little to do with the order in which they were made: a new task stands
/// behind the ones before it, in the simulator by a slice each, and for as long as a load lasts.
fn staged(mut load: Workload, cpus: u32) -> Workload {
    const WAITING_NS: u64 = 30_000_000;
    const SETTLED_NS: u64 = 110_000_000;
    let turns = Step::repeat(16, [Step::Run { ns: 1_000_000 }, Step::Sleep { ns: 200_000 }]);
    let settler = |cpu| {
        let program = vec![Step::Sleep { ns: WAITING_NS }, turns.clone()];
        TaskSpec::new(format!("{SETTLER}{cpu}"), program).on([cpu])
    };
    let gate = load.pipes();
    let mut tasks = Vec::new();
    let mut copies = 0;
    for task in load.tasks {
        for copy in 0..task.count {
            let anywhere = task.affinity.clone();
            let home = anywhere.as_ref().map_or(copies % cpus, |allowed| allowed[copies as usize % allowed.len()]);
            copies += 1;
            let mut program = vec![Step::SetAffinity { cpus: Some(vec![home]) }, Step::PipeRead { pipe: gate }];
            program.push(Step::SetAffinity { cpus: anywhere });
            program.extend(task.program.iter().cloned());
            let name = if task.count > 1 { format!("{}.{copy}", task.name) } else { task.name.clone() };
            tasks.push(TaskSpec { name, count: 1, program, ..task.clone() });
        }
    }
    tasks.extend((0..cpus.min(load.cpus)).map(settler));
    let begin = Step::repeat(copies.into(), [Step::PipeWrite { pipe: gate }]);
    tasks.push(TaskSpec::new(STARTER, vec![Step::Sleep { ns: SETTLED_NS }, Step::Mark, begin]).on([0]));
    load.tasks = tasks;
    load
}

/// The load that shows one cost, and as little else as can be.
fn small(name: &str) -> Option<Workload> {
    let task = |name: &str, steps: Vec<Step>| TaskSpec::new(name, steps).on([0]);
    let tasks = match name {
        // A task that never waits for its own bytes, some of which come to an empty pipe and most to one that is not.
        "syscall" => {
            let (write, read) = (Step::PipeWrite { pipe: 0 }, Step::PipeRead { pipe: 0 });
            vec![task("task", vec![Step::repeat(300, [Step::repeat(5, [write]), Step::repeat(5, [read])])])]
        }
        "run" => vec![task("task", vec![Step::Run { ns: 400_000_000 }])],
        "switch" => builtin::pipe(2_000, Where::SameCpu).tasks,
        "across" => builtin::pipe(1_000, Where::Across).tasks,
        "sleep" => vec![task("task", vec![Step::repeat(200, [Step::Sleep { ns: 1_000_000 }])])],
        // The last of the bytes that it waits for comes when all but one have ended.
        "exit" => {
            let reader = task("reader", vec![Step::repeat(21, [Step::PipeRead { pipe: 0 }])]);
            vec![reader, task("brief", vec![Step::PipeWrite { pipe: 0 }]).copies(21)]
        }
        "fork" => vec![task("task", vec![Step::repeat(100, [Step::fork([]), Step::Wait])])],
        "exec" => vec![task("task", vec![Step::repeat(30, [Step::fork([Step::Exec]), Step::Wait])])],
        _ => return None,
    };
    let cpus = if name == "across" { 2 } else { 1 };
    Some(Workload::new(format!("{COST}{name}"), cpus, tasks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_can_run_on_two_cpus() {
        for name in COMPARED.map(str::to_owned).into_iter().chain(super::super::calibrate::loads()) {
            let load = find(&name, 2).unwrap();
            load.check().unwrap();
            assert_eq!(load.tasks.last().unwrap().name, STARTER);
        }
    }
}
