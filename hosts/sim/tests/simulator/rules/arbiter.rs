//! The core arbiter: CPUs by priority for applications that ask, all other tasks on what is left, and CPUs come back.

use std::collections::BTreeMap;

use ekiden_policies::{Arbiter, Ask, Becomes};
use ekiden_sim::{Machine, Model, SimReport, Simulation, What};
use ekiden_workload::{HintWord, Step, TaskSpec, Workload};

use super::{MS, US, good, hogs};

const CPUS: u32 = 4;
/// How long it runs; a turn is as long as a tick, and a new task waits for some of them.
const FOREVER_MS: u64 = 400;

fn ask(queue: u32, ask: Ask, thread: HintWord, cpus: u32, priority: u32) -> Step {
    let words = [HintWord::Value(ask as u32), thread, HintWord::Value(cpus), HintWord::Value(priority)];
    Step::WriteHint { queue, hint: words.to_vec(), ring: true }
}

fn want(queue: u32, cpus: u32, priority: u32) -> Step {
    ask(queue, Ask::Cpus, HintWord::Value(0), cpus, priority)
}

/// An application whose first thread does `program`, with this many activations that do `work`.
fn application(
    name: &str,
    queue: u32,
    activations: u32,
    work: Step,
    program: impl IntoIterator<Item = Step>,
) -> TaskSpec {
    let enroll = ask(queue, Ask::Enroll, HintWord::OwnPid, 0, 0);
    // A queue is of the task that uses it first.
    let mut steps = vec![want(queue, 0, 0)];
    steps.extend((0..activations).map(|_| Step::fork([enroll.clone(), work.clone()])));
    steps.extend(program);
    TaskSpec::new(name, steps)
}

/// It never sleeps, whatever it is asked.
fn stubborn() -> Step {
    Step::forever([Step::Run { ns: MS }])
}

/// It looks for work again and again, and sleeps for a moment in between, as one does that reads what it is told.
fn willing() -> Step {
    Step::forever([Step::Run { ns: 200 * US }, Step::Sleep { ns: 10 * US }])
}

fn sleep(ms: u64) -> Step {
    Step::Sleep { ns: ms * MS }
}

fn run(params: &str, tasks: impl IntoIterator<Item = TaskSpec>) -> SimReport {
    let load = Workload::new("load", CPUS, tasks).lasting(FOREVER_MS * MS);
    let simulation = Simulation::of::<Arbiter>(Machine::flat(CPUS).with_model(Model::free()), params);
    good(simulation.traced().run(&load).unwrap())
}

/// How much of each CPU the threads of each of the load's tasks had in these milliseconds, as a part of it.
fn had(result: &SimReport, from_ms: u64, until_ms: u64) -> BTreeMap<String, [f64; CPUS as usize]> {
    let mut roots = result.report.tasks.iter().map(|task| task.name.clone());
    let mut names = BTreeMap::new();
    let mut had: BTreeMap<String, [f64; CPUS as usize]> =
        roots.clone().map(|name| (name, Default::default())).collect();
    let mut runs = [(0, 0); CPUS as usize];
    let mut note = |names: &BTreeMap<u32, String>, cpu: usize, pid: u32, now_ns: u64| {
        let (ran, since_ns) = std::mem::replace(&mut runs[cpu], (pid, now_ns));
        let (begin, end) = (since_ns.max(from_ms * MS), now_ns.min(until_ms * MS));
        if let Some(name) = names.get(&ran).filter(|_| end > begin) {
            had.get_mut(name).unwrap()[cpu] += (end - begin) as f64 / ((until_ms - from_ms) * MS) as f64;
        }
    };
    for record in result.trace.records() {
        match record.what {
            What::New => {
                // Applications that have no parent come in the order of the load.
                let parent = names.get(&(record.value as u32)).cloned();
                names.insert(record.pid, parent.or_else(|| roots.next()).unwrap());
            }
            What::Run | What::Keep => note(&names, record.cpu as usize, record.pid, record.time_ns),
            What::Idle | What::Offline => note(&names, record.cpu as usize, 0, record.time_ns),
            _ => {}
        }
    }
    (0..CPUS as usize).for_each(|cpu| note(&names, cpu, 0, result.report.wall_ns));
    had
}

fn cpus(had: &BTreeMap<String, [f64; CPUS as usize]>, name: &str) -> f64 {
    had[name].iter().sum()
}

/// On how many CPUs it was all the time.
fn of_its_own(had: &BTreeMap<String, [f64; CPUS as usize]>, name: &str) -> usize {
    had[name].iter().filter(|part| **part > 0.9).count()
}

#[test]
fn an_application_has_the_three_cpus_it_asks_for_and_others_share_the_fourth() {
    let asks = application("asks", 0, 3, stubborn(), [want(0, 3, 1), sleep(1_000)]);
    let result = run("", hogs(4).chain([asks]));
    let had = had(&result, 100, 400);
    assert_eq!(of_its_own(&had, "asks"), 3, "{had:?}");
    for hog in 0..4 {
        let share = cpus(&had, &format!("hog{hog}"));
        assert!((0.15..0.35).contains(&share), "{share} for one of four: {had:?}");
    }
}

