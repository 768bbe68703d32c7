//! What `ekiden reproduce` shows in a stock kernel: figure 5 of papers/002, and the histograms of papers/003.

use std::{path::Path, process::Command};

use serde_json::Value;

/// The command line that is tested.
const EKIDEN: &str = env!("CARGO_BIN_EXE_ekiden");

/// Runs a program and returns the JSON that it prints.
fn json(program: &Path, args: &[&str]) -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // What runs in the guest is beside it.
    let mut cargo = Command::new(env!("CARGO"));
    let built =
        cargo.args(["build", "--quiet", "-p", "ekiden-guest", "-p", "ekiden-workload"]).current_dir(&root).status();
    assert!(built.unwrap().success(), "cannot build the guest's programs");
    let output = Command::new(program).args(args).arg("--json").env("EKIDEN", EKIDEN).output().unwrap();
    let script = program.display();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script} failed:\n{said}{}", String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn threads_stay_on_one_of_eight_nodes_with_the_bug_and_nowhere_else_is_waste_found() {
    let report = json(Path::new(EKIDEN), &["reproduce", "missing-domains", "--check"]);
    println!("{report}");
    assert_eq!((&report["met"], &report["with_bug"]["nodes"]), (&true.into(), &1.into()), "{report}");
    assert!(report["with_bug"]["wasted"].as_u64().unwrap() > 5, "{report}");
    assert_eq!((&report["without"]["nodes"], &report["without"]["wasted"]), (&8.into(), &0.into()), "{report}");
    let considered = ["with_bug", "without"].map(|run| report[run]["nodes_considered"].as_u64());
    assert_eq!(considered, [Some(1), Some(8)], "{report}");
}

#[test]
fn waits_of_wrk_are_counted_under_the_kernels_own_scheduler_and_under_wfq() {
    let report = json(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/nginx-wrk"), &["--seconds=1"]);
    println!("{report}");
    let waits = report["waits"].as_array().unwrap();
    let names: Vec<&Value> = waits.iter().map(|waits| &waits["scheduler"]).collect();
    assert_eq!(names, ["default", "wfq"], "{report}");
    for (waits, per_second) in waits.iter().zip(report["requests_per_second"].as_array().unwrap()) {
        assert_eq!(waits["stayed"], true, "{report}");
        assert!(waits["count"].as_u64().unwrap() > 100 && per_second.as_f64().unwrap() > 100.0, "{report}");
    }
}
