//! What `ekiden reproduce` shows in a stock kernel: figure 5 of papers/002, and the histograms of papers/003.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

const EKIDEN: &str = env!("CARGO_BIN_EXE_ekiden");

/// Runs `ekiden reproduce`, or a script that does, and returns the JSON that it prints.
fn json(command: &mut Command) -> Value {
    let output = command.arg("--json").env("EKIDEN_ROOT", root()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{said}{}", String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Not with `--check`: whatever takes part is slower here than if it were built for release.
#[test]
fn threads_stay_on_one_of_eight_nodes_with_the_bug_because_balancing_looks_at_no_other() {
    let report = json(Command::new(EKIDEN).args(["reproduce", "missing-domains"]));
    println!("{report}");
    let of = |run: &str, key: &str| report[run][key].as_u64().unwrap();
    assert_eq!(["with_bug", "without"].map(|run| (of(run, "nodes"), of(run, "nodes_considered"))), [(1, 1), (8, 8)]);
    assert!(of("with_bug", "wasted") > 5 + of("without", "wasted"), "{report}");
    assert!(report["ratio"].as_f64().unwrap() > 2.0, "{report}");
}

#[test]
fn waits_of_wrk_are_counted_under_the_kernels_own_scheduler_and_under_wfq() {
    let report = json(Command::new(root().join("scripts/nginx-wrk")).arg("--seconds=1").env("EKIDEN", EKIDEN));
    println!("{report}");
    let waits = report["waits"].as_array().unwrap();
    let names: Vec<&Value> = waits.iter().map(|waits| &waits["scheduler"]).collect();
    assert_eq!(names, ["default", "wfq"], "{report}");
    for (waits, per_second) in waits.iter().zip(report["requests_per_second"].as_array().unwrap()) {
        assert_eq!(waits["stayed"], true, "{report}");
        assert!(waits["count"].as_u64().unwrap() > 100 && per_second.as_f64().unwrap() > 100.0, "{report}");
    }
}
