//! Everything that a policy can do wrong in a stock kernel, on one, two and four CPUs: one half of the list today, the other tomorrow.
//! `ekiden faults --vm` goes through all of it.

use crate::{
    lab::{Lab, Machine, PATIENCE},
    pool::tests,
    turns::of_today,
};
use serde_json::Value;

tests! {
    Machine::Newest(1) => {
        16 every_fault_of_the_list_is_contained_on_one_cpu,
    }
    Machine::Newest(2) => {
        22 every_fault_of_the_list_is_contained_on_two_cpus,
    }
    Machine::Newest(4) => {
        40 every_fault_of_the_list_is_contained_on_four_cpus,
    }
}

/// The halves of the list on a machine. Each fault happens each day, in turns on one or four CPUs of one stream and on two, or on CPUs
/// that run at once.
#[derive(Clone, Copy)]
pub(crate) enum Half {
    First,
    Second,
}

/// How often each fault of the whole list happens, in another call each time, if not once each other day.
fn rounds() -> Option<usize> {
    std::env::var("EKIDEN_FAULT_LIST_ROUNDS").ok().map(|rounds| rounds.parse().expect("it is a number"))
}

/// The same where each CPU has its turns: there, what asks for too much is taken out, and not only held back.
fn all_are_named(lab: &Lab, faults: usize, half: Half) {
    let reports = all_are_contained(lab, faults, half);
    let held_back = |report: &&Value| report["reported"].as_str().is_some_and(|text| text.starts_with("held back"));
    let held_back: Vec<_> = reports.iter().filter(held_back).collect();
    assert!(held_back.is_empty(), "{held_back:#?}");
}

/// `faults` of the list can happen on so many CPUs.
pub(crate) fn all_are_contained(lab: &Lab, faults: usize, half: Half) -> Vec<Value> {
    let (rounds, part, parts) = match rounds() {
        Some(rounds) => (rounds, 0, 1),
        None => (1, (of_today(2) + half as usize) % 2, 2),
    };
    let trial = format!("list --modules /lab --rounds {rounds} --part {part} --parts {parts}");
    let reports = lab.trial_within(&trial, PATIENCE * rounds as u32);
    for report in &reports {
        println!("{report}");
    }
    let wrong: Vec<_> = reports.iter().filter(|report| report["contained"] != true).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Beside another policy, and alone.
    assert_eq!(reports.len(), 2 * faults / parts * rounds);
    reports
}

fn every_fault_of_the_list_is_contained_on_one_cpu(lab: &Lab) {
    all_are_named(lab, 30, Half::First);
}

fn every_fault_of_the_list_is_contained_on_two_cpus(lab: &Lab) {
    all_are_named(lab, 36, Half::Second);
}

fn every_fault_of_the_list_is_contained_on_four_cpus(lab: &Lab) {
    all_are_named(lab, 36, Half::First);
}
