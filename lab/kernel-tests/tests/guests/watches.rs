//! What watches a stock kernel: the live checker, under policies and without, and the counter of waits.

use std::{path::Path, process::Command};

use crate::{
    pool::tests,
    test_guest::{Machine, TestGuest},
    turns::of_today,
};
use serde_json::Value;

tests! {
    Machine::Calm => {
        6 a_policy_that_never_steals_is_found_with_the_right_cpus_and_tasks,
        10 the_page_of_a_finding_and_top_show_who_waited_where_and_which_cpu_was_idle,
        6 a_real_time_task_in_the_way_is_not_the_schedulers_fault,
        12 tasks_whose_group_has_used_up_its_cpu_time_do_not_wait,
        13 schedulers_that_balance_are_not_accused,
        18 what_watches_says_what_is_wrong_and_leaves_nothing_in_the_kernel,
        1 waits_for_a_cpu_are_counted_once_each_and_only_those_that_are_wanted,
    }
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

fn pids(tasks: &Value) -> Vec<u64> {
    tasks.as_array().unwrap().iter().map(|task| task["pid"].as_u64().unwrap()).collect()
}

fn a_policy_that_never_steals_is_found_with_the_right_cpus_and_tasks(guest: &TestGuest) {
    let report = &guest.guest_test("wasted --modules /lab --policy fifo --seconds 8")[0];
    println!("{report}");
    let ours = numbers(&report["pids"]);
    let findings = report["findings"].as_array().unwrap();
    assert!(!findings.is_empty(), "{report}");
    for finding in findings {
        assert_eq!((numbers(&finding["idle_cpus"]), numbers(&finding["busy_cpus"])), (vec![1], vec![0]), "{finding}");
        assert!(pids(&finding["waiting"]).iter().any(|pid| ours.contains(pid)), "{report}");
        assert_eq!((&finding["is_schedulers_fault"], &finding["scheduler"]), (&true.into(), &"ekiden_fifo".into()));
        assert_eq!(finding["records_lost"], 0, "{finding}");
    }
    assert_eq!((&report["scheduler"], &report["links_left"]), (&"ekiden_fifo".into(), &0.into()), "{report}");
    // Programs hang on tracepoints only while a CPU is suspected.
    assert_eq!(report["links_unsuspected"], 0, "{report}");
    assert!(report["links_suspected"].as_u64() > Some(0), "{report}");
}

/// Needs Node.js, npm and Chromium, as `cli/tests/page.rs` does.
fn the_page_of_a_finding_and_top_show_who_waited_where_and_which_cpu_was_idle(guest: &TestGuest) {
    guest.bring("ekiden-cli", "ekiden");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../observe/page/browser");
    let run = |command: &mut Command| {
        let output =
            command.current_dir(&page).output().unwrap_or_else(|error| panic!("{error}: scripts/prepare tests"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(Command::new("npm").args(["ci", "--no-fund", "--no-audit", "--prefer-offline"]));
    let kept = |name: String| Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // If the policy has only these tasks, as at every other turn, the kernel still balances.
    for (scope, has_balancing) in of_today(2, 0).into_iter().map(|turn| [("", false), ("--attached", true)][turn]) {
        let report = &guest.guest_test(&format!(
            "found --modules /lab --policy fifo {scope} --ekiden /lab/programs/ekiden --report /host/finding.html"
        ))[0];
        assert_eq!(report["code"], 118, "{report}");
        assert_ne!(report["printed"]["findings"], serde_json::json!([]), "{report}");
        // CPU 1 is idle all the time, but for what the page itself needs; the two take turns.
        let top = &report["top"];
        let wasted = [&top["wasted_cpus"], &top["cpus"][0]["wasted_percent"], &top["cpus"][1]["wasted_percent"]];
        assert!(wasted[0].as_f64() > Some(0.8) && wasted[1] == 0.0 && wasted[2].as_f64() > Some(80.0), "{top}");
        assert_eq!(top["policies"][0]["share_percent"], 100.0, "it is the only one: {top}");
        // At any moment one of them waits for the other.
        let ours = numbers(&report["pids"]);
        let waited_ms = ours.iter().map(|pid| {
            let wait = top["waits"].as_array().unwrap().iter().find(|wait| wait["pid"] == *pid);
            let wait = wait.unwrap_or_else(|| panic!("{pid} does not wait: {top}"));
            assert_eq!(wait["cpu"], 0, "{wait}");
            wait["waited_ms"].as_f64().unwrap()
        });
        assert!(waited_ms.sum::<f64>() > 2500.0, "{top}");
        let files = ["html", "png"].map(|extension| kept(format!("finding{scope}.{extension}")));
        std::fs::copy(guest.host("finding.html"), &files[0]).unwrap();
        let pids: Vec<String> = ours.iter().map(u64::to_string).collect();
        let more = [pids.join(","), if has_balancing { "balancing" } else { "evidence" }.into()];
        run(Command::new("node").arg("test/finding.mjs").args(files).args(["1", "0"]).args(more));
    }
}

fn a_real_time_task_in_the_way_is_not_the_schedulers_fault(guest: &TestGuest) {
    let report = &guest.guest_test("wasted --modules /lab --policy fifo --behind-real-time --seconds 8")[0];
    println!("{report}");
    let ours = numbers(&report["pids"]);
    let findings = report["findings"].as_array().unwrap();
    assert!(!findings.is_empty(), "{report}");
    for finding in findings {
        assert_eq!(finding["is_schedulers_fault"], false, "{finding}");
        assert_eq!(pids(&finding["behind_real_time"]), [ours[0]], "{finding}");
        assert!(pids(&finding["waiting"]).contains(&ours[1]), "{finding}");
    }
}

fn tasks_whose_group_has_used_up_its_cpu_time_do_not_wait(guest: &TestGuest) {
    for policy in ["", "--policy wfq"] {
        let report = &guest.guest_test(&format!("limited --modules /lab {policy}"))[0];
        println!("{policy}: {report}");
        assert_eq!((&report["findings"], &report["links_left"]), (&serde_json::json!([]), &0.into()), "{report}");
        assert_eq!(report["scheduler"].is_null(), policy.is_empty(), "{report}");
    }
    // The group may use all time of two CPUs; but the policy leaves its tasks on one.
    let report = &guest.guest_test("limited --modules /lab --policy fifo --quota-us 2000000")[0];
    println!("{report}");
    let limited = &numbers(&report["pids"])[1..];
    let findings = report["findings"].as_array().unwrap();
    let waits = |finding: &Value| pids(&finding["waiting"]).iter().any(|pid| limited.contains(pid));
    assert!(findings.iter().any(waits), "{report}");
}

/// One of them at each turn. `EKIDEN_WATCH_SECONDS` does it longer.
fn schedulers_that_balance_are_not_accused(guest: &TestGuest) {
    let seconds = std::env::var("EKIDEN_WATCH_SECONDS").unwrap_or_else(|_| "6".into());
    for policy in of_today(3, 0).into_iter().map(|turn| ["", "--policy wfq", "--policy faulty"][turn]) {
        for guest_test in
            [format!("wasted --modules /lab {policy}"), format!("busy --modules /lab {policy} --seconds {seconds}")]
        {
            let report = &guest.guest_test(&guest_test)[0];
            println!("{guest_test}: {report}");
            assert_eq!(report["findings"], serde_json::json!([]), "{guest_test}: {report}");
            assert!(report["counts"]["looks"].as_u64().unwrap() > 1, "{report}");
            assert_eq!(
                (report["scheduler"].is_null(), &report["links_left"]),
                (policy.is_empty(), &0.into()),
                "{report}"
            );
        }
    }
}

fn what_watches_says_what_is_wrong_and_leaves_nothing_in_the_kernel(guest: &TestGuest) {
    guest.bring("ekiden-cli", "ekiden");
    // Directories that an unprivileged user can write to, and a small disk.
    guest.shell("mkdir -p -m 777 /tmp/all /tmp/small; mount -t tmpfs -o size=16k none /tmp/small");
    let ekiden = "/lab/programs/ekiden";
    let nobody = format!("start-stop-daemon -S -c 65534:65534 -x {ekiden} --");
    // Only this command lacks it.
    let without = |what: &str| format!("unshare -m sh -c 'mount -t tmpfs none {what}; exec \"$@\"' - {ekiden}");
    let no_btf = without("/sys/kernel/btf");
    // Ended, or what it looks at is, as soon as it says what it does.
    let until = |what: &str, says: &str, kill: &str| {
        format!(
            "rm -f /tmp/said; sleep 600 & pid=$!; {ekiden} {what} 2> /tmp/said & \
             until grep -qs {says} /tmp/said; do sleep 0.1; done; \
             kill {kill}; wait $!; code=$?; kill $pid; cat /tmp/said >&2; exit $code"
        )
    };
    let tries = [
        (format!("{nobody} check --live --for 1s"), 102, "needs root"),
        (format!("{nobody} trace record /tmp/all/trace -- true"), 102, "needs root"),
        (format!("{nobody} runqlat --for 1s"), 102, "needs root"),
        (format!("{no_btf} check --live --for 1s"), 1, "no BTF"),
        (format!("{no_btf} trace record /tmp/all/trace -- true"), 1, "no BTF"),
        (format!("{no_btf} runqlat --for 1s"), 1, "no BTF"),
        (format!("{} check --live --for 1s", without("/sys/kernel/tracing")), 0, ""),
        (format!("{ekiden} runqlat -p 4000000"), 2, "no process or thread 4000000"),
        (until("runqlat -p $pid --for 600s", "counting", "$pid"), 0, "is gone"),
        (format!("{ekiden} trace record /tmp/small/trace -- ekiden-load run messaging"), 113, "No space left"),
        (
            format!("yes > /tmp/small/all 2> /dev/null; {ekiden} runqlat --for 1s --report /tmp/small/waits.html"),
            113,
            "No space left",
        ),
        (until("trace record /tmp/all/ended", "recording", "-INT $!"), 130, "next:"),
        (until("check --live", "watching", "-KILL $!"), 137, ""),
        (until("trace record /tmp/all/killed", "recording", "-KILL $!"), 137, ""),
        (until("runqlat", "counting", "-KILL $!"), 137, ""),
        (until("top --once --interval 60", "watching", "-TERM $!"), 143, ""),
    ];
    let mut wrong = Vec::new();
    for (line, code, word) in tries {
        let line = line.replace('\'', r"'\''");
        let report = &guest.guest_test(&format!("tried -- env LD_LIBRARY_PATH=/lab/programs sh -c '{line}'"))[0];
        println!("{line}: {report}");
        let has_word = report["said"].as_str().unwrap().contains(word);
        if (&report["code"], &report["links_left"]) != (&code.into(), &0.into()) || !has_word {
            wrong.push(format!("{line}: {report}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Half a file is not there, but for the name that a killed one had for it.
    assert_eq!(
        guest.shell("ls -A /tmp/small /tmp/all | grep -v partial").trim(),
        "/tmp/all:\nended\n\n/tmp/small:\nall"
    );
    guest.shell("umount /tmp/small");
}

fn waits_for_a_cpu_are_counted_once_each_and_only_those_that_are_wanted(guest: &TestGuest) {
    let report = &guest.guest_test("waits")[0];
    println!("{report}");
    let number = |key: &str| report[key].as_u64().unwrap();
    assert!((number("naps")..number("naps") + 20).contains(&number("waits")), "{report}");
    assert!(number("max_ns") > 0 && number("sum_ns") >= number("max_ns"), "{report}");
    assert_eq!(number("of_nobody"), 0, "{report}");
}
