//! Users who mean harm: processes that ask `/dev/ekiden` for anything.

use std::time::Duration;

use serde_json::Value;

use crate::{
    pool::tests,
    storm::interrupts_are_off_for_short,
    test_guest::{Machine, TestGuest},
    turns::some_policies,
};

tests! {
    Machine::Newest(4) => {
        25 policies_live_beside_a_hostile_neighbour,
    }
    Machine::Parallel(4) => {
        20 in_parallel_policies_live_beside_a_hostile_neighbour,
    }
    Machine::Checked => {
        33 the_device_lives_through_whatever_it_is_asked,
    }
}

/// A number that a variable of the environment may give.
fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |number| number.parse().unwrap_or_else(|_| panic!("{variable}: {number}")))
}

/// Once under each policy, or for `EKIDEN_NEIGHBOUR_MINUTES` of the guest's time under one after the other; it does something else each time.
/// What others have beside it is measured by `ekiden soak --vm --neighbour`.
fn policies_live_beside_a_hostile_neighbour(guest: &TestGuest) {
    let (minutes, mut seed) = (number("EKIDEN_NEIGHBOUR_MINUTES", 0), number("EKIDEN_NEIGHBOUR_SEED", 1));
    let uptime = || -> f64 { guest.shell("cut -d' ' -f1 /proc/uptime").trim().parse().unwrap() };
    let end = uptime() + 60.0 * minutes as f64;
    let mut is_first = true;
    while is_first || uptime() < end {
        is_first = false;
        for policy in some_policies(1) {
            interrupts_are_off_for_short(guest, || storm_beside_a_neighbour(guest, policy, seed));
            seed += 1;
        }
    }
}

/// Returns for how long interrupts were off in it at most because of each kind of event.
fn storm_beside_a_neighbour(guest: &TestGuest, policy: &str, seed: u64) -> Value {
    let report = &guest.guest_test(&format!("storm --policy {policy} --neighbour {seed}"))[0];
    println!("{policy} {report}");
    let (still_running, back) = (&report["still_running"], &report["back_after_kill"]);
    assert_eq!((still_running, back), (&true.into(), &true.into()), "{report}");
    assert_eq!((&report["contract_violations"], &report["unexpected_transitions"]), (&0.into(), &0.into()), "{report}");
    let deeds = report["deeds"].as_object().unwrap();
    let done = deeds.iter().filter(|(deed, count)| *deed != "hints" && count.as_u64() > Some(0)).count();
    assert!(done > 10, "{report}");
    let has_queues = ["arbiter", "eevdf", "locality"].contains(&policy);
    assert!(has_queues || deeds["hints"] == 0, "{report}");
    report["off_ns_max"].clone()
}

fn in_parallel_policies_live_beside_a_hostile_neighbour(guest: &TestGuest) {
    policies_live_beside_a_hostile_neighbour(guest);
}

/// For a while, or `EKIDEN_DEVICE_MINUTES`, with what `EKIDEN_DEVICE_SEED` says.
fn the_device_lives_through_whatever_it_is_asked(guest: &TestGuest) {
    let (minutes, seed) = (number("EKIDEN_DEVICE_MINUTES", 0), number("EKIDEN_DEVICE_SEED", 1));
    let seconds = if minutes == 0 { 20 } else { 60 * minutes };
    let most = Duration::from_secs(600 + 30 * seconds);
    let report = &guest.guest_test_within(&format!("device --modules /lab --seconds {seconds} --seed {seed}"), most)[0];
    println!("{report}");
    assert_eq!(report["slab_debug"], true, "the kernel does not check what it allocates: {report}");
    assert_eq!((&report["still_running"], &report["loads_again"]), (&true.into(), &true.into()), "{report}");
    assert_eq!((&report["control_gained"], &report["unexpected_transitions"]), (&0.into(), &0.into()), "{report}");
    let steps = report["steps"].as_object().unwrap();
    assert!(steps.values().all(|count| count.as_u64().unwrap() > 20), "{report}");
    assert!(report["deaths"].as_u64() > Some(3) && report["upgrades"].as_u64() > Some(0), "{report}");
}
