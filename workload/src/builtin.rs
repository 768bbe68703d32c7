//! The loads that come with Ekiden. Loads that test something come with the check they must pass, so that one test
//! body judges every scheduler, on a real kernel and in the simulator.
//!
//! The three of Ekiben's appendix A.1 (functional equivalence of weighted fair queueing) are [`fair_share`],
//! [`weights`], and [`placement`] with [`forced_move`].

use crate::checks::{
    Verdict, all_finished, each_on_its_own_cpu, equal_shares, finish_ns, finish_times_match, mean_finish_ns, near,
    shares_by_weight, shares_match, some_tasks, these_finish_together, waits_match,
};
use crate::loads;
use crate::random::Random;
use crate::report::Report;
use crate::spec::{Step, TaskSpec, Workload};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Judges one report.
pub type Check = fn(&Report) -> Verdict;

/// Judges a report against one of the same load under another scheduler (first the one to judge).
pub type Compare = fn(&Report, &Report) -> Verdict;

/// A load with what it must show.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its purpose in one sentence.
    pub about: &'static str,
    /// The load.
    pub workload: Workload,
    /// What every scheduler must pass that claims what the load tests.
    pub check: Check,
    /// How near it must come to another scheduler, where that can be said.
    pub compare: Option<Compare>,
}

/// All built-in loads for a machine with this many CPUs, in their usual size. Loads that need more are left out.
pub fn all(cpus: u32) -> Vec<Case> {
    let finishing = |about, workload| case(about, (workload, all_finished), None);
    let mut cases = vec![
        finishing("two tasks send a byte to and fro on one CPU", pipe(2_000, Where::SameCpu)),
        finishing("the same across two CPUs", pipe(2_000, Where::Across)),
        finishing("the same wherever the scheduler puts them", pipe(2_000, Where::Anywhere)),
        finishing("groups of senders that each write to every receiver", messaging(cpus, 4, 4, 4, 50)),
        finishing("tasks that sleep and run briefly, next to hogs", sleepers(cpus, 4, 50)),
        finishing("a storm of fork, exec, exit, affinity, nice, yield and sleep", churn(cpus, 8, 100, 1)),
        case("five hogs on one CPU have equal shares (A.1, test 1)", fair_share_test(), Some(same_shares)),
        case("the hog at nice 19 comes last (A.1, test 2)", weights_test(), Some(same_finish)),
        case("one hog per CPU, each finds its own (A.1, test 3)", placement_test(cpus), Some(same_shares_placed)),
        case(
            "the same, one forced to another's CPU and released (A.1, test 3)",
            forced_move_test(cpus),
            Some(moved_as_soon),
        ),
    ];
    for (first, second) in [(0, 1), (0, 5), (5, 10), (-5, 0)] {
        let about = "two hogs of different nice values share a CPU by their weights";
        cases.push(case(about, nice_pair_test(first, second), Some(same_shares)));
    }
    cases.retain(|case| case.workload.cpus <= cpus);
    cases
}

fn case(about: &'static str, (workload, check): (Workload, Check), compare: Option<Compare>) -> Case {
    Case { about, workload, check, compare }
}

fn same_shares(report: &Report, reference: &Report) -> Verdict {
    shares_match(report, reference, 0.05)
}

/// How much more of its time a task may wait than under the other scheduler, until it has found a CPU of its own.
const AS_SOON: f64 = 0.05;

fn same_shares_placed(report: &Report, reference: &Report) -> Verdict {
    shares_match(report, reference, PLACED_SHARES)?;
    waits_match(report, reference, AS_SOON)
}

fn moved_as_soon(report: &Report, reference: &Report) -> Verdict {
    waits_match(report, reference, AS_SOON)
}

fn same_finish(report: &Report, reference: &Report) -> Verdict {
    finish_times_match(report, reference, 0.05)
}

/// The built-in load of this name, in its usual size, or one of [`loads`], which is judged by whether it
/// finished.
pub fn find(name: &str, cpus: u32) -> Option<Case> {
    let known = all(cpus).into_iter().find(|case| case.workload.name == name);
    known.or_else(|| {
        let load = loads::make(name, cpus).ok()?;
        let check = check_of(&load);
        Some(case("", (load, check), None))
    })
}

/// The check of a load of which nothing else is known: that all tasks finished, unless some never end.
pub fn check_of(load: &Workload) -> Check {
    let mut ends = true;
    load.each_step(|step| ends &= !matches!(step, Step::Forever { .. }));
    if ends { all_finished } else { some_tasks }
}

