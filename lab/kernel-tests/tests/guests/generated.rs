//! Policies that a generator writes, in a stock kernel: each ends with a reason or lets all tasks run, and a good one loads after it.
//! `ekiden faults --vm --generated N` does the same with more of them.

use std::ops::Range;

use ekiden_hostile::BODIES_MAX;
use serde_json::Value;

use crate::{
    pool::tests,
    test_guest::{Machine, TestGuest},
    turns,
};

tests! {
    Machine::Newest(1) => {
        15 generated_policies_end_with_a_reason_or_do_no_harm_on_one_cpu,
    }
    Machine::Newest(4) => {
        34 generated_policies_end_with_a_reason_or_do_no_harm_on_four_cpus,
    }
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |number| number.parse().expect("it is a number"))
}

/// The seed of the policies: this one has a loop of pauses, which once took 22 seconds.
pub(crate) fn seed() -> u64 {
    number("EKIDEN_GENERATED_SEED", 7)
}

/// How many are tried.
pub(crate) fn count() -> u64 {
    number("EKIDEN_GENERATED", 30)
}

/// A third of them, another one at each turn. `EKIDEN_TURN=all` tries all.
pub(crate) fn todays_third_ends_or_does_no_harm(guest: &TestGuest, after: usize) -> Vec<Value> {
    let third = count().div_ceil(3);
    let thirds = turns::of_today(3, after).into_iter().map(|turn| turn as u64);
    thirds.flat_map(|turn| those_end_or_do_no_harm(guest, turn * third..count().min((turn + 1) * third))).collect()
}

fn end_or_do_no_harm(guest: &TestGuest) {
    let reports = todays_third_ends_or_does_no_harm(guest, 0);
    for outcome in ["ended", "harmless"] {
        assert!(reports.iter().any(|report| report["outcome"] == outcome), "none was {outcome}");
    }
}

/// Checks that a range of generated policies end with a reason or do no harm, and returns what was reported.
fn those_end_or_do_no_harm(guest: &TestGuest, which: Range<u64>) -> Vec<Value> {
    let mut reports = Vec::new();
    for first in (0..count()).step_by(BODIES_MAX as usize) {
        let bodies = first..count().min(first + BODIES_MAX);
        let wanted = bodies.start.max(which.start)..bodies.end.min(which.end);
        if wanted.is_empty() {
            continue;
        }
        guest.bring_generated(seed(), bodies);
        // Counted from the module's first.
        let (from, number) = (wanted.start, wanted.end - first);
        reports.extend(
            guest.guest_test(&format!("generated --modules /lab --first {first} --from {from} --count {number}")),
        );
    }
    for report in &reports {
        println!("{report}");
    }
    let wrong: Vec<_> = reports.iter().filter(|report| !report["problem"].is_null()).collect();
    assert!(wrong.is_empty(), "of seed {}: {wrong:#?}", seed());
    assert_eq!(reports.len() as u64, which.end - which.start);
    reports
}

fn generated_policies_end_with_a_reason_or_do_no_harm_on_one_cpu(guest: &TestGuest) {
    end_or_do_no_harm(guest);
}

fn generated_policies_end_with_a_reason_or_do_no_harm_on_four_cpus(guest: &TestGuest) {
    end_or_do_no_harm(guest);
}
