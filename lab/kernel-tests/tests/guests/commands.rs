//! Commands beside policies in a stock kernel: which threads get a policy by `ekiden attach --follow`, what is left of a recording whose reader is
//! killed, what a finding of `ekiden check --live` saves, and how soon it is told that a policy was taken out.

use std::fs::File;

use crate::{
    pool::tests,
    test_guest::{Machine, TestGuest},
};
use ekiden_policies::Wfq;
use ekiden_replay::Replay;
use serde_json::json;

tests! {
    Machine::Calm => {
        8 tasks_that_join_a_group_or_have_a_name_get_its_policy_while_it_is_followed,
        4 a_killed_reader_leaves_a_recording_that_can_be_read_and_a_policy_that_runs,
        5 a_finding_of_the_live_checker_saves_the_last_calls_of_the_policy,
        3 what_happens_to_policies_is_told_at_once_to_those_who_wait_for_it,
        4 a_command_is_ended_as_soon_as_its_policy_is_taken_out,
        3 an_agent_that_is_killed_where_nothing_happens_is_gone_at_once,
    }
}

/// A guest test that runs `ekiden`.
fn with_ekiden(guest: &TestGuest, guest_test: &str) -> Vec<serde_json::Value> {
    guest.bring("ekiden-cli", "ekiden");
    guest.guest_test(&format!("{guest_test} --modules /lab --ekiden /lab/programs/ekiden"))
}

fn tasks_that_join_a_group_or_have_a_name_get_its_policy_while_it_is_followed(guest: &TestGuest) {
    let reports = with_ekiden(guest, "followed");
    assert_eq!(reports.len(), 2, "{reports:#?}");
    for report in &reports {
        println!("{report}");
        // A tenth of a second, and what a look takes.
        assert!(report["later_ms"].as_u64() < Some(500), "{report}");
        assert_eq!((&report["tasks"], &report["code"]), (&json!([2, 2, 2]), &0.into()), "{report}");
        let printed = report["printed"].as_str().unwrap();
        assert!(printed.starts_with("fifo was given to 2 threads, who keep it"), "{report}");
    }
}

fn a_killed_reader_leaves_a_recording_that_can_be_read_and_a_policy_that_runs(guest: &TestGuest) {
    let report = &with_ekiden(guest, "reader-killed --to /host/killed.ekirec")[0];
    let outcome = Replay::of::<Wfq>().run(File::open(guest.host("killed.ekirec")).unwrap()).unwrap();
    println!("{report} {} of {} calls, {:?} {:?}", outcome.replayed, outcome.calls, outcome.exact, outcome.remarks);
    assert!(outcome.calls > 200 && outcome.replayed > 200, "{} of {} calls: {report}", outcome.replayed, outcome.calls);
    assert_eq!(outcome.differences, 0, "{:?}", outcome.first);
    // The policy ran before the recording began.
    let mut missing = outcome.remarks.iter().filter(|remark| remark.contains("missing"));
    assert!(missing.all(|remark| remark.contains("before call 1")), "{:?}", outcome.remarks);
    assert!(outcome.remarks.iter().any(|remark| remark.contains("cut off")), "{:?}", outcome.remarks);
    assert!(report["again"]["records"].as_u64() > Some(50) && report["again"]["lost"] == 0, "{report}");
    assert_eq!(report["still_running"], true, "{report}");
}

fn a_finding_of_the_live_checker_saves_the_last_calls_of_the_policy(guest: &TestGuest) {
    let report = &with_ekiden(guest, "found-flight --to /host/found.ekirec")[0];
    let outcome = ekiden_linked::replay().run(File::open(guest.host("found.ekirec")).unwrap()).unwrap();
    println!("{report} {} of {} calls, {:?} {:?}", outcome.replayed, outcome.calls, outcome.exact, outcome.remarks);
    assert_eq!((&report["code"], &report["still_running"]), (&118.into(), &true.into()), "{report}");
    // Once, and not with each finding.
    let saved: Vec<usize> =
        report["recordings"].as_array().unwrap().iter().map(|files| files.as_array().unwrap().len()).collect();
    assert!(saved[0] == 1 && saved[1..].iter().all(|count| *count == 0), "{report}");
    assert!(report["recordings"][0][0].as_str().unwrap().starts_with("/var/lib/ekiden/fifo-"), "{report}");
    assert!(outcome.replayed > 100, "{} of {} calls", outcome.replayed, outcome.calls);
    assert_eq!(outcome.differences, 0, "{:?}", outcome.first);
}

fn what_happens_to_policies_is_told_at_once_to_those_who_wait_for_it(guest: &TestGuest) {
    let report = &guest.guest_test("told --modules /lab")[0];
    println!("{report}");
    let changes = report["changes"].as_array().unwrap();
    assert!(changes.iter().all(|told| (1..=3).contains(&told.as_u64().unwrap())), "{report}");
    assert!(report["told_us"].as_u64() < Some(50_000), "{report}");
    assert_eq!((&report["is_quiet"], &report["still_running"]), (&true.into(), &true.into()), "{report}");
}

/// The kernel lets go of the policy when its key is pressed, and the command says when that was and when it was ended for it.
fn a_command_is_ended_as_soon_as_its_policy_is_taken_out(guest: &TestGuest) {
    let script = r#"
        sleep 0.3
        now() { cut -d ' ' -f 1 /proc/uptime; }
        trap 'echo "ended $(now)"; exit' TERM
        echo "gone $(now)"; echo S > /proc/sysrq-trigger
        while :; do sleep 0.01; done
    "#;
    guest.bring("ekiden-cli", "ekiden");
    std::fs::write(guest.host("gone.sh"), script).unwrap();
    for place in ["run", "agent"] {
        let said = guest.shell(&format!(
            "export LD_LIBRARY_PATH=/lab/programs EKIDEN_MODULES=/lab; exec 2>&1; \
             /lab/programs/ekiden {place} fifo -- sh /host/gone.sh; echo \"code $?\""
        ));
        println!("{said}");
        let at =
            |word: &str| -> f64 { said.lines().find_map(|line| line.strip_prefix(word)).unwrap().parse().unwrap() };
        // What is said of it first takes some of that.
        assert!(at("ended ") - at("gone ") < 0.5, "{said}");
        assert!(said.contains("disabled by sysrq-S") && said.trim_end().ends_with("code 101"), "{said}");
    }
}

/// All of its threads have to run for that, and one of them waits for a call.
fn an_agent_that_is_killed_where_nothing_happens_is_gone_at_once(guest: &TestGuest) {
    guest.bring("ekiden-cli", "ekiden");
    let said = guest.shell(
        "export LD_LIBRARY_PATH=/lab/programs; now() { cut -d ' ' -f 1 /proc/uptime; }; \
         /lab/programs/ekiden agent fifo 2> /tmp/agent & agent=$!; sleep 9.5; cat /sys/kernel/sched_ext/root/ops; \
         echo \"killed $(now)\"; kill -9 $agent; wait $agent; echo \"gone $(now)\"; cat /sys/kernel/sched_ext/state",
    );
    println!("{said}");
    let at = |word: &str| -> f64 { said.lines().find_map(|line| line.strip_prefix(word)).unwrap().parse().unwrap() };
    assert!(said.starts_with("ekiden_agent_fifo\n") && said.ends_with("disabled\n"), "{said}");
    assert!(at("gone ") - at("killed ") < 1.0, "{said}");
}
