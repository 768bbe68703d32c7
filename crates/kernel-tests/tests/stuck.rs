//! Policies that loop or recurse without end in a stock kernel, on one, two and four CPUs.

mod lab;

use lab::{Lab, newest_kernel};

/// How often each way is tried, in another call each time.
fn rounds() -> usize {
    std::env::var("EKIDEN_STUCK_ROUNDS").map_or(1, |rounds| rounds.parse().expect("EKIDEN_STUCK_ROUNDS is a number"))
}

fn only_the_policy_goes_on(cpus: u32) {
    let lab = Lab::boot_with(&newest_kernel(), cpus);
    let reports = lab.trial(&format!("stuck --modules /lab --rounds {}", rounds()));
    assert_eq!(reports.len(), 4 * rounds(), "{reports:#?}");
    for report in &reports {
        println!("{report}");
        assert_eq!(report["cpus"], cpus);
        let expected = match report["way"].as_u64().unwrap() {
            6 | 7 => "an endless loop, or nearly, at crates/test-policies/src/faulty.rs:",
            8 => "the stack is used up at crates/test-policies/src/faulty.rs:",
            _ => "a recursion without end, or nearly, at crates/test-policies/src/faulty.rs:",
        };
        assert!(report["fault"].as_str().unwrap().starts_with(expected), "{report}");
    }
}

#[test]
fn a_call_that_does_not_come_back_ends_only_the_policy_on_one_cpu() {
    only_the_policy_goes_on(1);
}

#[test]
fn a_call_that_does_not_come_back_ends_only_the_policy_on_two_cpus() {
    only_the_policy_goes_on(2);
}

#[test]
fn a_call_that_does_not_come_back_ends_only_the_policy_on_four_cpus() {
    only_the_policy_goes_on(4);
}
