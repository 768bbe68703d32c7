//! A policy of one's own, in a project that `ekiden new` makes: the commands that need it in their process have it there, as they have ours.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

fn ekiden(directory: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ekiden")).args(args).current_dir(directory).output().unwrap()
}

/// Runs it, and returns exit code and what was printed.
fn run(directory: &Path, args: &[&str]) -> (i32, String) {
    let output = ekiden(directory, args);
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code().unwrap(), text)
}

/// A new project, in a directory that stays from run to run: what cargo makes of it is called after that.
fn project(name: &str) -> PathBuf {
    let parent = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("own-policy");
    let project = parent.join(name);
    let _ = fs::remove_dir_all(&project);
    fs::create_dir_all(&parent).unwrap();
    assert_eq!(run(&parent, &["new", name]).0, 0);
    project
}

/// Puts a project with another policy into this one, which becomes a workspace of both.
fn add_to_workspace(project: &Path, name: &str) {
    assert_eq!(run(project, &["new", name]).0, 0);
    let of_both = format!("[workspace]\nmembers = [\"{name}\"]");
    for (manifest, becomes) in [(project.join("Cargo.toml"), &*of_both), (project.join(name).join("Cargo.toml"), "")] {
        let text = fs::read_to_string(&manifest).unwrap();
        assert!(text.contains("[workspace]\n"), "{text}");
        fs::write(&manifest, text.replace("[workspace]", becomes)).unwrap();
    }
    fs::remove_file(project.join(name).join("Cargo.lock")).unwrap();
}

/// Whether `ekiden bench sim` is measuring this policy. It takes minutes.
fn is_being_measured(directory: &Path, policy: &str) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ekiden"));
    command.args(["bench", "sim", "-p", policy]).current_dir(directory).stderr(Stdio::piped());
    let mut bench = command.spawn().unwrap();
    // It says what is next before it looks for the policy, and again while that takes place.
    let lines = BufReader::new(bench.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut steps = lines.filter(|line| line.contains(&format!("{policy}, ")) && line.contains("trace: memory"));
    let is_being_measured = steps.nth(1).is_some();
    bench.kill().unwrap();
    bench.wait().unwrap();
    is_being_measured
}

