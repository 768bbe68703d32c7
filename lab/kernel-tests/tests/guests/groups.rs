//! Control groups under policies on a stock kernel: what `cpu.weight`, `cpu.idle`, `cpu.max` and `cpuset.cpus` promise holds
//! as under the kernel's own scheduler.

use std::{
    fs::{self, File},
    path::Path,
};

use crate::{
    pool::{Test, tests},
    test_guest::{Machine, TestGuest},
    turns::some_policies,
};
use ekiden_policies::{NAMES, Wfq};
use ekiden_replay::Replay;
use serde_json::Value;

tests! {
    Machine::Calm => {
        12 a_task_of_next_to_no_weight_has_turns_and_its_policy_stays,
    }
    Machine::Crowded => {
        8 shares_and_limits_of_control_groups_hold_under_a_policy,
        16 shares_and_limits_of_control_groups_hold_under_every_policy,
        3 what_a_policy_did_with_tasks_of_limited_groups_is_replayed_without_a_difference,
        24 limits_of_a_hundred_groups_cost_next_to_nothing,
        6 no_task_waits_for_a_lock_of_a_task_that_has_used_up_its_time,
        15 limits_hold_for_crowds_of_tasks_and_of_groups,
        6 limits_are_exact_whatever_their_period_is,
    }
    Machine::Newest(1) => {
        16 an_interrupt_is_short_whatever_crowds_are_limited,
    }
}

/// What `make nightly` does besides.
pub(crate) const BY_HAND: &[Test] = &[
    Test {
        name: "under_wfq_a_share_is_what_its_weight_is_due_in_a_kernel",
        machine: Machine::Calm,
        seconds: 250,
        is_ignored: true,
        run: &under_wfq_a_share_is_what_its_weight_is_due_in_a_kernel,
    },
    Test {
        name: "limits_of_ten_thousand_tasks_are_exact_whatever_their_period_is",
        machine: Machine::Roomy,
        seconds: 600,
        is_ignored: true,
        run: &limits_of_ten_thousand_tasks_are_exact_whatever_their_period_is,
    },
    Test {
        name: "an_interrupt_is_short_where_twenty_thousand_tasks_are_throttled",
        machine: Machine::RoomyExact,
        seconds: 600,
        is_ignored: true,
        run: &an_interrupt_is_short_where_twenty_thousand_tasks_are_throttled,
    },
];

/// Others, their nice value, that of the one, the seconds until what those that came first have had is evened out, and those in which what is due
/// to the one is some twenty turns and more. A turn that a task of nice 19 had before one of nice -20 came is 17 seconds of that one's.
const DUE: &[(u32, i32, i32, u32, u32)] = &[
    (1, 0, 19, 10, 10),
    (9, 0, 19, 10, 10),
    (9, 19, -20, 20, 10),
    (59, 0, 19, 10, 30),
    (59, 0, 5, 10, 30),
    (59, 19, -20, 20, 10),
    (999, 19, -20, 60, 30),
];

