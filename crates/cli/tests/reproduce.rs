//! What `ekiden reproduce` shows in a stock kernel: figure 5 of papers/002, and the histograms of papers/003.

use std::{path::Path, process::Command};

use serde_json::Value;

/// Runs a script of this project and returns the JSON that it prints. `ekiden` is built for release, as programs that are not optimised
/// take CPU time from the threads that are measured.
fn json(script: &str, args: &[&str]) -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(root.join(script)).args(args).arg("--json").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script} failed:\n{said}{}", String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn threads_stay_on_one_of_eight_nodes_with_the_bug_and_nowhere_else_is_waste_found() {
    let report = json("ekiden", &["reproduce", "missing-domains", "--check"]);
    println!("{report}");
    assert_eq!((&report["met"], &report["with_bug"]["nodes"]), (&true.into(), &1.into()), "{report}");
    assert!(report["with_bug"]["wasted"].as_u64().unwrap() > 5, "{report}");
    assert_eq!((&report["without"]["nodes"], &report["without"]["wasted"]), (&8.into(), &0.into()), "{report}");
    let considered = ["with_bug", "without"].map(|run| report[run]["nodes_considered"].as_u64());
    assert_eq!(considered, [Some(1), Some(8)], "{report}");
}

#[test]
fn waits_of_wrk_are_counted_under_the_kernels_own_scheduler_and_under_wfq() {
    let report = json("scripts/nginx-wrk", &["--seconds=1"]);
    println!("{report}");
    let waits = report["waits"].as_array().unwrap();
    let names: Vec<&Value> = waits.iter().map(|waits| &waits["scheduler"]).collect();
    assert_eq!(names, ["default", "wfq"], "{report}");
    for (waits, per_second) in waits.iter().zip(report["requests_per_second"].as_array().unwrap()) {
        assert_eq!(waits["stayed"], true, "{report}");
        assert!(waits["count"].as_u64().unwrap() > 100 && per_second.as_f64().unwrap() > 100.0, "{report}");
    }
}