#[test]
fn an_application_has_no_more_cpus_than_asked_for_activations_or_allowed() {
    for (wanted, activations, params, expected) in
        [(1, 3, "", 1), (3, 2, "", 2), (9, 4, "", 3), (9, 4, "left=3", 1), (9, 4, "left=4", 0)]
    {
        let asks = application("asks", 0, activations, stubborn(), [want(0, wanted, 1), sleep(1_000)]);
        // There are enough other tasks that all share what is left.
        let result = run(params, hogs(4).chain([asks]));
        let had = had(&result, 100, 400);
        assert_eq!(of_its_own(&had, "asks"), expected, "{wanted} wanted, {activations} activations, {params}: {had:?}");
    }
}

#[test]
fn a_higher_priority_takes_cpus_back_from_a_lower_one_and_leaves_them_again() {
    let low = application("low", 0, 3, willing(), [want(0, 3, 1), sleep(1_000)]);
    let program = [sleep(100), want(1, 2, 7), sleep(100), want(1, 0, 7), sleep(1_000)];
    let high = application("high", 1, 2, stubborn(), program);
    // The hogs are in the way: they are not asked for CPUs.
    let result = run("", hogs(4).chain([low, high]));
    let before = had(&result, 60, 99);
    assert_eq!((of_its_own(&before, "low"), of_its_own(&before, "high")), (3, 0), "{before:?}");
    let with = had(&result, 160, 199);
    assert_eq!((of_its_own(&with, "low"), of_its_own(&with, "high")), (1, 2), "{with:?}");
    // It does not give them back by itself.
    let after = had(&result, 260, 400);
    assert_eq!((of_its_own(&after, "low"), of_its_own(&after, "high")), (3, 0), "{after:?}");
}

#[test]
fn applications_of_the_same_priority_have_the_same_number() {
    let of = |queue: u32| application(&format!("of{queue}"), queue, 3, willing(), [want(queue, 3, 1), sleep(1_000)]);
    let result = run("", hogs(4).chain([of(0), of(1), of(2)]));
    let had = had(&result, 100, 400);
    for queue in 0..3 {
        assert_eq!(of_its_own(&had, &format!("of{queue}")), 1, "{had:?}");
    }
}

#[test]
fn who_does_not_give_back_loses_the_cpu_after_the_grace_time() {
    let result = |grace_us: u64| {
        let low = application("low", 0, 3, stubborn(), [want(0, 3, 1), sleep(1_000)]);
        let high = application("high", 1, 2, stubborn(), [sleep(100), want(1, 2, 7), sleep(1_000)]);
        run(&format!("grace_us={grace_us}"), hogs(4).chain([low, high]))
    };
    let taken = had(&result(10_000), 200, 400);
    assert_eq!((of_its_own(&taken, "low"), of_its_own(&taken, "high")), (1, 2), "{taken:?}");
    // Activations that still run share the CPU that is left.
    assert!((1.2..1.5).contains(&cpus(&taken, "low")), "two of six there: {taken:?}");
    let patient = result(100_000);
    let (asked, taken) = (had(&patient, 140, 195), had(&patient, 250, 400));
    assert_eq!((of_its_own(&asked, "low"), of_its_own(&asked, "high")), (3, 0), "within the time: {asked:?}");
    assert_eq!((of_its_own(&taken, "low"), of_its_own(&taken, "high")), (1, 2), "after it: {taken:?}");
}

#[test]
fn one_that_ends_gives_all_back() {
    let ends = Step::Repeat { times: 150, steps: vec![Step::Run { ns: MS }] };
    let goes = application("goes", 0, 3, ends, [want(0, 3, 1), Step::Wait]);
    let result = run("", hogs(4).chain([goes]));
    let (before, after) = (had(&result, 60, 140), had(&result, 220, 400));
    assert_eq!(of_its_own(&before, "goes"), 3, "{before:?}");
    assert!((0..4).all(|hog| of_its_own(&after, &format!("hog{hog}")) == 1), "{after:?}");
}

#[test]
fn a_queue_that_closes_gives_all_back_while_the_threads_go_on() {
    // Its first thread opens the queue, and ends before its children.
    let goes = application("goes", 0, 3, stubborn(), [want(0, 3, 1), sleep(150)]);
    let result = run("", hogs(4).chain([goes]));
    let (before, after) = (had(&result, 60, 140), had(&result, 220, 400));
    assert_eq!(of_its_own(&before, "goes"), 3, "{before:?}");
    assert!((1.6..1.8).contains(&cpus(&after, "goes")), "three of seven on four CPUs: {after:?}");
}

