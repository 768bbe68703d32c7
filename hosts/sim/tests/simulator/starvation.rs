//! No task starves under a policy that promises fairness, however little it weighs and however many come after it.

use ekiden::{Scheduler, weight_of_nice};
use ekiden_policies::{Cfs, Eevdf, Wfq};
use ekiden_sim::{Machine, Model, Simulation};
use ekiden_workload::{Step, TaskSpec, Workload};

const MS: u64 = 1_000_000;

fn hog(name: &str) -> TaskSpec {
    TaskSpec::new(name, vec![Step::forever([Step::Run { ns: MS }])])
}

/// What the task `name` has of one CPU under each policy, in milliseconds.
fn cpu_ms(tasks: &[TaskSpec], name: &str, of_ms: u64) -> [u64; 3] {
    fn run<S: Scheduler>(load: &Workload, name: &str) -> u64 {
        let result = Simulation::of::<S>(Machine::flat(1).with_model(Model::free()), "").run(load).unwrap();
        result.report.task(name).unwrap().cpu_ns / MS
    }
    let load = Workload::new("load", 1, tasks.to_vec()).lasting(of_ms * MS);
    [run::<Wfq>(&load, name), run::<Cfs>(&load, name), run::<Eevdf>(&load, name)]
}

/// A process that continues as a child, which continues as its own child, and so on, 15 times: each is new.
fn relay(start_ms: u64) -> TaskSpec {
    let leg = Step::Run { ns: 2 * MS };
    let program = (0..14).fold(vec![leg.clone()], |next, _| vec![leg.clone(), Step::fork(next)]);
    TaskSpec { start_ns: start_ms * MS, ..TaskSpec::new(format!("relay{start_ms}"), program) }
}

#[test]
fn chains_of_new_processes_leave_others_their_share() {
    let tasks: Vec<TaskSpec> = (0..300).step_by(30).map(relay).chain([hog("hog")]).collect();
    let had_ms = cpu_ms(&tasks, "hog", 300);
    assert!(had_ms.into_iter().all(|ms| ms > 60), "{had_ms:?}");
}

#[test]
fn what_a_task_of_little_weight_has_while_it_is_alone_is_not_held_against_it() {
    // 19 ms at nice 19 are 1.3 s at nice 0, which each of the others would have first.
    let other = |index| TaskSpec { start_ns: 119 * MS, ..hog(&format!("other{index}")) };
    let tasks: Vec<TaskSpec> = (0..5).map(other).chain([hog("nice").nice(19)]).collect();
    let had_ms = cpu_ms(&tasks, "nice", 4000);
    assert!(had_ms.into_iter().all(|ms| ms > 121), "{had_ms:?}");
}

/// The part of one CPU that a task has beside others, over two minutes, and what is due to its weight.
fn share_beside(others: u32, nice_of_others: i32, nice: i32) -> (f64, f64) {
    let other = |index| hog(&format!("other{index}")).nice(nice_of_others);
    let tasks: Vec<TaskSpec> = (0..others).map(other).chain([hog("one").nice(nice)]).collect();
    let load = Workload::new("load", 1, tasks).lasting(120_000 * MS);
    let report = Simulation::of::<Wfq>(Machine::flat(1), "").run(&load).unwrap().report;
    let all: u64 = report.tasks.iter().map(|task| task.cpu_ns).sum();
    let weight = |nice| f64::from(weight_of_nice(nice));
    let due = weight(nice) / (weight(nice) + f64::from(others) * weight(nice_of_others));
    (report.task("one").unwrap().cpu_ns as f64 / all as f64, due)
}

#[test]
fn under_wfq_a_share_is_what_its_weight_is_due_however_many_there_are() {
    for (others, nice_of_others, nice) in [
        (1, 0, 19),
        (1, -20, 19),
        (9, 0, 19),
        (9, -20, 19),
        (9, 19, -20),
        (59, 0, 19),
        (59, 0, 5),
        (59, -10, 10),
        (59, 19, -20),
        (999, 0, 19),
        (999, 19, -20),
    ] {
        let (had, due) = share_beside(others, nice_of_others, nice);
        let off = had / due - 1.0;
        println!("{others} at nice {nice_of_others}, one at {nice}: {:+.2} % off", 100.0 * off);
        assert!(off.abs() < 0.05, "{others} at nice {nice_of_others}, one at {nice}: {had} instead of {due}");
    }
}

/// A fair wait would be of seventeen seconds for the shortest turn that there is, and of minutes.
#[test]
fn under_wfq_no_task_waits_for_longer_than_the_kernel_bears() {
    for others in [59, 999] {
        let (had, due) = share_beside(others, -20, 19);
        // A turn each six seconds, of two minutes.
        let turns = had * 120e3 / 0.05;
        assert!(had > due && (15.0..30.0).contains(&turns), "{others}: {turns} turns, {had} instead of {due}");
    }
}

#[test]
fn under_wfq_later_tasks_have_no_long_stretch_each_before_the_one_that_had_it() {
    // A machine without ticks for so long is like a kernel that is not preempted.
    let model = Model { tick_ns: 100 * MS, ..Model::free() };
    let short = |index| {
        let turns = Step::forever([Step::Run { ns: 4 * MS }, Step::Sleep { ns: MS }]);
        TaskSpec { start_ns: 301 * MS, ..TaskSpec::new(format!("short{index}"), vec![turns]) }
    };
    let tasks: Vec<TaskSpec> = (0..100).map(short).chain([hog("hog"), hog("other")]).collect();
    let load = Workload::new("load", 1, tasks).lasting(10_000 * MS);
    let result = Simulation::of::<Wfq>(Machine::flat(1).with_model(model), "").run(&load).unwrap();
    let had_ms = result.report.task("hog").unwrap().cpu_ns / MS;
    assert!(had_ms > 400, "{had_ms} ms");
}

#[test]
fn under_wfq_a_new_task_stands_where_the_one_that_runs_has_come_to() {
    let load = vec![
        hog("nice").nice(19),
        TaskSpec { start_ns: MS, ..hog("long") },
        TaskSpec { start_ns: 201 * MS, ..hog("new") },
    ];
    let load = Workload::new("load", 1, load).lasting(400 * MS);
    let machine = Machine::flat(1).with_model(Model::free());
    let report = Simulation::of::<Wfq>(machine, "period_us=1000000").run(&load).unwrap().report;
    let cpu_ms = |name| report.task(name).unwrap().cpu_ns / MS;
    assert!(cpu_ms("long") > 280, "{} and {} ms", cpu_ms("long"), cpu_ms("new"));
}
