//! Everything that a policy can do wrong in a stock kernel, on one, two and four CPUs. `ekiden faults --vm` does the same.

use crate::{
    lab::{Lab, Machine, PATIENCE},
    pool::tests,
};
use serde_json::Value;

tests! {
    Machine::Newest(1) => {
        80 every_fault_of_the_list_is_contained_on_one_cpu,
    }
    // With fair turns: where a policy has timers expire all the time, one CPU had all turns for twelve seconds.
    Machine::Timely => {
        131 every_fault_of_the_list_is_contained_on_two_cpus,
    }
    Machine::Storm => {
        323 every_fault_of_the_list_is_contained_on_four_cpus,
    }
}

/// How often each fault happens, in another call each time.
fn rounds() -> usize {
    std::env::var("EKIDEN_FAULT_LIST_ROUNDS").map_or(1, |rounds| rounds.parse().expect("it is a number"))
}

/// The same where each CPU has its turns: there, what asks for too much is taken out, and not only held back.
fn all_are_named(lab: &Lab, faults: usize) {
    let reports = all_are_contained(lab, faults);
    let held_back = |report: &&Value| report["reported"].as_str().is_some_and(|text| text.starts_with("held back"));
    let held_back: Vec<_> = reports.iter().filter(held_back).collect();
    assert!(held_back.is_empty(), "{held_back:#?}");
}

/// `faults` of the list can happen on so many CPUs: beside another policy, and to one that is alone.
fn all_are_contained(lab: &Lab, faults: usize) -> Vec<Value> {
    [true, false].into_iter().flat_map(|beside| half_is_contained(lab, faults, beside)).collect()
}

/// Half of that.
pub(crate) fn half_is_contained(lab: &Lab, faults: usize, beside: bool) -> Vec<Value> {
    let most = PATIENCE * rounds() as u32;
    let reports = lab.trial_within(&format!("list --modules /lab --rounds {} --beside {beside}", rounds()), most);
    for report in &reports {
        println!("{report}");
    }
    let wrong: Vec<_> = reports.iter().filter(|report| report["contained"] != true).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(reports.len(), faults * rounds());
    reports
}

fn every_fault_of_the_list_is_contained_on_one_cpu(lab: &Lab) {
    all_are_named(lab, 30);
}

fn every_fault_of_the_list_is_contained_on_two_cpus(lab: &Lab) {
    all_are_named(lab, 36);
}

fn every_fault_of_the_list_is_contained_on_four_cpus(lab: &Lab) {
    all_are_named(lab, 36);
}
