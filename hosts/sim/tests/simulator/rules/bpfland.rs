//! bpfland: interactive tasks first, but not alone; slices by how many wait; idle cores before busy ones, near before far.

use ekiden::Topology;
use ekiden_policies::{Bpfland, Fifo};
use ekiden_workload::{Step, TaskSpec};

use super::{MS, US, cpu_ns, forever, hog, hogs, interruptions, run, run_on, share, sleeper, wait_us};

#[test]
fn a_task_that_is_woken_up_goes_before_those_that_compute() {
    let tasks = || hogs(4).chain([sleeper("woken", 100 * US, 50 * MS)]).collect();
    let result = run::<Bpfland>(1, "", 4_000, tasks());
    // It waits for what is left of a slice of a millisecond.
    let wait = wait_us(&result, "woken");
    assert!(wait < 1_000.0, "{wait} us");
    let fifo = wait_us(&run::<Fifo>(1, "", 4_000, tasks()), "woken");
    assert!(fifo > 20.0 * wait, "{fifo} us under a FIFO");
}

#[test]
fn who_seldom_sleeps_is_not_interactive_for_long() {
    // It sleeps twice a second, which is less than all that count, and computes in between.
    let seldom = forever("seldom", [Step::Run { ns: 200 * MS }, Step::Sleep { ns: 10 * US }]);
    let often = (0..4).map(|number| sleeper(&format!("often{number}"), 100 * US, 5 * MS));
    let tasks = often.chain([hog("hog"), seldom]).collect();
    let result = run::<Bpfland>(1, "", 10_000, tasks);
    let (seldom, hog) = (cpu_ns(&result, "seldom") as f64, cpu_ns(&result, "hog") as f64);
    assert!(seldom / hog < 1.3, "{seldom} and {hog}");
}

#[test]
fn regular_tasks_have_a_turn_when_they_have_waited_beyond_the_threshold() {
    // More than enough for the CPU, by tasks that sleep.
    let tasks = || (0..10).map(|number| sleeper(&format!("often{number}"), MS, 2 * MS)).chain([hog("hog")]).collect();
    let had = |params: &str| share(&run::<Bpfland>(1, params, 4_000, tasks()), "hog");
    let (with, without) = (had("starvation_thresh_us=5000"), had("starvation_thresh_us=0"));
    assert!(with > 0.05, "{with}");
    assert!(without < with / 5.0, "{without} without a threshold, {with} with one");
}

/// As where a hypervisor takes processors away: each turn ends late.
#[test]
fn interactive_tasks_run_where_turns_are_longer_than_regular_ones_may_wait() {
    let tasks = hogs(3).chain([sleeper("often", 100 * US, 10 * MS)]).collect();
    let result = run::<Bpfland>(1, "slice_us=20000,slice_us_min=20000,starvation_thresh_us=5000", 4_000, tasks);
    let runs = cpu_ns(&result, "often") / (100 * US);
    assert!(runs > 50, "{runs} turns in four seconds: {}", result.report);
}

#[test]
fn slices_shrink_with_the_number_of_tasks_that_wait() {
    // One beside another waits, or eight do: slices of 2.5 ms and of 0.56.
    for (count, expected) in [(2, 400.0), (9, 1_800.0)] {
        let found = interruptions(&run::<Bpfland>(1, "", 1_000, hogs(count).collect())) as f64;
        assert!((found / expected - 1.0).abs() < 0.05, "{found} slices of {count} tasks in a second");
    }
    let shortest = interruptions(&run::<Bpfland>(1, "slice_us_min=2000", 1_000, hogs(9).collect()));
    assert!((480..=500).contains(&shortest), "{shortest}");
}

#[test]
fn cpu_time_is_shared_by_weight_among_those_that_compute() {
    let tasks = vec![hog("light").nice(5), hog("heavy")];
    let result = run::<Bpfland>(1, "", 4_000, tasks);
    let expected = 335.0 / (335.0 + 1024.0);
    assert!((share(&result, "light") - expected).abs() < 0.02, "{}", share(&result, "light"));
}

/// The CPU on which a task was last.
fn place(result: &super::SimReport, name: &str) -> u32 {
    result.report.task(name).unwrap().last_cpu.unwrap()
}

#[test]
fn a_core_that_is_idle_as_a_whole_goes_before_half_of_one() {
    // Two cores of two threads: CPUs 0 and 1 are one.
    let topology = Topology::regular(1, 1, 2, 2);
    let core = |cpu| topology.smt_siblings(cpu).first();
    let late = TaskSpec { start_ns: 5 * MS, ..hog("late") };
    let result = run_on::<Bpfland>(topology.clone(), "", 100, vec![hog("first"), late]);
    assert_ne!(core(place(&result, "first")), core(place(&result, "late")), "{}", result.report);
}

#[test]
fn an_idle_cpu_of_the_same_cache_goes_before_others() {
    // Two caches of two CPUs. Each of two hogs has one CPU; the task begins beside one of them.
    for (hogs_at, expected) in [([0, 3], 1), ([3, 0], 2)] {
        let tasks = vec![
            hog("near").on([hogs_at[0]]),
            hog("far").on([hogs_at[1]]),
            TaskSpec::new(
                "task",
                vec![
                    Step::SetAffinity { cpus: Some(vec![hogs_at[0]]) },
                    Step::Run { ns: 10 * US },
                    Step::SetAffinity { cpus: None },
                    Step::forever([Step::Sleep { ns: MS }, Step::Run { ns: 10 * US }]),
                ],
            ),
        ];
        let result = run_on::<Bpfland>(Topology::regular(1, 2, 2, 1), "", 200, tasks);
        assert_eq!(place(&result, "task"), expected, "{}", result.report);
    }
}
