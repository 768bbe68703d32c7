//! Everything that a policy can do wrong in a stock kernel, on one, two and four CPUs. `ekiden faults --vm` does the same.

use crate::{
    lab::{Lab, Machine, PATIENCE},
    pool::tests,
    turns::of_today,
};
use serde_json::Value;

tests! {
    Machine::Newest(1) => {
        40 every_fault_of_the_list_is_contained_on_one_cpu,
    }
    // With fair turns: where a policy has timers expire all the time, one CPU had all turns for twelve seconds.
    Machine::Timely => {
        65 every_fault_of_the_list_is_contained_on_two_cpus,
    }
    Machine::Storm => {
        162 every_fault_of_the_list_is_contained_on_four_cpus,
    }
}

/// How often each fault happens, in another call each time.
fn rounds() -> usize {
    std::env::var("EKIDEN_FAULT_LIST_ROUNDS").map_or(1, |rounds| rounds.parse().expect("it is a number"))
}

/// The list where each CPU has its turns: there, what asks for too much is taken out, and not only held back.
fn all_are_named(lab: &Lab, faults: usize, turn: usize) {
    let reports: Vec<_> = halves(turn).into_iter().flat_map(|beside| half_is_contained(lab, faults, beside)).collect();
    let held_back = |report: &&Value| report["reported"].as_str().is_some_and(|text| text.starts_with("held back"));
    let held_back: Vec<_> = reports.iter().filter(held_back).collect();
    assert!(held_back.is_empty(), "{held_back:#?}");
}

/// Beside another policy, and to one that is alone. CPUs that run at once see both each day, and those of one stream the one of the day, unless
/// rounds are asked for: `ekiden faults --vm` and `make nightly` do both.
fn halves(turn: usize) -> Vec<bool> {
    match std::env::var_os("EKIDEN_FAULT_LIST_ROUNDS") {
        Some(_) => vec![true, false],
        None => vec![(of_today(2) + turn) % 2 == 0],
    }
}

/// `faults` of the list can happen on so many CPUs: beside another policy, or to one that is alone.
pub(crate) fn half_is_contained(lab: &Lab, faults: usize, beside: bool) -> Vec<Value> {
    let most = PATIENCE * rounds() as u32;
    let reports = lab.trial_within(&format!("list --modules /lab --rounds {} --beside {beside}", rounds()), most);
    all_ended_well(&reports, faults * rounds());
    reports
}

/// All faults of these reports were contained, and there are so many.
pub(crate) fn all_ended_well(reports: &[Value], faults: usize) {
    for report in reports {
        println!("{report}");
    }
    // A line each, so that the reason is among those that the summary of a run repeats.
    let wrong: Vec<_> = reports.iter().filter(|report| report["contained"] != true).map(Value::to_string).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(reports.len(), faults);
}

fn every_fault_of_the_list_is_contained_on_one_cpu(lab: &Lab) {
    all_are_named(lab, 30, 0);
}

fn every_fault_of_the_list_is_contained_on_two_cpus(lab: &Lab) {
    all_are_named(lab, 36, 1);
}

fn every_fault_of_the_list_is_contained_on_four_cpus(lab: &Lab) {
    all_are_named(lab, 36, 0);
}