/// Where the two tasks of [`pipe`] run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// Both on CPU 0.
    SameCpu,
    /// One on CPU 0, one on CPU 1.
    Across,
    /// Wherever the scheduler puts them.
    Anywhere,
}

/// Ping-pong: a byte goes to and fro `round_trips` times, so that every message is a wake-up and a switch.
pub fn pipe(round_trips: u64, place: Where) -> Workload {
    let ping = Step::repeat(round_trips, [Step::PipeWrite { pipe: 0 }, Step::PipeRead { pipe: 1 }]);
    let pong = Step::repeat(round_trips, [Step::PipeRead { pipe: 0 }, Step::PipeWrite { pipe: 1 }]);
    let (ping, pong) = (TaskSpec::new("ping", vec![ping]), TaskSpec::new("pong", vec![pong]));
    match place {
        Where::SameCpu => Workload::new("pipe", 1, [ping.on([0]), pong.on([0])]),
        Where::Across => Workload::new("pipe-across", 2, [ping.on([0]), pong.on([1])]),
        Where::Anywhere => Workload::new("pipe-anywhere", 1, [ping, pong]),
    }
}

/// As hackbench: in each group every sender writes `loops` times to every receiver, each of which has its own pipe.
pub fn messaging(cpus: u32, groups: u32, senders: u32, receivers: u32, loops: u64) -> Workload {
    let mut tasks = Vec::new();
    for group in 0..groups {
        let pipe_of = |receiver| group * receivers + receiver;
        let write_all = (0..receivers).map(|receiver| Step::PipeWrite { pipe: pipe_of(receiver) });
        let send = vec![Step::repeat(loops, write_all)];
        tasks.push(TaskSpec::new(format!("sender-{group}"), send).copies(senders));
        for receiver in 0..receivers {
            let read = Step::repeat(loops * u64::from(senders), [Step::PipeRead { pipe: pipe_of(receiver) }]);
            tasks.push(TaskSpec::new(format!("receiver-{group}-{receiver}"), vec![read]));
        }
    }
    Workload::new("messaging", cpus, tasks)
}

fn hog(name: impl Into<String>) -> TaskSpec {
    TaskSpec::new(name, vec![Step::forever([Step::Run { ns: MS }])])
}

/// `count` hogs on CPU 0, for `duration_ns`.
pub fn fair_share(count: u32, duration_ns: u64) -> Workload {
    Workload::new("fair-share", 1, [hog("hog").on([0]).copies(count)]).lasting(duration_ns)
}

/// A.1, test 1: five hogs on one CPU, long enough that a slice more or less does not matter, nor what one is ahead that was made
/// sooner than the others.
pub fn fair_share_test() -> (Workload, Check) {
    (fair_share(5, 4_000 * MS), |report| equal_shares(report, 0.02))
}

/// Four tasks at nice 0 and one at nice 19 on CPU 0, each with `work_ns` to do.
pub fn weights(work_ns: u64) -> Workload {
    let task = |name| TaskSpec::new(name, vec![Step::Run { ns: work_ns }]).on([0]);
    Workload::new("weights", 1, [task("ordinary").copies(4), task("lowest").nice(19)])
}

/// A.1, test 2: the four ordinary tasks finish together; the lowest, which has hardly run until then, follows after
/// about as long as one task takes alone, a quarter of what the four took. Long enough that a round of turns is one per cent.
pub fn weights_test() -> (Workload, Check) {
    (weights(400 * MS), |report| {
        let ordinary = ["ordinary.0", "ordinary.1", "ordinary.2", "ordinary.3"];
        these_finish_together(report, &ordinary, 0.02)?;
        let (mean_ns, lowest_ns) = (mean_finish_ns(report, &ordinary)?, finish_ns(report, "lowest")?);
        if near(lowest_ns, 1.25 * mean_ns, 0.05) {
            return Ok(());
        }
        let (lowest_ms, due_ms) = (lowest_ns / 1e6, 1.25 * mean_ns / 1e6);
        Err(format!("`lowest` finished at {lowest_ms:.2} ms; due at {due_ms:.2} ms ± 5 %, a quarter after the others"))
    })
}

/// One hog per CPU, free to go anywhere, for `duration_ns`.
pub fn placement(cpus: u32, duration_ns: u64) -> Workload {
    Workload::new("placement", cpus, [hog("hog").copies(cpus)]).lasting(duration_ns)
}

