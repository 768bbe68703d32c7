//! Multi-level feedback queue: tasks that compute sink, those that are new or sleep stay, and all begin anew from time to time.

use ekiden_policies::Mlfq;
use ekiden_workload::{Step, TaskSpec, checks::finish_ns};

use super::{MS, US, cpu_ns, forever, hog, hogs, interruptions, run, sleeper, wait_us};

#[test]
fn a_task_that_sleeps_interrupts_those_that_have_sunk() {
    for cpus in [1, 2] {
        let tasks = hogs(3 * cpus).chain([sleeper("short", 100 * US, 10 * MS)]).collect();
        let result = run::<Mlfq>(cpus, "", 1_000, tasks);
        // When all begin at the top, it waits for some of them.
        let wait = wait_us(&result, "short");
        assert!(wait < 1_500.0, "{wait} us on {cpus} CPUs");
    }
}

#[test]
fn a_new_task_runs_before_those_that_have_computed_for_long() {
    let new = TaskSpec { start_ns: 500 * MS, ..TaskSpec::new("new", vec![Step::Run { ns: 4 * MS }]) };
    let result = run::<Mlfq>(1, "", 600, hogs(5).chain([new]).collect());
    assert!(finish_ns(&result.report, "new").unwrap() <= (505 * MS) as f64, "{}", result.report);
}

#[test]
fn turns_are_twice_as_long_at_each_level() {
    // Levels of 4, 8, 16 and 32 ms, and ticks every 4 ms: after a while only the last one counts.
    let result = run::<Mlfq>(1, "quantum_us=4000 boost_ms=4000", 3_000, hogs(2).collect());
    let found = interruptions(&result);
    assert!((85..=105).contains(&found), "{found} turns in 3 s");
}

#[test]
fn all_begin_at_the_top_again_so_that_none_starves() {
    // New tasks all the time, one after the other.
    let parent = forever(
        "parent",
        [Step::fork([Step::Run { ns: MS }]), Step::fork([Step::Run { ns: MS }]), Step::Wait, Step::Run { ns: US }],
    );
    let had = |boost_ms: u32| {
        let tasks = vec![hog("hog"), parent.clone()];
        cpu_ns(&run::<Mlfq>(1, &format!("boost_ms={boost_ms}"), 4_000, tasks), "hog") / MS
    };
    let (often, seldom) = (had(20), had(4_000));
    assert!(often > 400 && seldom < 200, "{often} ms of 4 s with a boost each 20 ms, {seldom} with one each 4 s");
}
