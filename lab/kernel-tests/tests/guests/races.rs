//! What may happen between two steps of the kernel half, where CPUs take turns and where they run at once.

use crate::{
    pool::tests,
    test_guest::{Machine, TestGuest},
};

tests! {
    Machine::Newest(4) => {
        16 a_task_that_was_picked_and_may_not_run_there_any_more_waits_elsewhere,
        25 all_leaves_while_timers_start_each_other,
    }
    Machine::Parallel(4) => {
        14 in_parallel_a_picked_task_that_may_not_run_there_any_more_waits_elsewhere,
        78 in_parallel_all_leaves_while_timers_start_each_other,
    }
}

/// Under a policy whose queue is all CPUs', and under one whose CPUs take tasks from each other.
/// Whether a CPU once found that a task which it had picked may not run there any more.
fn affinities_change(guest: &TestGuest, changes: u64) -> bool {
    let mut late = false;
    for policy in ["central-fifo", "wfq"] {
        let report = guest.guest_test(&format!("affinities --policy {policy} --seconds 4")).remove(0);
        println!("{report}");
        assert_eq!((&report["still_running"], &report["contract_violations"]), (&true.into(), &0.into()), "{report}");
        assert!(report["changes"].as_u64() > Some(changes) && report["picks"].as_u64() > Some(5_000), "{report}");
        late |= report["late"] == true;
    }
    late
}

fn a_task_that_was_picked_and_may_not_run_there_any_more_waits_elsewhere(guest: &TestGuest) {
    // It takes one change at the right moment, and each time has some ten thousand.
    let is_late = (0..5).any(|_| affinities_change(guest, 2_000));
    assert!(is_late, "no affinity changed after a pick and before its CPU had the task");
}

/// A change waits for a CPU to do it, which may have no processor: there are few, at other moments.
fn in_parallel_a_picked_task_that_may_not_run_there_any_more_waits_elsewhere(guest: &TestGuest) {
    affinities_change(guest, 50);
}

fn all_leaves(guest: &TestGuest, rounds: u64) {
    let report = &guest.guest_test(&format!("last-timers --rounds {rounds}"))[0];
    println!("{report}");
    // The guest test fails unless the first has faulted and the last was taken away with its timers.
    assert_eq!(report["rounds"], rounds, "{report}");
}

fn all_leaves_while_timers_start_each_other(guest: &TestGuest) {
    all_leaves(guest, 10);
}

fn in_parallel_all_leaves_while_timers_start_each_other(guest: &TestGuest) {
    all_leaves(guest, 10);
}