/// The share of its time that a task with a CPU of its own may all the same spend waiting. Wide because of virtual
/// machines that count instructions: there CPUs take turns of some milliseconds, which a task that was interrupted at
/// the wrong moment sees as waiting (20 % was seen). Two tasks that share a CPU wait half of their time.
const PLACED_WAITING: f64 = 0.35;

/// How far the shares of tasks with a CPU each may lie apart, for the same reason.
const PLACED_SHARES: f64 = 0.25;

/// A.1, test 3: tasks find a CPU each, and keep it.
pub fn placement_test(cpus: u32) -> (Workload, Check) {
    (placement(cpus, 1_000 * MS), placed)
}

fn placed(report: &Report) -> Verdict {
    each_on_its_own_cpu(report, PLACED_WAITING)?;
    equal_shares(report, PLACED_SHARES)
}

/// One hog on each CPU, as in [`placement`], but kept there at first. Then all are released, and one is forced from CPU 0
/// to CPU 1, where another runs, and at once released too: a task must now move to the CPU that it left. Needs two
/// CPUs.
pub fn forced_move(cpus: u32, duration_ns: u64) -> Workload {
    let cpus = cpus.max(2);
    let go_on = Step::forever([Step::Run { ns: MS }]);
    let moved = vec![
        Step::Run { ns: duration_ns / 5 },
        Step::Mark,
        Step::SetAffinity { cpus: Some(vec![1]) },
        Step::SetAffinity { cpus: None },
        Step::Mark,
        go_on.clone(),
    ];
    let released = vec![Step::Run { ns: duration_ns / 10 }, Step::SetAffinity { cpus: None }, go_on];
    let hogs = (1..cpus).map(|cpu| TaskSpec::new(format!("hog-{cpu}"), released.clone()).on([cpu]));
    let moved = TaskSpec::new("moved", moved).on([0]);
    Workload::new("forced-move", cpus, std::iter::once(moved).chain(hogs)).lasting(duration_ns)
}

/// A.1, test 3 with a move: afterwards each task has a CPU of its own again.
pub fn forced_move_test(cpus: u32) -> (Workload, Check) {
    (forced_move(cpus, 1_500 * MS), |report| {
        let marks = report.task("moved").map_or(0, |moved| moved.marks_ns.len());
        if marks != 2 {
            return Err(format!("`moved` passed {marks} of its 2 marks, so the move did not take place"));
        }
        // It takes the scheduler some time to find the CPU that was left, during which two tasks share one.
        each_on_its_own_cpu(report, 0.5)
    })
}

/// Two hogs on CPU 0 with these nice values, for `duration_ns`.
pub fn nice_pair(first: i32, second: i32, duration_ns: u64) -> Workload {
    let tasks = [first, second].map(|nice| hog(format!("nice{nice}")).nice(nice).on([0]));
    Workload::new(format!("nice:{first}:{second}"), 1, tasks).lasting(duration_ns)
}

/// Weights by nice value are the kernel's, within 5 %.
pub fn nice_pair_test(first: i32, second: i32) -> (Workload, Check) {
    (nice_pair(first, second, 2_000 * MS), |report| shares_by_weight(report, 0.05))
}

/// `each` tasks per CPU that `rounds` times sleep 1 ms and run 50 µs, next to one task per CPU with as much work as
/// they need time.
pub fn sleepers(cpus: u32, each: u32, rounds: u64) -> Workload {
    let nap = Step::repeat(rounds, [Step::Sleep { ns: MS }, Step::Run { ns: 50 * US }]);
    let sleeper = TaskSpec::new("sleeper", vec![nap]).copies(each * cpus);
    let hog = TaskSpec::new("hog", vec![Step::Run { ns: rounds * MS }]).copies(cpus);
    Workload::new("sleepers", cpus, [sleeper, hog])
}

/// A storm: `tasks` tasks that do `steps` things each at random, forking children that run, sleep, or start a new
/// program, and changing their CPUs and nice value. A seed makes one load in every version.
///
/// Nice values only rise, so that it needs no privilege.
pub fn churn(cpus: u32, tasks: u32, steps: u32, seed: u64) -> Workload {
    let cpus = cpus.max(1);
    let mut random = Random::new(seed);
    let storm = |random: &mut Random| {
        let mut nice = 0;
        let mut program = Vec::new();
        for _ in 0..steps {
            match below(random, 7) {
                0 => {
                    program.push(Step::fork(short_life(random)));
                    if below(random, 4) > 0 {
                        program.push(Step::Wait);
                    }
                }
                1 => {
                    let mut set = vec![below(random, cpus.into()) as u32, below(random, cpus.into()) as u32];
                    set.truncate(1 + below(random, 2) as usize);
                    set.dedup();
                    let cpus = (below(random, 4) > 0).then_some(set);
                    program.push(Step::SetAffinity { cpus });
                }
                2 => program.push(Step::Sleep { ns: below(random, 300) * US }),
                3 => program.push(Step::Yield),
                4 if below(random, 4) == 0 => {
                    nice = 19.min(nice + below(random, 3) as i32);
                    program.push(Step::SetNice { nice });
                }
                _ => program.push(Step::Run { ns: below(random, 60) * US }),
            }
        }
        program.push(Step::Wait);
        program
    };
    let tasks = (0..tasks).map(|task| TaskSpec::new(format!("storm-{task}"), storm(&mut random)));
    Workload::new("churn", cpus, tasks)
}

