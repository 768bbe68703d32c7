//! Threads that hints put into the same set share a CPU, if it is not crowded, and hints of others do not change
//! that.

use ekiden_policies::Locality;
use ekiden_sim::{Machine, SimReport, Simulation};
use ekiden_workload::{HintWord, Step, TaskSpec, Workload, checks::all_finished};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const JOIN: u32 = 1;
const CPUS: u32 = 4;

/// The task says that it is in this set, by this queue, and waits for the answer.
fn join(queue: u32, set: u32) -> Vec<Step> {
    let words = [HintWord::Value(JOIN), HintWord::OwnPid, HintWord::Value(set)];
    vec![Step::WriteHint { queue, hint: words.to_vec(), ring: true }, Step::ReadNotice { queue }]
}

/// schbench's message threads, each with two workers, by pipes as the futexes are that say nothing of the task that sleeps
/// next.
fn schbench(hints: bool) -> Workload {
    let mut tasks = Vec::new();
    for set in 0..2_u32 {
        // A queue is of the task that opened it, so each has its own; the number of the set is the message thread's.
        let pipe = |worker: u32| set * 10 + worker;
        let said = |queue: u32| if hints { join(queue, 1) } else { Vec::new() };
        let wake = [0, 1].map(|worker| Step::PipeWrite { pipe: pipe(worker) });
        let answers = [0, 1].map(|worker| Step::PipeRead { pipe: pipe(worker) + 5 });
        let mut message = said(set);
        message.push(Step::repeat(200, wake.into_iter().chain(answers).chain([Step::Run { ns: 20 * US }])));
        let workers = [0, 1].map(|worker| {
            let round = [Step::PipeRead { pipe: pipe(worker) }, Step::Run { ns: 20 * US }];
            Step::fork([
                Step::Sleep { ns: 50 * US },
                Step::repeat(u64::from(hints), join(set, 1)),
                Step::repeat(200, round.into_iter().chain([Step::PipeWrite { pipe: pipe(worker) + 5 }])),
            ])
        });
        message.splice(0..0, workers);
        tasks.push(TaskSpec::new(format!("message-{set}"), message));
    }
    Workload::new("schbench", CPUS, tasks)
}

fn run(load: &Workload, params: &str) -> SimReport {
    let report = Simulation::of::<Locality>(Machine::flat(CPUS), params).traced().run(load).unwrap();
    assert_eq!(all_finished(&report.report), Ok(()));
    assert_eq!((report.fault.clone(), report.contract_violations, report.totals.unexpected_transitions), (None, 0, 0));
    report
}

/// How often a task ran on each CPU.
fn runs(report: &SimReport, is_it: impl Fn(u32) -> bool) -> Vec<usize> {
    let ran =
        |cpu| report.trace.records().filter(move |record| record.what == ekiden_sim::What::Run && record.cpu == cpu);
    (0..CPUS).map(|cpu| ran(cpu).filter(|record| is_it(record.pid)).count()).collect()
}

#[test]
fn threads_of_a_set_share_a_cpu_and_sets_do_not() {
    let together = run(&schbench(true), "");
    let busy = runs(&together, |_| true);
    // Two sets, two CPUs, for nearly all of the time.
    let mut sorted = busy.clone();
    sorted.sort_unstable();
    assert!(sorted[1] * 20 < sorted[2], "two CPUs have both sets: {busy:?}");
    let apart = runs(&run(&schbench(false), ""), |_| true);
    assert!(apart.iter().all(|runs| *runs > 100), "without hints they spread: {apart:?}");
}

#[test]
fn a_hint_is_ignored_where_its_cpu_is_crowded() {
    // Eight that never sleep for long want one CPU.
    let steps = join(0, 1).into_iter().chain([Step::repeat(20, [Step::Run { ns: MS }, Step::Sleep { ns: 10 * US }])]);
    let children = (0..8).map(|_| Step::fork(steps.clone().collect::<Vec<_>>()));
    let owner = children.chain([Step::Wait]).collect();
    let load = Workload::new("crowd", CPUS, [TaskSpec::new("owner", owner)]);
    let crowded = run(&load, "crowd=2");
    let busy = runs(&crowded, |_| true);
    assert!(busy.iter().all(|runs| *runs > 10), "all CPUs help: {busy:?}");
    let patient = run(&load, "crowd=1024");
    let mut busy = runs(&patient, |_| true);
    busy.sort_unstable();
    assert!(busy[2] * 10 < busy[3], "one CPU has them: {busy:?}");
}

#[test]
fn a_queue_changes_only_what_it_has_entered() {
    // The first thread of the simulation has the number 1000, and another program says that it is in a set of its
    // own.
    let own =
        join(0, 1).into_iter().chain([Step::repeat(100, [Step::Run { ns: 100 * US }, Step::Sleep { ns: 100 * US }])]);
    let words = [HintWord::Value(JOIN), HintWord::Value(1_000), HintWord::Value(7)].to_vec();
    let foreign = [Step::WriteHint { queue: 1, hint: words, ring: true }, Step::ReadNotice { queue: 1 }];
    let meddler = [Step::Sleep { ns: 5 * MS }].into_iter().chain([Step::repeat(20, foreign)]);
    let load = Workload::new(
        "meddler",
        CPUS,
        [TaskSpec::new("own", own.collect()), TaskSpec::new("meddler", meddler.collect())],
    );
    let ran = runs(&run(&load, ""), |pid| pid == 1_000);
    assert!(ran[0] >= 100 && ran[1..].iter().all(|runs| *runs <= 1), "it stays where its own queue wants it: {ran:?}");
}
