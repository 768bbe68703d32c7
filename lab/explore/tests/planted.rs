//! Planted races are found, shortened and replayed; what has none is left alone.

use std::time::Instant;

use ekiden_explore::{CASES, Case, Mode, PolicyMaker, Schedule, Strategy, explore, replay};
use ekiden_policies::{Fifo, GlobalFifo, LlcFifo, for_each_policy};
use ekiden_test_policies::Drowsy;

const MODES: [Mode; 3] = [Mode::Random, Mode::Pct, Mode::Exhaustive];

#[test]
fn a_planted_lost_wake_up_is_found_in_ten_seconds_shortened_and_replayed() {
    let case = Case::find("wake-and-sleep").unwrap();
    let policy = PolicyMaker::of::<Drowsy>("").unwrap();
    for mode in MODES {
        let began = Instant::now();
        let found = explore(case, &policy, &mut Strategy::new(mode, 1), 100_000).found;
        let found = found.unwrap_or_else(|| panic!("{mode:?} finds nothing"));
        assert!(began.elapsed().as_secs() < 10, "{mode:?} takes {:?}", began.elapsed());
        assert_eq!(found.finding.0, "lost wake-up: CPU 1 stays idle while PID 1002 waits", "{mode:?}");
        assert!(found.schedule.0.len() <= found.choices_before);
        let schedule: Schedule = found.schedule.to_string().parse().unwrap();
        assert_eq!(replay(case, &policy, &schedule).finding, Some(found.finding), "{mode:?}: {schedule}");
    }
}

#[test]
fn locks_taken_in_two_orders_are_found() {
    let case = Case::find("two-sleepers").unwrap();
    let policy = PolicyMaker::of::<Drowsy>("order=1,careful=1").unwrap();
    for mode in MODES {
        let found = explore(case, &policy, &mut Strategy::new(mode, 1), 100_000).found;
        let found = found.unwrap_or_else(|| panic!("{mode:?} finds nothing"));
        assert!(found.finding.0.starts_with("lock order: ") && found.finding.0.contains("drowsy.rs:"), "{found:?}");
    }
}

#[test]
fn a_deadlock_is_seen_when_it_happens() {
    let case = Case::find("two-sleepers").unwrap();
    let policy = PolicyMaker::of::<Drowsy>("order=1,careful=1").unwrap();
    // One CPU after the other never waits; in turns they come to hold what the other wants.
    let turns = (0..40).map(|at| Schedule([vec![1; at], vec![0; 100]].concat()));
    let found: Vec<_> = turns.filter_map(|schedule| replay(case, &policy, &schedule).finding).collect();
    let deadlock = "deadlock: CPU 0 and CPU 1 wait for locks for ever";
    assert!(found.iter().any(|finding| finding.0 == deadlock), "{found:?}");
    assert!(found.iter().any(|finding| finding.0 != deadlock), "{found:?}");
}

#[test]
fn the_same_policy_without_the_race_is_left_alone() {
    assert_left_alone(&PolicyMaker::of::<Drowsy>("careful=1").unwrap(), "drowsy, careful", 500);
}

macro_rules! every_policy {
    ($($module:ident $policy:ident)*) => {$(
        mod $module {
            #[test]
            fn loses_no_wake_up_in_any_order_of_locks() {
                let policy = ekiden_explore::PolicyMaker::of::<ekiden_policies::$policy>("").unwrap();
                super::assert_left_alone(&policy, stringify!($module), 50);
            }
        }
    )*};
}

for_each_policy!(every_policy);

#[test]
fn no_order_of_locks_loses_a_wake_up_where_cpus_share_a_queue() {
    assert_left_alone(&PolicyMaker::of::<GlobalFifo>("").unwrap(), "global-fifo", 500);
    assert_left_alone(&PolicyMaker::of::<LlcFifo>("").unwrap(), "llc-fifo", 500);
}

fn assert_left_alone(policy: &PolicyMaker, name: &str, runs: u64) {
    for case in CASES {
        for mode in MODES {
            let result = explore(case, policy, &mut Strategy::new(mode, 2), runs);
            assert!(result.found.is_none(), "{name}, {} {mode:?}: {:?}", case.name, result.found);
        }
    }
}

#[test]
fn every_order_of_a_small_case_is_seen() {
    let case = Case::find("wake-and-sleep").unwrap();
    let policy = PolicyMaker::of::<Fifo>("").unwrap();
    let result = explore(case, &policy, &mut Strategy::new(Mode::Exhaustive, 0), 1_000_000);
    assert!(result.complete && result.found.is_none(), "{result:?}");
    assert!(result.runs > 10, "{} orders", result.runs);
}

#[test]
fn one_seed_is_one_search() {
    let case = Case::find("wake-and-sleep").unwrap();
    let policy = PolicyMaker::of::<Drowsy>("").unwrap();
    let search = || {
        let result = explore(case, &policy, &mut Strategy::new(Mode::Random, 7), 100_000);
        (result.runs, result.found.unwrap().schedule)
    };
    assert_eq!(search(), search());
}

#[test]
fn what_is_no_schedule_is_refused_with_its_place() {
    let error = "01x".parse::<Schedule>().unwrap_err().to_string();
    assert!(error.starts_with("`01x` is no schedule at character 3"), "{error}");
}