fn under_wfq_a_share_is_what_its_weight_is_due_in_a_kernel(guest: &TestGuest) {
    let mut wrong = Vec::new();
    for (others, nice_of_others, nice, before, seconds) in DUE {
        let report = &guest.guest_test(&format!(
            "due --modules /lab --policy wfq --others {others} --nices {nice_of_others} {nice} --seconds {before} {seconds}"
        ))[0];
        let ns = |key: &str| report[key].as_f64().unwrap();
        let weight = |nice: &i32| f64::from(ekiden::weight_of_nice(*nice));
        let due = weight(nice) / (weight(nice) + f64::from(*others) * weight(nice_of_others));
        let off = ns("had_ns") / ns("all_ns") / due - 1.0;
        let what = format!("{others} at nice {nice_of_others}, one at {nice}: {:+.2} % off", 100.0 * off);
        println!("{what}: {report}");
        assert_eq!(report["still_running"], true, "{report}");
        if off.abs() >= 0.05 {
            wrong.push(what);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Its share is 1 ÷ 5,919, which is a turn of 3 ms in 17 seconds. Instead of after eight seconds it is owed a turn after two.
fn a_task_of_next_to_no_weight_has_turns_and_its_policy_stays(guest: &TestGuest) {
    let report = &guest.guest_test(
        "due --modules /lab --policy eevdf --others 1 --nices -20 19 --seconds 1 10 --starved-after-ms 2000",
    )[0];
    println!("{report}");
    let number = |key: &str| report[key].as_u64().unwrap();
    let (turns, had_ns) = (number("turns"), number("had_ns"));
    // Two seconds and a scan between two of them, and 4 ms each; then it is new to its policy, which lets it run once more.
    assert!((3..=6).contains(&turns), "{report}");
    assert!((turns - 1) * 3_000_000 < had_ns && had_ns < number("all_ns") / 100, "{report}");
    // 250 in a second: eleven seconds of one CPU at least, and of the other one what else runs.
    assert!((2_700..5_600).contains(&number("ticks")), "{report}");
    assert_eq!(report["still_running"], true, "{report}");
}

/// What each part of the guest test is to measure, in percent, and how far off that may be.
const EXPECTED: &[(&str, f64, f64)] = &[
    ("300 to 100", 75.0, 3.75),
    ("half", 50.0, 2.5),
    ("three quarters of half", 37.5, 1.9),
    ("half a CPU", 50.0, 2.5),
    ("one and a half CPUs", 150.0, 7.5),
    ("a twentieth of a CPU", 5.0, 0.5),
    ("moves", 100.0, 0.0),
    ("a hundred groups", 100.0, 0.0),
];

fn find<'a>(reports: &'a [Value], what: &str) -> &'a Value {
    reports.iter().find(|report| report["what"] == what).unwrap_or_else(|| panic!("no `{what}` in {reports:#?}"))
}

fn shares_and_limits_of_control_groups_hold_under_a_policy(guest: &TestGuest) {
    let reports = guest.guest_test("groups --modules /lab --policy wfq");
    for report in &reports {
        println!("{report}");
    }
    let percent = |what: &str| find(&reports, what)["percent"].as_f64().unwrap();
    for (what, expected, slack) in EXPECTED {
        assert!((percent(what) - expected).abs() <= *slack, "{what}: {} instead of {expected}", percent(what));
    }
    assert!(percent("idle") > 98.0, "an idle group has too much: {}", percent("idle"));
    assert!(percent("no limit") > 170.0, "{}", percent("no limit"));
    assert!((85.0..=101.0).contains(&percent("cpuset of one CPU")), "{}", percent("cpuset of one CPU"));
    let counts = find(&reports, "counts");
    assert_eq!((&counts["contract_violations"], &counts["unexpected_transitions"]), (&0.into(), &0.into()), "{counts}");
}

/// Whether a policy goes by weights, which its file names then. Under the others weights do nothing.
fn goes_by_weights(policy: &str) -> bool {
    let name = format!("../../policies/src/{}.rs", policy.replace('-', "_"));
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
    source.contains("weight")
}

/// A third of them a day; `EKIDEN_POLICIES=all` is all.
fn shares_and_limits_of_control_groups_hold_under_every_policy(guest: &TestGuest) {
    for policy in some_policies(NAMES.len().div_ceil(3)) {
        let report = &guest.guest_test(&format!("grouped --modules /lab --policy {policy}"))[0];
        println!("{report}");
        let percent = |what: &str| report[what].as_f64().unwrap();
        assert!((percent("limited_percent") - 20.0).abs() <= 1.0, "{report}");
        let more = if goes_by_weights(policy) { 75.0 } else { 50.0 };
        assert!((percent("more_percent") - more).abs() <= 0.05 * more, "{more} % are expected: {report}");
        assert!(percent("used_percent") > 90.0, "{report}");
        assert_eq!(
            (&report["contract_violations"], &report["unexpected_transitions"]),
            (&0.into(), &0.into()),
            "{report}"
        );
        assert_eq!(report["still_running"], true, "{report}");
    }
}

pub(crate) fn what_a_policy_did_with_tasks_of_limited_groups_is_replayed_without_a_difference(guest: &TestGuest) {
    let report = guest.guest_test("recorded-groups --modules /lab --to /host/groups.ekirec")[0].clone();
    assert_eq!(report["lost"], 0, "{report}");
    let outcome = Replay::of::<Wfq>().run(File::open(guest.host("groups.ekirec")).unwrap()).unwrap();
    println!("{report} {:?} {:?}", outcome.exact, outcome.remarks);
    if let Some(first) = &outcome.first {
        panic!("{first}");
    }
    assert_eq!((outcome.differences, outcome.not_exact, outcome.lost), (0, 0, 0), "{:?}", outcome.remarks);
    assert!(outcome.replayed > 2_000, "{} calls", outcome.replayed);
}

fn limits_of_a_hundred_groups_cost_next_to_nothing(guest: &TestGuest) {
    let costs = |policy: &str| {
        let report = guest.guest_test(&format!("group-costs --modules /lab {policy}"))[0].clone();
        println!("{policy} {report}");
        ["root_ns", "groups_ns", "limits_ns"].map(|key| report[key].as_f64().unwrap())
    };
    let [_, groups_ns, limits_ns] = costs("--policy wfq");
    assert!(limits_ns <= 1.05 * groups_ns, "{limits_ns} ns with limits, {groups_ns} ns without");
    // For comparison.
    costs("");
}

/// A user who may make groups and threads takes no CPU time from others.
fn limits_hold_for_crowds_of_tasks_and_of_groups(guest: &TestGuest) {
    crowds(guest);
}

/// And their interrupts are short. This one CPU has all turns: where there are others, the clock counts their instructions,
/// too, if an interrupt loses its turn in the middle.
fn an_interrupt_is_short_whatever_crowds_are_limited(guest: &TestGuest) {
    let report = crowds(guest);
    // An instruction takes eight nanoseconds here.
    let instructions = report["off_ns_max"]["refill"].as_u64().unwrap() / 8;
    assert!(instructions <= 100_000, "{instructions} instructions in one interrupt: {report}");
}

/// Limits a thousand tasks, or so many as `EKIDEN_CROWD` says, and more groups than there is room for.
fn crowds(guest: &TestGuest) -> Value {
    let tasks = std::env::var("EKIDEN_CROWD").map_or(1_000, |tasks| tasks.parse().expect("EKIDEN_CROWD is a number"));
    let report =
        guest.guest_test(&format!("many-tasks-and-groups --modules /lab --tasks {tasks} --groups 4200"))[0].clone();
    println!("{report}");
    let percent = |what: &str| report[what].as_f64().unwrap();
    for what in ["tasks_percent", "groups_percent", "nested_percent", "other_percent"] {
        assert!((9.5..=10.5).contains(&percent(what)), "{what}: {report}");
    }
    assert!(report["groups_without_room"].as_u64().unwrap() > 3_000 && report["still_running"] == true, "{report}");
    report
}

/// One task, and a crowd of them.
fn limits_are_exact_whatever_their_period_is(guest: &TestGuest) {
    are_exact(guest, "--tasks 1 --tasks 100 --seconds 2");
}

fn limits_of_ten_thousand_tasks_are_exact_whatever_their_period_is(guest: &TestGuest) {
    are_exact(guest, "--tasks 1 --tasks 100 --tasks 10000 --seconds 10");
}

/// To within five percent of what the limit says, and never more than that.
fn are_exact(guest: &TestGuest, arguments: &str) {
    let reports = guest.guest_test(&format!("exact --modules /lab --policy wfq {arguments}"));
    for report in &reports {
        println!("{report}");
    }
    for report in &reports {
        let number = |what: &str| report[what].as_f64().unwrap();
        assert!((0.95..=1.05).contains(&(number("percent") / number("expected"))), "{report}");
        assert_eq!(
            (&report["contract_violations"], &report["unexpected_transitions"]),
            (&0.into(), &0.into()),
            "{report}"
        );
        assert_eq!(report["still_running"], true, "{report}");
    }
}

/// `EKIDEN_CROWD` says how many instead. The policy lives as long as the limit is there. When it is lifted, 20,000 tasks want one CPU, and each
/// waits for 20 s and longer until it is its turn: so does the worker that the watchdog of sched_ext is, which gives the policy up after 30 s.
fn an_interrupt_is_short_where_twenty_thousand_tasks_are_throttled(guest: &TestGuest) {
    let tasks: u64 =
        std::env::var("EKIDEN_CROWD").map_or(20_000, |tasks| tasks.parse().expect("EKIDEN_CROWD is a number"));
    let report = &guest.guest_test(&format!("throttled --modules /lab --tasks {tasks} --seconds 10"))[0];
    println!("{report}");
    assert!(report["throttled"].as_u64().unwrap() >= tasks * 9 / 10, "{report}");
    // An instruction takes a nanosecond here.
    let instructions = report["off_ns_max"]["refill"].as_u64().unwrap();
    assert!(instructions <= 100_000, "{instructions} instructions in one interrupt: {report}");
}

/// A task is held back on its way to user mode. In the middle of a system call it would hold back others, for the rest of the second.
fn no_task_waits_for_a_lock_of_a_task_that_has_used_up_its_time(guest: &TestGuest) {
    waits_for_a_lock(guest, 100);
}

/// Checks that tasks wait less than `ms_max` for the lock, with which a CPU may lose its processor.
pub(crate) fn waits_for_a_lock(guest: &TestGuest, ms_max: u64) {
    let report = &guest.guest_test("holder --modules /lab")[0];
    println!("{report}");
    assert!(report["wait_ms_max"].as_u64().unwrap() < ms_max && report["waits"].as_u64().unwrap() > 1_000, "{report}");
    let percent = report["percent"].as_f64().unwrap();
    assert!((1.5..=2.5).contains(&percent) && report["still_running"] == true, "{percent} % instead of two: {report}");
}
