//! Shinjuku: turns of some microseconds, so that short tasks do not wait for long ones.

use ekiden_policies::{GlobalFifo, Shinjuku};
use ekiden_workload::{Step, TaskSpec, checks::finish_ns};

use super::{MS, US, hog, hogs, interruptions, run, sleeper, wait_us};

#[test]
fn a_short_task_waits_for_turns_and_not_for_long_tasks() {
    for cpus in [1, 2] {
        let tasks = || hogs(cpus).chain([sleeper("short", 4 * US, 487 * US)]).collect();
        let (shinjuku, fifo) = (run::<Shinjuku>(cpus, "", 100, tasks()), run::<GlobalFifo>(cpus, "", 100, tasks()));
        let (short, long) = (wait_us(&shinjuku, "short"), wait_us(&fifo, "short"));
        assert!(short < 11.0, "{short} us on {cpus} CPUs");
        assert!(long > 50.0 * short, "{long} us under a FIFO on {cpus} CPUs");
    }
}

#[test]
fn tasks_for_which_none_waits_are_not_interrupted() {
    let result = run::<Shinjuku>(2, "", 100, hogs(2).collect());
    assert_eq!(interruptions(&result), 0, "{}", result.report);
}

#[test]
fn a_turn_is_as_long_as_it_is_said_to_be() {
    for (turn_us, expected) in [(10, 1_000), (100, 100)] {
        let result = run::<Shinjuku>(1, &format!("turn_us={turn_us}"), 10, hogs(3).collect());
        let found = interruptions(&result);
        assert!((expected * 95 / 100..=expected).contains(&found), "{found} turns of {turn_us} us in 10 ms");
    }
}

#[test]
fn tasks_that_are_done_in_a_turn_run_in_the_order_in_which_they_came() {
    let late = |number: u64| {
        let task = TaskSpec::new(format!("late{number}"), vec![Step::Run { ns: 9 * US - number * US }]);
        TaskSpec { start_ns: 5 * MS + number * 100, ..task }
    };
    let result = run::<Shinjuku>(1, "", 10, [hog("hog")].into_iter().chain((0..4).map(late)).collect());
    let finished: Vec<f64> =
        (0..4).map(|number| finish_ns(&result.report, &format!("late{number}")).unwrap()).collect();
    assert!(finished.is_sorted(), "{finished:?}");
}