#[test]
fn every_command_has_a_policy_of_ones_own_as_it_has_ours() {
    let project = project("round-trip");
    let source = project.join("src/lib.rs");
    let text = fs::read_to_string(&source).unwrap();
    // With hints, so that it has a header.
    let text = text.replace("#[policy]\nimpl Scheduler for", "#[policy(HintQueues)]\nimpl Scheduler for");
    fs::write(&source, text + "\n#[policy]\nimpl HintQueues for RoundTrip {\n    type Hint = u64;\n}\n").unwrap();
    add_to_workspace(&project, "second");
    let good = |args: &[&str], words: &str| {
        let (code, text) = run(&project, args);
        assert!(code == 0 && text.contains(words), "{args:?}: {code}\n{text}");
        text
    };
    fs::write(project.join("costs.json"), good(&["sim", "model"], "jitter")).unwrap();
    let sim = ["sim", "churn", "-p", "round-trip", "--seed", "7", "--set", "slice_us=500", "--model", "costs.json"];
    let and = |more: &[&'static str]| [&sim[..], more].concat();
    let first = good(&and(&["--trace", "out", "--record", "out.ekirec", "--machine", "1x2x2x1"]), "check passed");
    assert!(first.contains("Compiling round-trip"), "{first}");
    // An up-to-date policy is not built again.
    let second = good(&and(&["--report", "out.html", "--invariants"]), "next: open out.html");
    assert!(!second.contains("Compiling"), "{second}");
    assert!(fs::read_to_string(project.join("out.html")).unwrap().contains("<html"));
    good(&["check", "out"], "");
    good(&["sim", "pipe", "-p", "fifo", "--upgrade", "1=round-trip:slice_us=700", "--check"], "check passed");
    let sweep = ["sim", "pipe", "--sweep", "-", "--policies", "round-trip:slice_us=900,fifo", "--seeds", "1-2"];
    let table = good(&sweep, "pipe,round-trip,slice_us=900,");
    assert!(table.contains("pipe,fifo,,"), "{table}");
    good(&["explore", "round-trip", "--case", "wake-and-sleep", "--runs", "100"], "nothing goes wrong");
    good(&["replay", "out.ekirec"], "0 differences");
    good(&["replay", "out.ekirec", "--what-if", "wfq"], "wfq would have decided");
    let considered = good(&["trace", "considered", "out", "out.ekirec", "-o", "both"], "decisions that looked");
    assert!(!considered.contains("\n0 decisions") && !considered.starts_with("0 decisions"), "{considered}");
    good(&["hints", "header", "round-trip"], "round_trip_types");
    assert!(is_being_measured(&project, "round-trip") && !is_being_measured(&project, "nope"), "ekiden bench sim");
    // That of the other crate.
    good(&["sim", "churn", "-p", "second", "--record", "second.ekirec"], "check passed");
    good(&["explore", "second", "--case", "wake-and-sleep", "--runs", "100"], "nothing goes wrong");
    good(&["replay", "second.ekirec", "--what-if", "round-trip"], "round-trip would have decided");
    good(&["replay", "second.ekirec"], "0 differences");
    // As if a kernel had shown that.
    let info: Value = serde_json::from_str(&good(&["trace", "info", "out", "--json"], "header")).unwrap();
    let shown = json!({"done_ns": 1, "switches": 1, "migrations": 0, "wait_mean_ns": 1.0, "wait_p50_ns": 1, "wait_p90_ns": 1,
        "wait_p99_ns": 1, "others_ns": 0, "own_ns": 1});
    let runs = [json!({"policy": "round-trip", "load": "pipe", "shown": [shown]})];
    let measured = json!({"kernel": "7.0", "counts": true, "machine": info["header"], "runs": runs});
    fs::write(project.join("real.json"), measured.to_string()).unwrap();
    good(&["fidelity", "--from", "real.json"], "round-trip");
    // In a directory within it, too.
    let (code, text) = run(&project.join("src"), &["sim", "pipe", "-p", "round-trip", "--cpus", "2"]);
    assert!(code == 0 && text.contains("check passed"), "{code}\n{text}");
    let (code, text) = run(&project, &["sim", "pipe", "-p", "round-trip", "--set", "slice_us=1"]);
    assert!(code == 111 && text.contains("slice_us="), "{code}\n{text}");
    let (code, text) = run(&project, &["sim", "pipe", "-p", "nope"]);
    assert!(code == 110 && text.contains("wfq") && text.contains("round-trip"), "{code}\n{text}");

    // Elsewhere it is not known, and it is said where it is.
    let recording = project.join("out.ekirec");
    let elsewhere = tempfile::tempdir().unwrap();
    for args in [
        &["sim", "pipe", "-p", "round-trip"][..],
        &["explore", "round-trip"],
        &["replay", recording.to_str().unwrap()],
        &["hints", "header", "round-trip"],
    ] {
        let (code, text) = run(elsewhere.path(), args);
        assert!(code != 0 && text.contains("run it in the directory of its project"), "{args:?}: {code}\n{text}");
    }

    // What does not compile is shown with its place.
    fs::write(&source, fs::read_to_string(&source).unwrap().replace("pop_front", "pop_fornt")).unwrap();
    let (code, text) = run(&project, &["sim", "pipe", "-p", "round-trip"]);
    assert!(code == 117 && text.contains("pop_fornt") && text.contains("src/lib.rs"), "{code}\n{text}");
}

#[test]
fn a_policy_with_the_name_of_one_of_ours_is_refused_before_anything_is_built() {
    let project = project("other");
    let source = project.join("src/lib.rs");
    fs::write(&source, fs::read_to_string(&source).unwrap().replace("Other", "Fifo")).unwrap();
    let (code, text) = run(&project, &["sim", "pipe", "-p", "fifo"]);
    assert!(code == 2 && text.contains("rename the type other::Fifo"), "{code}\n{text}");
}
