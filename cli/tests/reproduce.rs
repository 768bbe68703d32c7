//! What `ekiden reproduce` shows in a stock kernel: figure 5 of papers/002, the histograms of papers/003, and, in a small form, tables 2, 3, 4
//! and 6 of papers/000, and sections 4.2 to 4.4 of papers/004.

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

/// The schedulers that were measured, each with its figures; all of them stayed.
fn schedulers(report: &Value) -> Vec<(&str, &Value)> {
    let rows = report["measured"]["schedulers"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["still_scheduler"] == true), "{report}");
    rows.iter().map(|row| (row["scheduler"].as_str().unwrap(), &row["figures"])).collect()
}

#[test]
fn waits_of_workers_are_measured_with_hints_and_without_and_under_the_kernels_own() {
    let args = ["reproduce", "locality", "--repeat=1", "--rounds=200", "--sleep-us=1000"];
    let report = json(Path::new(EKIDEN), &args);
    println!("{report}");
    let rows = schedulers(&report);
    let names: Vec<&str> = rows.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["default", "default, one CPU", "locality, no hints", "locality, hints"], "{report}");
    for (_, figures) in &rows {
        let [median, tail] = ["p50", "p99"].map(|place| figures[place]["median"].as_f64().unwrap());
        assert!(0.0 < median && median <= tail && tail < 10_000.0, "{report}");
        assert_eq!(figures["p99"]["n"], 1, "{report}");
    }
    // It is judged by what was measured, whichever way that goes.
    let (limit, ratio) = (&report["measured"]["limits"][0], &rows[3].1["p99"]["ratio_to_default"]);
    assert_eq!((&limit["figure"], &limit["limit"]), (ratio, &0.5.into()), "{report}");
    assert_eq!(limit["met"].as_bool(), Some(ratio.as_f64().unwrap() <= 0.5), "{report}");
}

#[test]
fn a_pipe_wake_ups_and_lines_of_code_are_measured_beside_the_papers() {
    let args =
        ["reproduce", "ekiben-tables", "--policy=wfq", "--repeat=1", "--round-trips=100", "--wakeups=1600", "--check"];
    let report = json(Path::new(EKIDEN), &args);
    println!("{report}");
    let rows = schedulers(&report);
    assert_eq!(rows.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["default", "wfq"], "{report}");
    for (_, figures) in &rows {
        let median = |place: &str| figures[place]["median"].as_f64().unwrap();
        assert!(median("pipe_one_cpu") > 1.0 && median("pipe_two_cpus") > 1.0, "{report}");
        // On four CPUs, eighty workers wait for longer than four.
        assert!(median("workers_2_p50") < median("workers_40_p50"), "{report}");
        assert!(median("workers_40_p50") <= median("workers_40_p99"), "{report}");
    }
    let sources = &report["sources"];
    assert_eq!((&sources["policies"][0]["policy"], &sources["limits"][0]["met"]), (&"wfq".into(), &true.into()));
    assert!(sources["parts"].as_array().unwrap().iter().all(|part| part["lines"].as_u64() > Some(100)), "{report}");
}

#[test]
fn decisions_and_a_worker_are_timed_in_an_agent_and_in_the_kernel() {
    let args = ["reproduce", "cos", "--cpus=2", "--tasks=0,3", "--times=10", "--runs=1", "--cpu-ms=200"];
    let report = json(Path::new(EKIDEN), &args);
    println!("{report}");
    assert_eq!(report["taken_out"].as_array().unwrap().len(), 0, "{report}");
    let points = report["delegation"].as_array().unwrap();
    let hosts = ["agent", "agent", "kernel", "kernel", "own", "own"];
    assert_eq!(points.iter().map(|point| point["host"].as_str().unwrap()).collect::<Vec<_>>(), hosts, "{report}");
    for point in points {
        let of = |what: &str, figure: &str| point[what][figure].as_f64();
        assert_eq!(point["wakeup"]["n"], 10, "{report}");
        if point["host"] == "own" {
            assert!(point["decision"].is_null(), "{report}");
            continue;
        }
        // The thread never ran without a decision, which came after it was woken up.
        assert_eq!(point["decision"]["n"], 10, "{report}");
        assert!(
            of("decision", "mean_us") > Some(0.5) && of("decision", "mean_us") < of("wakeup", "mean_us"),
            "{report}"
        );
        assert!(of("decision", "longest_us") >= of("decision", "mean_us"), "{report}");
    }
    let workers = report["judge"].as_array().unwrap();
    assert_eq!(workers.iter().map(|it| it["host"].as_str().unwrap()).collect::<Vec<_>>(), ["agent", "kernel", "own"]);
    for worker in workers {
        let ms = |how: &str| worker[how][0].as_f64().unwrap();
        assert!(ms("alone_ms") >= 200.0 && ms("alone_ms") < 210.0, "{report}");
        assert!(ms("limited_ms") > ms("alone_ms") && ms("unlimited_ms") > ms("alone_ms"), "{report}");
    }
    assert_eq!(report["limits"].as_array().unwrap().len(), 6, "{report}");
}

#[test]
fn requests_to_rocksdb_are_answered_right_in_an_agent_in_the_kernel_and_without() {
    let args = ["reproduce", "cos", "rocksdb", "--cpus=3", "--loads=20,60", "--workers=10", "--ms=200", "--check"];
    let report = json(Path::new(EKIDEN), &args);
    println!("{report}");
    assert_eq!((&report["policy"], &report["requests"]["stretch"]), (&"shinjuku".into(), &8.into()), "{report}");
    let points = report["rocksdb"].as_array().unwrap();
    let hosts = ["agent", "agent", "kernel", "kernel", "own", "own"];
    assert_eq!(points.iter().map(|point| point["host"].as_str().unwrap()).collect::<Vec<_>>(), hosts, "{report}");
    for (at, point) in points.iter().enumerate() {
        assert_eq!(point["load_percent"], [20, 60][at % 2], "{report}");
        assert_eq!((&point["wrong"], &point["unanswered"]), (&0.into(), &0.into()), "{report}");
        let us = |of: &str, figure: &str| point[of][figure].as_f64().unwrap();
        // None takes less than its CPU time. At the smaller load most wait for no other.
        let most_us = [1_000.0, 100_000.0][at % 2];
        assert!(us("short", "p50_us") >= 32.0 && us("short", "p50_us") < most_us, "{report}");
        assert!(us("all", "longest_us") >= 80_000.0, "{report}");
        assert!(us("all", "p99_us") <= us("all", "p999_us") && us("all", "p999_us") <= us("all", "longest_us"));
        assert!(point["all"]["n"].as_u64() > Some(50) && point["all"]["n"].as_u64() >= point["short"]["n"].as_u64());
    }
    // Under the kernel's own scheduler, short ones wait for a range query where there is one worker. An agent in a build for debugging varies.
    let [agent, kernel, own] = [1, 3, 5].map(|at: usize| points[at]["short"]["p99_us"].as_f64().unwrap());
    assert!(agent < own * 1.5 && kernel < own / 2.0, "{report}");
    assert_eq!(report["limits"].as_array().unwrap().len(), 0, "{report}");
}
