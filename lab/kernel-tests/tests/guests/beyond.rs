//! More tasks than the task table has room for: none starves, and none has more than others.

use serde_json::Value;

use crate::{
    pool::tests,
    test_guest::{Machine, TestGuest},
    turns::of_today,
};

tests! {
    Machine::Calm => {
        12 a_user_who_fills_the_task_table_takes_no_cpu_from_others,
    }
    Machine::Roomy => {
        48 no_task_of_a_crowd_waits_longer_because_the_table_has_no_room,
    }
}

fn a_user_who_fills_the_task_table_takes_no_cpu_from_others(guest: &TestGuest) {
    for policy in ["wfq", "fifo"] {
        fills_the_table(guest, policy, 2, 0.4, 500.0);
    }
}

/// On this many CPUs, those without room have at least such a share of the time, and no task may wait longer than that.
pub(crate) fn fills_the_table(guest: &TestGuest, policy: &str, cpus: u64, share: f64, longest_ms: f64) {
    let report = &guest.guest_test(&format!("beyond --modules /lab --policy {policy}"))[0];
    println!("{report}");
    let without_room = |when: &str| report[when].as_u64().unwrap();
    assert!(without_room("without_room_before") >= 100, "{report}");
    // Whatever has ended meanwhile, such as workers of the kernel, has made room for one of them each.
    let with_ended = without_room("without_room") + without_room("ended");
    assert!(with_ended > without_room("without_room_before") + 2 * cpus, "{report}");
    let ran = |herd: &str| report[herd]["ran_ms"].as_f64().unwrap();
    let all = 6_000.0 * cpus as f64;
    // A third and two thirds, but for the one that is pinned, which has half of what the others have of CPU 0 at most.
    assert!(ran("busy") >= 0.22 * all && ran("beyond") >= share * all, "{report}");
    assert!(report["pinned_ran_ms"].as_u64().unwrap() > 300, "{report}");
    for herd in ["busy", "sleeper", "beyond"] {
        assert!(report[herd]["longest_ms"].as_f64().unwrap() <= longest_ms, "{herd}: {report}");
    }
    assert!(report["sleeper"]["turns"].as_u64().unwrap() > 100, "{report}");
    assert_eq!(report["without_room_after"], 0, "{report}");
    assert_eq!((&report["contract_violations"], &report["unexpected_transitions"]), (&0.into(), &0.into()), "{report}");
    assert_eq!(report["still_running"], true, "{report}");
}

/// `EKIDEN_CROWD` tasks, under one policy at this turn and under another at the next. There would be no room for 7,000 of 40,000.
fn no_task_of_a_crowd_waits_longer_because_the_table_has_no_room(guest: &TestGuest) {
    let tasks: u32 =
        std::env::var("EKIDEN_CROWD").map_or(4_000, |tasks| tasks.parse().expect("EKIDEN_CROWD is a number"));
    let beyond = tasks * 7 / 40;
    let herd = |policy: &str| -> Value {
        let most = std::time::Duration::from_secs(1500 + u64::from(tasks) / 10);
        let guest_test =
            format!("herd --modules /lab {policy} --tasks {tasks} --beyond {beyond} --seconds {}", 8 + tasks / 1500);
        let report = guest.guest_test_within(&guest_test, most)[0].clone();
        println!("{policy} {report}");
        assert_eq!(report["still_running"], true, "{report}");
        report
    };
    let longest_ms = |report: &Value| report["herd"]["longest_ms"].as_f64().unwrap();
    let own_ms = longest_ms(&herd(""));
    for policy in of_today(2, 0).into_iter().map(|turn| ["--policy fifo", "--policy wfq"][turn]) {
        let of_ours = || {
            let ours = herd(policy);
            assert!(ours["without_room"].as_u64().unwrap() >= u64::from(beyond * 9 / 10), "{ours}");
            longest_ms(&ours)
        };
        let mut longest = (own_ms, of_ours());
        if longest.1 > 2.0 * longest.0 {
            println!("again: one task of very many waited for {} ms, and at most {} elsewhere", longest.1, longest.0);
            // The longest of so many waits is now and then another one: what is the policy's own comes each time.
            longest = (longest.0.min(longest_ms(&herd(""))), longest.1.min(of_ours()));
        }
        assert!(longest.1 <= 2.0 * longest.0, "{} ms under {policy} instead of {}", longest.1, longest.0);
    }
}