#[test]
fn a_cpu_is_lent_while_its_activation_sleeps_and_given_back_when_it_wakes() {
    let sleeps = Step::forever([Step::Run { ns: MS }, Step::Sleep { ns: MS }]);
    let asks = application("asks", 0, 3, sleeps, [want(0, 3, 1), sleep(1_000)]);
    let result = run("", hogs(4).chain([asks]));
    let had = had(&result, 100, 400);
    assert!((1.45..1.55).contains(&cpus(&had, "asks")), "it never waits: {had:?}");
    assert!((0..4).map(|hog| cpus(&had, &format!("hog{hog}"))).sum::<f64>() > 2.4, "nothing is left idle: {had:?}");
}

#[test]
fn a_task_that_may_run_on_a_given_cpu_only_has_turns_there() {
    let asks = application("asks", 0, 3, stubborn(), [want(0, 3, 1), sleep(1_000)]);
    let bound = (0..CPUS).map(|cpu| TaskSpec::new(format!("bound{cpu}"), vec![stubborn()]).on([cpu]));
    let result = run("", bound.chain([asks]));
    let had = had(&result, 100, 400);
    let shares: Vec<f64> = (0..CPUS).map(|cpu| cpus(&had, &format!("bound{cpu}"))).collect();
    assert!(shares.iter().all(|share| *share > 0.4), "{had:?}");
    assert!((1.4..1.6).contains(&cpus(&had, "asks")), "{had:?}");
}

#[test]
fn an_activation_that_may_not_run_on_its_cpu_any_more_gets_another() {
    let pinned = |cpu: u32| Step::SetAffinity { cpus: Some(vec![cpu]) };
    let moves = Step::forever((0..CPUS).flat_map(|cpu| [pinned(cpu), Step::Run { ns: 10 * MS }]));
    let asks = application("asks", 0, 1, moves, [want(0, 1, 1), sleep(1_000)]);
    let result = run("", hogs(4).chain([asks]));
    let had = had(&result, 100, 400);
    assert!(cpus(&had, "asks") > 0.9, "{had:?}");
    assert!(had["asks"].iter().all(|part| (0.2..0.3).contains(part)), "{had:?}");
}

#[test]
fn who_names_threads_of_others_or_none_gets_no_cpu() {
    // The hogs have the first numbers of the simulation.
    let names = (1_000..1_020).map(|thread| ask(0, Ask::Enroll, HintWord::Value(thread), 0, 0));
    let names = [want(0, 3, 9)].into_iter().chain(names);
    let meddler = TaskSpec::new("meddler", names.chain([sleep(1_000)]).collect());
    let result = run("", hogs(4).chain([meddler]));
    let had = had(&result, 100, 400);
    assert!((0..4).all(|hog| cpus(&had, &format!("hog{hog}")) > 0.99), "{had:?}");
}

#[test]
fn the_application_is_told_what_it_is_given_asked_for_and_loses() {
    // Marks say when its first thread has read this many notices.
    let read = |times| (0..times).map(|_| Step::ReadNotice { queue: 0 }).chain([Step::Mark]);
    let told = read(3).chain(read(2)).chain(read(2));
    let low = application("low", 0, 3, stubborn(), [want(0, 3, 1)].into_iter().chain(told).chain([sleep(1_000)]));
    let light = Step::forever([Step::Run { ns: 10 * US }, Step::Sleep { ns: MS }]);
    let high = application("high", 1, 2, light, [sleep(30), want(1, 2, 7), sleep(1_000)]);
    let result = run("", [low, high]);
    assert_eq!([Becomes::Given, Becomes::AskedBack, Becomes::Taken].map(|becomes| becomes as u32), [1, 2, 3]);
    let marks_ms: Vec<u64> = result.report.task("low").unwrap().marks_ns.iter().map(|ns| ns / MS).collect();
    let [given, asked, taken] = marks_ms[..] else { panic!("{marks_ms:?}") };
    assert!(given < 10 && (30..32).contains(&asked) && (40..=44).contains(&taken), "{marks_ms:?}");
}

#[test]
fn cpus_that_leave_the_machine_are_taken_and_come_back() {
    let asks = application("asks", 0, 3, stubborn(), [want(0, 3, 1), sleep(1_000)]);
    let off = (1..CPUS).map(|cpu| Step::CpuOffline { cpu });
    let on = (1..CPUS).map(|cpu| Step::CpuOnline { cpu });
    let plug = [sleep(100)].into_iter().chain(off).chain([sleep(100)]).chain(on).chain([sleep(1_000)]);
    let result = run("", hogs(4).chain([asks, TaskSpec::new("plug", plug.collect())]));
    let (without, after) = (had(&result, 150, 199), had(&result, 350, 400));
    assert_eq!(of_its_own(&without, "asks"), 0, "{without:?}");
    assert!((0..4).all(|hog| cpus(&without, &format!("hog{hog}")) > 0.05), "all share one CPU: {without:?}");
    assert_eq!(of_its_own(&after, "asks"), 3, "{after:?}");
}
