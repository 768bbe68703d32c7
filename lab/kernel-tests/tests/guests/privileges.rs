//! Privileges, and other users of the kernel beside a policy: tracers.

use serde_json::Value;

use crate::{
    faults::all_ended_well,
    pool::tests,
    test_guest::{Machine, TestGuest},
};

tests! {
    Machine::Newest(2) => {
        2 root_of_a_container_that_has_the_device_controls_nothing,
        2 who_may_choose_a_policy_is_up_to_root,
        2 the_verifier_refuses_a_program_that_is_no_scheduler_and_calls_a_policy,
        1 a_scheduler_that_makes_up_a_task_gets_none,
        1 the_reason_of_a_fault_is_written_into_the_room_that_there_is_for_it,
    }
    // Without fair turns, a CPU had none for five seconds in 2 of 240 faults.
    Machine::Crowded => {
        26 a_policy_that_panics_ends_alone_while_every_return_is_traced,
    }
}

fn root_of_a_container_that_has_the_device_controls_nothing(guest: &TestGuest) {
    let report = &guest.guest_test("intruder --modules /lab")[0];
    println!("{report}");
    let errors: Vec<_> = report["errors"].as_array().unwrap().iter().map(|error| error.as_i64().unwrap()).collect();
    assert!(errors.len() > 100 && errors.iter().all(|error| *error == i64::from(libc::EPERM)), "{report}");
    assert_eq!(report["still_running"], true, "{report}");
}

/// A policy that is asked first, or has CPUs of its own, is priority for all users who may choose it.
fn who_may_choose_a_policy_is_up_to_root(guest: &TestGuest) {
    let report = &guest.guest_test("chooser --modules /lab")[0];
    println!("{report}");
    for (what, is_allowed) in [
        ("the default one", true),
        ("root's", false),
        ("away from what root has chosen", false),
        ("after root has taken its choice back", true),
        ("of another group", false),
        ("of the own group", true),
        ("open", true),
    ] {
        let came = report["tries"][what].as_str().unwrap();
        assert_eq!(came == "chosen", is_allowed, "{what}: {came}");
        assert!(is_allowed || came.starts_with("not for you: "), "{what}: {came}");
    }
    assert_eq!(report["still_running"], true, "{report}");
}

/// A congestion control needs fewer capabilities than a scheduler, and is called where a policy must not be.
fn the_verifier_refuses_a_program_that_is_no_scheduler_and_calls_a_policy(guest: &TestGuest) {
    let report = &guest.guest_test("kfunc-caller --modules /lab")[0];
    println!("{report}");
    let refused = report["refused"].as_str().unwrap();
    assert!(refused.contains("calling kernel function ekiden_chooses_cpu is not allowed"), "{refused}");
    assert_eq!((&report["ordinary_refused"], &report["still_running"]), (&Value::Null, &true.into()), "{report}");
}

/// An address that is none would be handed to the CPU that asks which task to run.
fn a_scheduler_that_makes_up_a_task_gets_none(guest: &TestGuest) {
    let report = &guest.guest_test("impostor --modules /lab")[0];
    println!("{report}");
    let invalid = -2;
    assert_eq!(report["statuses"], serde_json::json!([invalid, invalid, 0]), "{report}");
    assert_eq!((&report["tasks"][0], &report["tasks"][1]), (&0.into(), &0.into()), "{report}");
    assert_ne!(report["tasks"][2], 0, "{report}");
}

/// The caller says how much room there is: none, or less than the text takes.
fn the_reason_of_a_fault_is_written_into_the_room_that_there_is_for_it(guest: &TestGuest) {
    let report = &guest.guest_test("texts --modules /lab")[0];
    println!("{report}");
    let reason = report["reason"].as_str().unwrap();
    assert!(reason.len() > 20, "{report}");
    let whole = reason.len();
    let texts = serde_json::json!([[0, "without an end"], [0, ""], [7, reason[..7]], [whole, reason]]);
    assert_eq!((&report["texts"], &report["outside"]), (&texts, &0.into()), "{report}");
    let refused = report["greedy_refused"].as_str().unwrap();
    assert!(refused.contains("unbounded memory access"), "{refused}");
}

/// The function graph tracer puts its own return addresses on the stack, and keeps the right ones in order.
fn a_policy_that_panics_ends_alone_while_every_return_is_traced(guest: &TestGuest) {
    guest.shell(
        "cd /sys/kernel/tracing; echo do_nanosleep > set_ftrace_filter; echo ':mod:ekiden' >> set_ftrace_filter; \
         echo function_graph > current_tracer",
    );
    let reports = guest.guest_test("list --modules /lab --rounds 1 --only panic");
    let traced = guest
        .shell("cd /sys/kernel/tracing; grep -c ekiden trace; echo nop > current_tracer; echo > set_ftrace_filter");
    println!("{} lines", traced.trim());
    // Four faults, each beside another policy and alone.
    all_ended_well(&reports, 8);
    assert!(traced.trim().parse::<u32>().unwrap() > 100, "{traced}");
}