/// A number below `limit`, which is small, so that the modulo's bias does not matter.
fn below(random: &mut Random, limit: u64) -> u64 {
    random.next() % limit
}

fn short_life(random: &mut Random) -> Vec<Step> {
    match below(random, 4) {
        0 => vec![],
        1 => vec![Step::Run { ns: below(random, 20) * US }],
        2 => vec![Step::Sleep { ns: below(random, 100) * US }, Step::Run { ns: 5 * US }],
        _ => vec![Step::Exec],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::TaskReport;

    #[test]
    fn every_built_in_load_can_run_and_has_its_own_name() {
        for cpus in [1, 2, 4, 64] {
            let cases = all(cpus);
            let names: std::collections::HashSet<_> = cases.iter().map(|case| case.workload.name.clone()).collect();
            assert_eq!(names.len(), cases.len());
            for case in cases {
                case.workload.check().unwrap();
                assert_eq!(Workload::parse(&case.workload.to_json()).unwrap(), case.workload);
            }
        }
    }

    #[test]
    fn one_cpu_has_no_loads_that_need_two() {
        assert!(find("pipe-across", 1).is_none() && find("forced-move", 1).is_none());
        assert!(find("pipe-across", 2).is_some() && find("forced-move", 2).is_some());
    }

    #[test]
    fn messaging_reads_as_many_bytes_as_it_writes() {
        let load = messaging(2, 3, 4, 5, 7);
        let (mut written, mut read) = (0, 0);
        for (_, task) in load.instances() {
            if let Step::Repeat { times, steps } = &task.program[0] {
                let count = |of: fn(&Step) -> bool| times * steps.iter().filter(|step| of(step)).count() as u64;
                written += count(|step| matches!(step, Step::PipeWrite { .. }));
                read += count(|step| matches!(step, Step::PipeRead { .. }));
            }
        }
        assert_eq!((written, read), (3 * 4 * 5 * 7, 3 * 4 * 5 * 7));
        assert_eq!(load.pipes(), 15);
    }

    #[test]
    fn a_seed_makes_one_storm_and_another_seed_another() {
        assert_eq!(churn(2, 4, 50, 7), churn(2, 4, 50, 7));
        assert_ne!(churn(2, 4, 50, 7).tasks, churn(2, 4, 50, 8).tasks);
    }

    #[test]
    fn two_hogs_that_shared_a_cpu_are_not_well_placed() {
        let report = |last_cpus: [u32; 2], cpu_ms: u64| Report {
            tasks: (0..2)
                .map(|task| TaskReport {
                    name: format!("hog.{task}"),
                    cpu_ns: cpu_ms * MS,
                    start_ns: Some(0),
                    finish_ns: Some(1_000 * MS),
                    last_cpu: Some(last_cpus[task]),
                    ..TaskReport::default()
                })
                .collect(),
            ..Report::default()
        };
        assert_eq!(placed(&report([0, 1], 900)), Ok(()));
        assert!(placed(&report([1, 1], 900)).is_err());
        assert!(placed(&report([0, 1], 500)).is_err());
    }

    #[test]
    fn the_lowest_task_must_neither_come_with_the_others_nor_much_later() {
        let (load, check) = weights_test();
        let report = |lowest_ms: u64| Report {
            workload: load.name.clone(),
            tasks: load
                .instances()
                .map(|(name, _)| {
                    let finish_ns = Some(if name == "lowest" { lowest_ms * MS } else { 800 * MS });
                    TaskReport { name, finish_ns, ..TaskReport::default() }
                })
                .collect(),
            ..Report::default()
        };
        assert_eq!(check(&report(1_000)), Ok(()));
        assert!(check(&report(800)).is_err());
        assert!(check(&report(1_200)).is_err());
    }
}
