//! What policies do in a stock kernel, and what the kernel does when they go wrong.

use std::{fs::File, time::Duration};

use crate::{
    pool::tests,
    storm::{interrupts_are_off_for_short, is_measured},
    test_guest::{Machine, PATIENCE, TestGuest},
    turns::{of_today, some_policies},
};
use ekiden::Call;
use ekiden_policies::Wfq;
use ekiden_recording::{Entry, Item, RecordedCall, RecordingReader};
use ekiden_replay::{Outcome, Replay};
use ekiden_test_policies::Faulty;
use serde_json::Value;

tests! {
    Machine::Newest(2) => {
        22 a_panic_in_each_call_of_the_trait_ends_only_the_policy,
        6 a_panic_in_the_busiest_call_is_contained_twenty_times_in_one_boot,
        44 policies_come_are_ordered_and_leave_and_nothing_is_refused,
        3 programs_talk_to_their_policy_and_what_they_do_wrong_is_answered,
        3 scripts_and_tracers_see_what_goes_on,
        18 a_policy_that_panics_beside_another_goes_alone_and_its_tasks_go_on,
        137 modules_load_run_and_unload_again_and_again,
        2 what_cannot_work_is_refused_and_leaves_the_machine_as_it_was,
        3 a_cpu_that_was_away_does_what_it_is_asked_whatever_was_wanted_when_it_left,
        10 policies_send_no_task_to_a_cpu_that_is_away,
        14 policies_take_over_from_each_other_a_thousand_times_and_no_task_is_lost,
        4 a_cpu_that_does_not_come_in_time_is_waited_for_and_nothing_is_refused,
        25 what_policies_did_in_the_kernel_is_replayed_without_a_difference,
        8 a_changed_constant_is_found_in_what_the_kernel_recorded,
        3 the_last_calls_of_a_policy_that_panics_are_saved_and_panic_again,
        3 calls_are_replayed_by_the_policy_that_had_them_whatever_took_over_since,
        2 a_recording_names_the_thread_on_whose_time_each_call_came,
        3 recording_is_switched_off_and_on_while_a_policy_runs,
        2 an_upgrade_that_cannot_be_is_refused_and_the_old_policy_goes_on,
        6 a_new_version_takes_over_the_state_if_its_layout_is_the_same,
        2 a_version_of_another_layout_goes_on_with_what_was_saved_for_it,
        6 a_policy_that_takes_over_and_panics_ends_alone,
        2 a_policy_for_attached_tasks_leaves_the_others_alone,
        2 a_recording_counts_the_sleeps_of_a_task_as_the_kernel_does,
    }
    // By the second, whether each task still runs at its end. It leaves what hundreds of forks do.
    Machine::Crowded => {
        27 policies_live_through_a_storm_and_no_task_is_lost,
    }
    // How the time is shared, and how long tasks wait. The agent's BPF arms timers, of whose lock a CPU may be left without a turn for long
    // where turns are not fair.
    Machine::Calm => {
        17 wfq_and_eevdf_pass_the_tests_of_the_appendix_that_the_simulator_passes,
        4 policies_get_the_cpus_and_the_shares_that_they_were_given,
        6 several_policies_share_the_machine_and_come_and_go,
        3 what_is_set_for_a_task_is_checked_and_has_its_effect,
        3 an_idle_cpu_that_a_policy_does_not_want_is_idle_for_the_tasks_of_others,
        16 what_a_policy_notes_stands_in_recordings_of_a_kernel_and_of_an_agent,
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// How often each call panics. Each time costs one or two seconds under emulation, so a test run does it twice;
/// `EKIDEN_FAULT_ROUNDS=20` takes a quarter of an hour.
fn rounds() -> usize {
    std::env::var("EKIDEN_FAULT_ROUNDS").map_or(2, |rounds| rounds.parse().expect("EKIDEN_FAULT_ROUNDS is a number"))
}

fn a_panic_in_each_call_of_the_trait_ends_only_the_policy(guest: &TestGuest) {
    each_call_panics(guest, rounds());
}

/// Every other call of the trait, and those between at the next turn of the test. `EKIDEN_TURN=all` is all of them.
fn calls_of_today() -> Vec<&'static str> {
    let of_half = |half: usize| Call::ALL.iter().skip(half).step_by(2).map(|call| call.name());
    of_today(2, 0).into_iter().flat_map(of_half).collect()
}

pub(crate) fn each_call_panics(guest: &TestGuest, rounds: usize) {
    let calls = calls_of_today();
    let reports = guest.guest_test(&format!("faults --modules /lab --rounds {rounds} --calls {}", calls.join(",")));
    assert_eq!(reports.len(), rounds * calls.len(), "{reports:#?}");
    for report in &reports {
        println!("{report}");
        let expected = format!("planted in {} at ", text(report, "call"));
        assert!(text(report, "fault").starts_with(&expected), "{report}");
        assert!(text(report, "fault").contains("faulty.rs:"), "the place is missing: {report}");
    }
}

fn a_panic_in_the_busiest_call_is_contained_twenty_times_in_one_boot(guest: &TestGuest) {
    let reports = guest.guest_test("faults --modules /lab --rounds 20 --calls pick_next_task");
    assert_eq!(reports.len(), 20);
    assert!(reports.iter().all(|report| text(report, "fault").starts_with("planted in ")), "{reports:#?}");
}

pub(crate) fn several_policies_share_the_machine_and_come_and_go(guest: &TestGuest) {
    let report = &guest.guest_test("several --modules /lab")[0];
    assert_eq!(report["order"], serde_json::json!(["wfq", "fifo"]), "{report}");
    assert_eq!(report["reordered"], serde_json::json!(["fifo", "wfq"]), "{report}");
    assert_eq!(report["tasks"], serde_json::json!([0, 2, 0]), "{report}");
    assert_eq!(report["left"], serde_json::json!([["fifo", "wfq", "cfs"], ["fifo", "cfs"], ["cfs"]]), "{report}");
    assert_eq!((&report["contract_violations"], &report["unexpected_transitions"]), (&0.into(), &0.into()), "{report}");
    assert_eq!(report["still_running"], true, "{report}");
    assert!(report["taken_out"].as_str().unwrap().contains("sysrq"), "{report}");
    // The policy that is asked last gets a slice ten times a second.
    let share = |key: &str| report[key].as_f64().unwrap();
    assert!((0.02..0.5).contains(&share("share_asked_last")), "{report}");
    assert!((0.5..0.98).contains(&share("share_asked_first")), "{report}");
}

/// `EKIDEN_COMINGS` says how often.
fn policies_come_are_ordered_and_leave_and_nothing_is_refused(guest: &TestGuest) {
    comings(guest, 40);
}

pub(crate) fn comings(guest: &TestGuest, rounds: u64) {
    let rounds = std::env::var("EKIDEN_COMINGS").map_or(rounds, |rounds| rounds.parse().expect("it is a number"));
    let guest_test = format!("comings --rounds {rounds}");
    let report = &guest.guest_test_within(&guest_test, PATIENCE + Duration::from_secs(10 * rounds))[0];
    println!("{report}");
    for done in ["comings", "orders", "shares", "departures"] {
        assert_eq!(report[done], rounds, "{report}");
    }
    is_measured(report, &["come", "status", "figures"]);
    // CPUs stand still for none of it, so none of it can be refused because one was late.
    assert_eq!((&report["stops"], &report["graces"]), (&0.into(), &(4 * rounds).into()), "{report}");
    assert_eq!(report["tasks"], report["tasks_in_all"], "{report}");
    assert_eq!((&report["contract_violations"], &report["unexpected_transitions"]), (&0.into(), &0.into()), "{report}");
    assert_eq!(report["still_running"], true, "{report}");
}

fn policies_get_the_cpus_and_the_shares_that_they_were_given(guest: &TestGuest) {
    let report = &guest.guest_test("shares --modules /lab")[0];
    println!("{report}");
    for entry in report["weights"].as_array().unwrap() {
        let [one, other, share] = [0, 1, 2].map(|at| entry[at].as_f64().unwrap());
        let expected = one / (one + other);
        assert!((share - expected).abs() < 0.05, "{share} instead of {expected}: {report}");
    }
    // The other policy has 3 ticks of 25.
    assert!(report["share_of_owner"].as_f64().unwrap() > 0.75, "{report}");
    assert_eq!((&report["seen_of_owner"], &report["seen_of_other"]), (&[1].into(), &[0].into()), "{report}");
    assert_eq!((&report["cpus"], &report["strict"]), (&"1".into(), &true.into()), "{report}");
    assert_eq!((&report["contract_violations"], &report["unexpected_transitions"]), (&0.into(), &0.into()), "{report}");
    assert_eq!(report["still_running"], true, "{report}");
}

fn what_is_set_for_a_task_is_checked_and_has_its_effect(guest: &TestGuest) {
    let report = &guest.guest_test("task-params --modules /lab")[0];
    println!("{report}");
    let refusals: Vec<&str> =
        report["refusals"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert!(refusals[0].ends_with("a slice has at least 100 us; or 0, for that of everybody"), "{report}");
    assert!(refusals[1].contains("no parameter \"colour\"; for a task there is slice_us (0 to 100000)"), "{report}");
    assert!(refusals[2].ends_with("this policy has none for a task"), "{report}");
    let [short, long, usual] = [0, 1, 2].map(|at| report["turns"][at].as_u64().unwrap());
    assert!(short > 4 * long && usual > 4 * long, "{report}");
    is_measured(report, &["settings", "task_params"]);
    assert_eq!((&report["contract_violations"], &report["still_running"]), (&0.into(), &true.into()), "{report}");
}

fn programs_talk_to_their_policy_and_what_they_do_wrong_is_answered(guest: &TestGuest) {
    let report = &guest.guest_test("queues --modules /lab")[0];
    println!("{report}");
    let number = |key: &str, at: usize| report[key][at].as_u64().unwrap();
    assert!(report["answered_ms"].as_u64().unwrap() < 1_000, "{report}");
    let [written, taken, full, lost] = [0, 1, 2, 3].map(|at| number("flood", at));
    // All that was written, and two before; more than one ring has room for, and less than the program wanted to say.
    assert!(written + 2 == taken && taken > 64 && full > 0 && lost > 0, "{report}");
    assert_eq!(number("refused", 0), number("refused", 1), "{report}");
    assert_eq!(report["nonsense"], 4, "{report}");
    assert!(text(report, "other_hints").contains("hints are of another type"), "{report}");
    assert!(text(report, "other_notices").contains("notices are of another type"), "{report}");
    assert!(text(report, "too_many").contains("too many queues"), "{report}");
    assert!((200..=256).contains(&report["opened"].as_u64().unwrap()), "{report}");
    assert_eq!(report["child"], serde_json::json!([7, libc::EFAULT, 1]), "{report}");
    assert_eq!(number("left", 0), number("left", 1), "{report}");
    assert_eq!((&report["unmapped"], &report["upgraded"]), (&true.into(), &true.into()), "{report}");
    assert_eq!(report["gone"], "PolicyGone", "{report}");
    let anew = &report["anew"];
    let heard = [&anew["state"], &anew["sent"], &anew["rung"]].map(|heard| heard.as_str().unwrap());
    assert_eq!(heard, ["OtherTypes", "OpenAnew", "OpenAnew"], "{report}");
    assert!(text(anew, "old_types").contains("hints are of another type"), "{report}");
    assert_eq!((&anew["woken"], &anew["answered"], &anew["open"]), (&true.into(), &true.into(), &1.into()), "{report}");
    // Closed queues count, too; bad values and hints that were flooded away are among them.
    let counted = [0, 1, 2, 3].map(|at| number("counted", at));
    assert!(report["opened_in_all"].as_u64() > report["opened"].as_u64(), "{report}");
    assert!(counted[0] >= taken && counted[1] >= number("refused", 1), "{report}");
    assert!(counted[2] >= full && counted[3] >= lost, "{report}");
    is_measured(report, &["hints", "queue_ready"]);
    assert_eq!(report["owner"][0], report["owner"][1], "{report}");
    assert_eq!((&report["contract_violations"], &report["still_running"]), (&0.into(), &true.into()), "{report}");
}

fn scripts_and_tracers_see_what_goes_on(guest: &TestGuest) {
    let report = &guest.guest_test("seen --modules /lab")[0];
    println!("{report}");
    assert_eq!(report["header"], "policy number cpu picks idles migrations refusals unexpected slowed turns ticks");
    let lines = report["lines"].as_array().unwrap();
    let cpus: u32 = guest.shell("grep -c ^processor /proc/cpuinfo").trim().parse().unwrap();
    let expected: Vec<Value> = (0..cpus).map(|cpu| serde_json::json!(["wfq", cpu.to_string()])).collect();
    assert!(cpus >= 2 && *lines == expected, "{cpus} CPUs: {report}");
    assert_eq!(report["counts_fit"], true, "{report}");
    assert_eq!(report["said"], serde_json::json!([true, true]), "{report}");
    let kinds = report["kinds"].to_string();
    for kind in ["task_init", "enqueue", "pick", "tick", "task_exit"] {
        assert!(kinds.contains(&format!("\"{kind}\"")), "no {kind}: {report}");
    }
    assert_eq!(report["worker_ran"], true, "{report}");
    // perf and trace-cmd print events themselves, and do not know our enumerations.
    let format = report["format"].as_str().unwrap();
    assert!(format.contains(r#"{ 1, "task_init" }"#) && !format.contains("EKIDEN_"), "{format}");
    let policies: Vec<&str> =
        report["policies"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let expected = ["what=created policy=faulty", "what=taken out policy=faulty", "what=removed policy=faulty"];
    assert_eq!(policies.len(), expected.len(), "{report}");
    assert!(policies.iter().zip(expected).all(|(line, expected)| line.starts_with(expected)), "{report}");
    assert!(policies[1].contains("text=planted in task_wakeup at "), "{report}");
    assert_eq!(report["still_running"], true, "{report}");
}

pub(crate) fn a_policy_that_panics_beside_another_goes_alone_and_its_tasks_go_on(guest: &TestGuest) {
    let calls = calls_of_today();
    let reports = guest.guest_test(&format!("alone --modules /lab --rounds 1 --calls {}", calls.join(",")));
    assert_eq!(reports.len(), calls.len(), "{reports:#?}");
    for report in &reports {
        println!("{report}");
        assert!(text(report, "fault").contains(&format!("planted in {} at ", text(report, "call"))), "{report}");
        assert_eq!(report["others"], serde_json::json!(["wfq"]), "{report}");
    }
}

/// A night does it five hundred times.
fn modules_load_run_and_unload_again_and_again(guest: &TestGuest) {
    reload(guest, 50);
}

/// `EKIDEN_RELOAD_ROUNDS` says how often.
pub(crate) fn reload(guest: &TestGuest, rounds: usize) {
    let rounds = std::env::var("EKIDEN_RELOAD_ROUNDS").map_or(rounds, |rounds| rounds.parse().expect("it is a number"));
    let guest_test = format!("reload --modules /lab --rounds {rounds}");
    let reports = guest.guest_test_within(&guest_test, PATIENCE + Duration::from_secs(10 * rounds as u64));
    for report in &reports {
        println!("{report}");
    }
    assert_eq!(reports.len(), rounds);
}

fn policies_live_through_a_storm_and_no_task_is_lost(guest: &TestGuest) {
    storm(guest, &some_policies(3));
}

/// Behind the task that keeps CPU 0 busy, one that is woken up there would wait for 20 ms each time.
fn an_idle_cpu_that_a_policy_does_not_want_is_idle_for_the_tasks_of_others(guest: &TestGuest) {
    let report = &guest.guest_test("claimed --modules /lab")[0];
    println!("{report}");
    assert!(report["naps"].as_u64().unwrap() > 500 && report["still_running"] == true, "{report}");
}

pub(crate) fn storm(guest: &TestGuest, policies: &[&str]) {
    for policy in policies {
        interrupts_are_off_for_short(guest, || storm_under(guest, policy));
    }
}

/// Returns for how long interrupts were off in it at most because of each kind of event.
fn storm_under(guest: &TestGuest, policy: &str) -> Value {
    let report = &guest.guest_test(&format!("storm --modules /lab --policy {policy}"))[0];
    println!("{policy} {report}");
    is_measured(report, &["pick"]);
    assert_eq!(report["still_running"], true, "{report}");
    assert_eq!(report["contract_violations"], 0, "{report}");
    assert_eq!(report["back_after_kill"], true, "{report}");
    let (before, after) = (report["tasks_before"].as_u64().unwrap(), report["tasks_after"].as_u64().unwrap());
    // Kernel threads come and go; two hundred forks must not stay.
    assert!(after < before + 20, "slots of dead tasks are not freed: {report}");
    report["off_ns_max"].clone()
}

fn what_cannot_work_is_refused_and_leaves_the_machine_as_it_was(guest: &TestGuest) {
    let reports = guest.guest_test("refusals --modules /lab");
    let find =
        |what: &str| text(reports.iter().find(|report| text(report, "what") == what).unwrap(), "error").to_owned();
    assert!(find("unknown policy").contains("nosuch"));
    assert!(find("parameter out of range").contains("period_us=0"), "{reports:?}");
    assert!(find("unknown parameter").contains("nosuch"));
    assert!(find("module that is not there").contains("does not exist"));
    assert!(find("file that is no module").contains("not a kernel module"));
    assert!(find("arena too small").contains("memory"), "{}", find("arena too small"));
    assert!(find("second session").contains("runs already"));
}

pub(crate) fn a_cpu_that_was_away_does_what_it_is_asked_whatever_was_wanted_when_it_left(guest: &TestGuest) {
    let report = &guest.guest_test("leaving --modules /lab")[0];
    assert_eq!((&report["still_running"], &report["deaf"]), (&true.into(), &serde_json::json!([])), "{report}");
}

fn policies_send_no_task_to_a_cpu_that_is_away(guest: &TestGuest) {
    for report in no_task_is_sent_away(guest) {
        // Twenty processes begin meanwhile.
        assert!(report["refusals"].as_u64().unwrap() < 5, "{report}");
    }
}

/// On CPUs that run at once, an idle one that comes for a task which is still leaving its CPU is refused as well, as often as it tries.
pub(crate) fn no_task_is_sent_away(guest: &TestGuest) -> Vec<Value> {
    let report_of = |policy| guest.guest_test(&format!("away --modules /lab --policy {policy}")).remove(0);
    let reports: Vec<Value> = some_policies(3).into_iter().map(report_of).collect();
    for report in &reports {
        println!("{report}");
        assert_eq!((&report["still_running"], &report["contract_violations"]), (&true.into(), &0.into()), "{report}");
        assert_eq!((&report["sent_away"], &report["lost"]), (&0.into(), &0.into()), "{report}");
        assert!(report["calls"].as_u64() > Some(40), "{report}");
    }
    reports
}

/// `EKIDEN_UPGRADE_ROUNDS` does it more or less often.
fn policies_take_over_from_each_other_a_thousand_times_and_no_task_is_lost(guest: &TestGuest) {
    upgrade(
        guest,
        std::env::var("EKIDEN_UPGRADE_ROUNDS").map_or(1000, |rounds| rounds.parse().expect("it is a number")),
    );
}

pub(crate) fn upgrade(guest: &TestGuest, rounds: u64) {
    let report = &guest.guest_test(&format!("upgrades --modules /lab --rounds {rounds}"))[0];
    println!("{report}");
    assert_eq!(report["upgrades"], rounds, "{report}");
    assert_eq!(report["still_running"], true, "{report}");
    for nothing in ["contract_violations", "unexpected_transitions"] {
        assert_eq!(report[nothing], 0, "{report}");
    }
    let number = |key: &str| report[key].as_u64().unwrap();
    assert!(number("by_pointer") >= number("upgrades") / 2, "{report}");
    assert!(number("round_trips") > number("upgrades"), "the load came to a halt: {report}");
    assert!(number("tasks_after") < number("tasks_before") + 20, "slots of dead tasks are not freed: {report}");
    // No CPU was idle for M beside a task that might have run there.
    assert_eq!(report["watched"]["findings"], serde_json::json!([]), "{report}");
    // A hundred upgrades take from a second on.
    assert!(report["watched"]["counts"]["looks"].as_u64() > Some(rounds / 50), "{report}");
}

fn a_cpu_that_does_not_come_in_time_is_waited_for_and_nothing_is_refused(guest: &TestGuest) {
    let report = &guest.guest_test("upgrades --modules /lab --rounds 60 --patience-us 1")[0];
    println!("{report}");
    assert_eq!((&report["upgrades"], &report["still_running"]), (&60.into(), &true.into()), "{report}");
    let stops = |key: &str| report["stops"][key].as_u64().unwrap();
    // In a microsecond no CPU comes.
    assert!(stops("slow") > 0 && stops("quick") + stops("slow") == 60, "{report}");
    let number = |key: &str| report[key].as_u64().unwrap();
    // A signal ends what has not met, so that CPUs stood still for nothing, and no less than they have patience for.
    assert!(number("interrupted") > 0 && number("noted") > number("interrupted") / 2, "{report}");
    assert!(stops("wait_ns_max").min(number("for_nothing_ns_max")) >= 1_000, "{report}");
    for nothing in ["contract_violations", "unexpected_transitions"] {
        assert_eq!(report[nothing], 0, "{report}");
    }
}

/// Has a policy recorded in the kernel, and replays that here.
fn replayed(guest: &TestGuest, guest_test: &str, replay: Replay) -> (Value, Outcome) {
    replayed_within(guest, guest_test, replay, PATIENCE)
}

fn replayed_within(guest: &TestGuest, guest_test: &str, replay: Replay, most: Duration) -> (Value, Outcome) {
    let report =
        guest.guest_test_within(&format!("{guest_test} --modules /lab --to /host/out.ekirec"), most)[0].clone();
    let outcome = replay.run(File::open(guest.host("out.ekirec")).unwrap()).unwrap();
    println!("{report} {:?} {:?}", outcome.exact, outcome.remarks);
    (report, outcome)
}

pub(crate) fn what_policies_did_in_the_kernel_is_replayed_without_a_difference(guest: &TestGuest) {
    for policy in some_policies(3) {
        is_replayed_without_a_difference(guest, policy, &format!("recorded --policy {policy}"), PATIENCE);
    }
}

/// From its first call to its last. Returns what the guest test says of it.
pub(crate) fn is_replayed_without_a_difference(
    guest: &TestGuest,
    policy: &str,
    guest_test: &str,
    most: Duration,
) -> Value {
    let (report, outcome) = replayed_within(guest, guest_test, ekiden_linked::replay(), most);
    assert_eq!(
        (&report["still_running"], &report["contract_violations"], &report["lost"]),
        (&true.into(), &0.into(), &0.into()),
        "{report}"
    );
    if let Some(first) = &outcome.first {
        panic!("{policy}: {first}");
    }
    assert_eq!((outcome.differences, outcome.not_exact, outcome.lost), (0, 0, 0), "{:?}", outcome.remarks);
    let [exact] = outcome.exact[..] else { panic!("{policy}: {:?}", outcome.exact) };
    assert!(exact.from_beginning && exact.from == 1 && exact.to == outcome.replayed, "{policy}: {exact:?}");
    assert!(outcome.replayed > 2_000, "{policy}: {} calls", outcome.replayed);
    report
}

fn a_changed_constant_is_found_in_what_the_kernel_recorded(guest: &TestGuest) {
    let changed = Replay::of::<Wfq>().with_params("period_us=24001").stop_on_difference();
    let (_, outcome) = replayed(guest, "recorded --policy wfq", changed);
    let first = outcome.first.expect("another constant decides otherwise");
    assert!(first.call.number > 1, "{first}");
}

pub(crate) fn the_last_calls_of_a_policy_that_panics_are_saved_and_panic_again(guest: &TestGuest) {
    let (report, outcome) = replayed(guest, "flown", Replay::of::<Faulty>());
    assert!(text(&report, "fault").starts_with("planted in task_wakeup"), "{report}");
    assert!(outcome.remarks.iter().any(|remark| remark.contains("panics as it did")), "{:?}", outcome.remarks);
    assert_eq!(outcome.differences, 0);
}

fn calls_are_replayed_by_the_policy_that_had_them_whatever_took_over_since(guest: &TestGuest) {
    let (report, _) = replayed(guest, "taken-over", ekiden_linked::replay());
    for file in ["out.ekirec", "out.kept"] {
        let outcome = ekiden_linked::replay().run(File::open(guest.host(file)).unwrap()).unwrap();
        let remarks = &outcome.remarks;
        assert_eq!(
            (outcome.differences, outcome.not_exact),
            (0, 0),
            "{file}: {report} {remarks:?} {:?}",
            outcome.first
        );
        assert_eq!(outcome.exact_calls, outcome.replayed, "{file}: {remarks:?} {:?}", outcome.exact);
        // Of the last moment some CPUs have more than others.
        assert!(outcome.replayed > 1_000 && outcome.replayed + 200 > outcome.calls, "{file}: {report} {outcome:?}");
    }
}

fn a_recording_names_the_thread_on_whose_time_each_call_came(guest: &TestGuest) {
    let report = guest.guest_test("woken --modules /lab --to /host/out.ekirec")[0].clone();
    let reader = RecordingReader::new(File::open(guest.host("out.ekirec")).unwrap()).unwrap();
    let calls: Vec<RecordedCall> = reader
        .filter_map(|recorded| match recorded.unwrap().item {
            Item::Entry(Entry::Call(call)) => Some(call),
            _ => None,
        })
        .collect();
    let of = |kind: Call, pid: &str| {
        let pid = report[pid].as_u64().unwrap();
        calls.iter().filter(move |call| call.message.call == kind as u32 && u64::from(call.message.pid) == pid)
    };
    for (woken, by) in [("sleeper", "waker"), ("waker", "sleeper")] {
        let by = report[by].as_u64().unwrap();
        let told = of(Call::TaskWakeup, woken).filter(|call| u64::from(call.thread) == by).count();
        assert!(told >= 25, "{told} of 30 wake-ups of the {woken} by {by}: {report}");
    }
    let ticks = || calls.iter().filter(|call| call.message.call == Call::TaskTick as u32);
    assert!(ticks().all(|call| call.thread == call.message.pid), "a tick is about the thread that runs");
}

/// Names of what a policy has noted in a recording, as often as it has.
fn noted_in(file: File) -> Vec<String> {
    let calls = RecordingReader::new(file).unwrap().filter_map(|recorded| match recorded.unwrap().item {
        Item::Entry(Entry::Call(call)) => Some(call),
        _ => None,
    });
    calls.flat_map(|call| call.noted).map(|noted| noted.name.to_string()).collect()
}

fn what_a_policy_notes_stands_in_recordings_of_a_kernel_and_of_an_agent(guest: &TestGuest) {
    is_replayed_without_a_difference(guest, "mlfq", "recorded --policy mlfq", PATIENCE);
    guest.guest_test("agent-works --recordings /host --policy mlfq --rounds 5");
    for file in ["out.ekirec", "mlfq.ekirec"] {
        let noted = noted_in(File::open(guest.host(file)).unwrap());
        println!("{file}: {} notes", noted.len());
        assert!(noted.len() > 10 && noted.iter().all(|name| name == "down_to_level"), "{file}: {noted:?}");
    }
    let outcome = ekiden_linked::replay().run(File::open(guest.host("mlfq.ekirec")).unwrap()).unwrap();
    assert_eq!((outcome.differences, outcome.not_exact), (0, 0), "{:?}", outcome.remarks);
}

pub(crate) fn recording_is_switched_off_and_on_while_a_policy_runs(guest: &TestGuest) {
    let (report, outcome) = replayed(guest, "switched", Replay::of::<Wfq>());
    assert_eq!((&report["runs_at_first"], &report["runs_when_off"]), (&true.into(), &false.into()), "{report}");
    assert_eq!(report["grows_when_off"], 0, "{report}");
    assert!(report["grows_when_on"].as_u64().unwrap() > 50, "{report}");
    assert!(text(&report, "refused").contains("without a flight recorder"), "{report}");
    assert_eq!(outcome.differences, 0, "what is not known for certain is no difference");
}

fn an_upgrade_that_cannot_be_is_refused_and_the_old_policy_goes_on(guest: &TestGuest) {
    let reports = guest.guest_test("refused-upgrades --modules /lab");
    let find =
        |what: &str| text(reports.iter().find(|report| text(report, "what") == what).unwrap(), "error").to_owned();
    assert!(find("unknown module").contains("nosuch"));
    assert!(find("parameter out of range").contains("period_us=0"));
    assert!(find("parameter of a policy without any").contains("period_us"));
    assert!(find("arena too small").contains("memory"), "{}", find("arena too small"));
    assert!(find("a module of another policy").contains("another policy"));
    assert!(find("a second instance in one module").contains("one instance"));
    assert!(find("module of another kernel").contains("was built for kernel"));
    assert!(find("module for another interface").contains("interface"));
    assert!(find("file that is no module").contains("not a kernel module"));
    assert!(find("nothing runs").contains("no policy runs"));
}

pub(crate) fn a_new_version_takes_over_the_state_if_its_layout_is_the_same(guest: &TestGuest) {
    let report = &guest.guest_test("versions --modules /lab")[0];
    assert_eq!(text(report, "same"), "by_pointer", "{report}");
    assert_eq!(text(report, "same_module"), "ekiden_wfq_2", "{report}");
    assert!(text(report, "other_refused").contains("another layout"), "{report}");
    assert_eq!(text(report, "other_starts_over"), "started_over", "{report}");
    assert_eq!(text(report, "policy"), "wfq", "{report}");
    is_measured(report, &["check", "stop"]);
    assert_eq!(report["contract_violations"], 0, "{report}");
}

pub(crate) fn a_version_of_another_layout_goes_on_with_what_was_saved_for_it(guest: &TestGuest) {
    let reports = guest.guest_test("converts --modules /lab");
    let [report, saves] = &reports[..] else { panic!("{reports:#?}") };
    assert_eq!(text(report, "moved"), "converted", "{report}");
    // The first went to its predecessor, and the third is the one at which it goes wrong.
    assert_eq!(report["hints"], 1, "{report}");
    is_measured(report, &["save", "stop"]);
    assert!(text(report, "fault").starts_with("planted in parse_hint"), "{report}");
    // From the kernel to an agent and back: two of three hints are left.
    assert_eq!(saves["saved"], serde_json::json!([1, 2, 0, 0, 0]), "{saves}");
    let refused = "that is in another form";
    assert_eq!(saves["refused"], serde_json::json!([refused, refused]), "{saves}");
    assert_eq!(saves["hints"], 1, "{saves}");
    assert!(text(saves, "fault").starts_with("planted in parse_hint"), "{saves}");
}

pub(crate) fn a_policy_that_takes_over_and_panics_ends_alone(guest: &TestGuest) {
    let reports = guest.guest_test("faulty-upgrades --modules /lab");
    assert_eq!(reports.len(), 3);
    for report in &reports {
        assert!(text(report, "fault").starts_with(&format!("planted in {} at ", text(report, "call"))), "{report}");
    }
}

/// One of the two at each turn.
fn wfq_and_eevdf_pass_the_tests_of_the_appendix_that_the_simulator_passes(guest: &TestGuest) {
    // The guest's own start-up work is over by then; before, it takes CPU time from the tasks that are judged.
    guest.shell("sleep 12");
    for policy in of_today(2, 0).into_iter().map(|turn| ["wfq", "eevdf"][turn]) {
        for name in ["fair-share", "weights", "nice:0:5", "placement", "forced-move", "churn"] {
            let load = format!("ekiden-load run {name} --check");
            guest.shell(&format!("ekiden-test hold --modules /lab --policy {policy} -- {load}"));
        }
    }
}

fn a_policy_for_attached_tasks_leaves_the_others_alone(guest: &TestGuest) {
    let report = &guest.guest_test("attached --modules /lab")[0];
    assert_eq!(report["still_running"], true, "{report}");
    assert!(report["attached_tasks"].as_u64().unwrap() < 5, "it took more than was given: {report}");
    assert!(report["batch_ran_ns"].as_u64().unwrap() > 0, "batch work got nothing: {report}");
}

fn a_recording_counts_the_sleeps_of_a_task_as_the_kernel_does(guest: &TestGuest) {
    let reports = guest.guest_test("record");
    let number = |key: &str| reports[0][key].as_u64().unwrap();
    assert_eq!(number("lost"), 0);
    assert!(number("kernel_switches") >= 100, "{reports:#?}");
    // To attach and detach takes some sleeps besides.
    let (wakeups, least) = (number("wakeups"), number("kernel_switches"));
    assert!((least..least + 30).contains(&wakeups), "{reports:#?}");
    assert!(number("switches") >= least, "{reports:#?}");
    assert!((1..1_000_000_000).contains(&number("longest_wait_ns")), "{reports:#?}");
}
