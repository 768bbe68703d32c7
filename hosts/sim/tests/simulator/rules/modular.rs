//! The modular scheduler: suggestions are taken where they do no harm, and what the core promises holds whatever is suggested.

use ekiden::Topology;
use ekiden_policies::Modular;
use ekiden_sim::{SimReport, What};
use ekiden_workload::{Step, TaskSpec};
use proptest::prelude::*;

use super::{MS, US, cpu_ns, hog, hogs, run, run_on, share, sleeper};

/// The parameter that switches all of them on.
const ALL: u32 = 31;
const WORST: u32 = 16;

/// For how long a CPU was idle while a task waited that may run anywhere, at most; after the first milliseconds.
fn longest_waste_ns(result: &SimReport, cpus: u32) -> u64 {
    let mut running = vec![false; cpus as usize];
    let (mut waiting, mut since, mut longest) = (0_i64, None, 0);
    for record in result.trace.records() {
        match record.what {
            What::Enqueue => waiting += 1,
            What::Run => {
                waiting -= 1;
                running[record.cpu as usize] = true;
            }
            What::Preempt | What::Block | What::Exit => running[record.cpu as usize] = false,
            _ => {}
        }
        let is_wasted = waiting > 0 && running.contains(&false);
        match since {
            Some(began) if !is_wasted => {
                longest = longest.max(record.time_ns - began);
                since = None;
            }
            None if is_wasted => since = Some(record.time_ns),
            _ => {}
        }
    }
    longest
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// With any set of modules, the worst among them.
    #[test]
    fn no_suggestion_has_a_cpu_idle_while_tasks_wait(
        modules in 0..=ALL,
        bound_us in prop_oneof![Just(0), Just(4_000), 0..100_000_u32],
        tasks in prop::collection::vec((10..3_000_u64, 0..3_000_u64), 1..20),
    ) {
        let tasks = tasks.iter().enumerate();
        let tasks = tasks.map(|(number, (run_us, sleep_us))| sleeper(&format!("t{number}"), run_us * US, sleep_us * US));
        let result = run::<Modular>(4, &format!("modules={modules} bound_us={bound_us}"), 100, tasks.collect());
        // The time that a CPU takes to come.
        let longest = longest_waste_ns(&result, 4);
        prop_assert!(longest < 10 * US, "{longest} ns");
    }

    #[test]
    fn no_suggestion_breaks_the_bound_on_fairness(
        modules in 0..=ALL,
        bound_us in 0..20_000_u32,
        (cpus, count) in prop_oneof![Just((1, 5)), Just((2, 5)), Just((4, 6))],
    ) {
        let result = run::<Modular>(cpus, &format!("modules={modules} bound_us={bound_us}"), 1_000, hogs(count).collect());
        let had: Vec<u64> = (0..count).map(|number| cpu_ns(&result, &format!("hog{number}"))).collect();
        let apart = had.iter().max().unwrap() - had.iter().min().unwrap();
        // The bound, and what a task runs beyond it: a slice each way, which ends at a tick.
        prop_assert!(apart <= u64::from(bound_us) * US + 3 * 8 * MS, "{had:?}");
    }
}

#[test]
fn weights_hold_whatever_is_suggested() {
    for modules in [0, 1, WORST, ALL] {
        let result = run::<Modular>(1, &format!("modules={modules}"), 4_000, vec![hog("light").nice(5), hog("heavy")]);
        let expected = 335.0 / (335.0 + 1024.0);
        assert!((share(&result, "light") - expected).abs() < 0.02, "{}", share(&result, "light"));
    }
}

#[test]
fn a_good_suggestion_is_taken() {
    // Two caches of two CPUs, six tasks that compute: with the module, tasks stay in theirs.
    let moves = |modules: u32| {
        let result =
            run_on::<Modular>(Topology::regular(1, 2, 2, 1), &format!("modules={modules}"), 1_000, hogs(6).collect());
        let mut last = std::collections::HashMap::new();
        let runs = result.trace.records().filter(|record| record.what == What::Run);
        runs.filter(|record| last.insert(record.pid, record.cpu / 2).is_some_and(|before| before != record.cpu / 2))
            .count()
    };
    let (with, without, worst) = (moves(1), moves(0), moves(WORST));
    assert!(with * 3 < without.max(worst), "{with} moves between caches, {without} without, {worst} at the worst");
}

#[test]
fn tasks_gather_where_power_is_to_be_saved() {
    let few = |number: u32| {
        let program = vec![
            Step::Sleep { ns: u64::from(number) * 200 * US },
            Step::forever([Step::Run { ns: 50 * US }, Step::Sleep { ns: MS }]),
        ];
        TaskSpec::new(format!("few{number}"), program)
    };
    let used = |modules: u32| {
        let result = run::<Modular>(8, &format!("modules={modules}"), 200, (0..5).map(few).collect());
        let runs = result.trace.records().filter(|record| record.what == What::Run && record.time_ns > 20 * MS);
        runs.map(|record| record.cpu).collect::<std::collections::BTreeSet<_>>().len()
    };
    let (power, none) = (used(8), used(0));
    assert!(power <= 2 && power < none, "{power} CPUs, {none} without the module");
}

/// Two tasks share CPU 0 and hold the virtual time of all back to half a second in each; one has CPU 1 for 20 s, and then another comes there.
#[test]
fn what_a_task_had_where_others_may_not_run_is_not_held_against_it() {
    let late = TaskSpec { start_ns: 20_000 * MS, ..hog("late").on([1]) };
    let tasks = vec![hog("slow0").on([0]), hog("slow1").on([0]), hog("alone").on([1]), late];
    let had_ms = |ms| cpu_ns(&run::<Modular>(2, "", ms, tasks.clone()), "alone") / MS;
    let more_ms = had_ms(28_000) - had_ms(20_000);
    assert!((3_500..4_500).contains(&more_ms), "{more_ms} ms of 8 s");
}
