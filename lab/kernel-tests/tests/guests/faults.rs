//! Everything that a policy can do wrong in a stock kernel, on one, two and four CPUs. `ekiden faults --vm` does the same.

use crate::{
    pool::tests,
    test_guest::{Machine, PATIENCE, TestGuest},
    turns::of_today,
};
use serde_json::Value;

tests! {
    Machine::Newest(1) => {
        7 every_fault_of_the_list_is_contained_on_one_cpu,
    }
    // Without fair turns, one CPU had all of them for twelve seconds where a policy has timers expire all the time.
    Machine::Crowded => {
        13 every_fault_of_the_list_is_contained_on_two_cpus,
    }
    Machine::Storm => {
        65 every_fault_of_the_list_is_contained_on_four_cpus,
    }
}

/// How often each fault happens, in another call each time.
fn rounds() -> usize {
    std::env::var("EKIDEN_FAULT_LIST_ROUNDS").map_or(1, |rounds| rounds.parse().expect("it is a number"))
}

/// The list is gone through twice, beside another policy and alone, in three parts each.
const PARTS: usize = 6;
const THIRDS: usize = 3;

/// From when a fault is known until each task has run, in milliseconds of the guest. It is judged on one CPU and on two: of more, each loses its turn
/// for up to 30 ms to each of the others in the emulator, and where CPUs share processors, a hypervisor takes one for longer.
const AFTER_MS_MAX: f64 = 50.0;

/// The part of the day of `faults` that can happen on this many CPUs, where each CPU has its turns: there, what asks for too much is taken out, and
/// not only held back. In six of its turns all are done, and `EKIDEN_TURN=all`, as `ekiden faults --vm`, does all.
fn all_are_named(guest: &TestGuest, faults: usize, after: usize) -> Vec<Value> {
    let parts = of_today(PARTS, after).into_iter();
    let reports: Vec<_> = parts.flat_map(|part| third_is_contained(guest, faults, part % 2 == 0, part / 2)).collect();
    let held_back = |report: &&Value| report["reported"].as_str().is_some_and(|text| text.starts_with("held back"));
    let held_back: Vec<_> = reports.iter().filter(held_back).collect();
    assert!(held_back.is_empty(), "{held_back:#?}");
    reports
}

fn none_is_late(reports: &[Value]) {
    let is_late = |report: &&Value| !report["after_ms"].as_f64().is_some_and(|ms| ms <= AFTER_MS_MAX);
    let late: Vec<_> = reports.iter().filter(is_late).collect();
    assert!(late.is_empty(), "{late:#?}");
}

/// Contains a third of the faults on CPUs that run at once: that of the day, beside another policy or of one that is alone.
pub(crate) fn todays_third_is_contained(guest: &TestGuest, faults: usize, beside: bool, after: usize) {
    for third in of_today(THIRDS, after) {
        third_is_contained(guest, faults, beside, third);
    }
}

/// Every third of the list.
fn third_is_contained(guest: &TestGuest, faults: usize, beside: bool, third: usize) -> Vec<Value> {
    let most = PATIENCE * rounds() as u32;
    let part = format!("--rounds {} --beside {beside} --part {third}/{THIRDS}", rounds());
    let reports = guest.guest_test_within(&format!("list --modules /lab {part}"), most);
    all_ended_well(&reports, (third..faults).step_by(THIRDS).count() * rounds());
    reports
}

/// Asserts that all faults of these reports were contained, and that there are `faults`.
pub(crate) fn all_ended_well(reports: &[Value], faults: usize) {
    for report in reports {
        println!("{report}");
    }
    // A line each, so that the reason is among those that the summary of a run repeats.
    let wrong: Vec<_> = reports.iter().filter(|report| report["contained"] != true).map(Value::to_string).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(reports.len(), faults);
}

fn every_fault_of_the_list_is_contained_on_one_cpu(guest: &TestGuest) {
    none_is_late(&all_are_named(guest, 30, 0));
}

fn every_fault_of_the_list_is_contained_on_two_cpus(guest: &TestGuest) {
    none_is_late(&all_are_named(guest, 36, 1));
}

fn every_fault_of_the_list_is_contained_on_four_cpus(guest: &TestGuest) {
    all_are_named(guest, 36, 4);
}
