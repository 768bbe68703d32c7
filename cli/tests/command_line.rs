//! The command line as people use it: answers, exit codes, and what is left behind. Nothing here needs a kernel.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

fn ekiden(directory: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ekiden"));
    command.args(args).current_dir(directory).env_remove("EKIDEN_MODULES").env("EKIDEN_CACHE", directory.join("cache"));
    command.output().unwrap()
}

/// Runs it in a directory of its own, and returns exit code, standard output and standard error.
fn run(args: &[&str]) -> (i32, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let output = ekiden(directory.path(), args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// Whether each command has help, with examples, is in `src/house_rules/help.rs`.
#[test]
fn help_is_no_error() {
    for command in [&["--help"][..], &["sim", "--help"], &["trace", "cut", "--help"]] {
        let (code, help, _) = run(command);
        assert!(code == 0 && help.contains("Example") && help.contains("Usage: ekiden"), "{command:?}: {code}\n{help}");
    }
}

#[test]
fn a_wrong_command_line_is_2() {
    for args in [&["no-such-command"][..], &["run"], &["sim", "no-such-load"], &["sim", "pipe", "--machine", "2x2"]] {
        assert_eq!(run(args).0, 2, "{args:?}");
    }
}

#[test]
fn tables_of_papers_refuse_what_they_cannot_measure() {
    for wrong in [
        &["locality", "--rounds", "99"][..],
        &["locality", "--repeat", "0"],
        &["locality", "--sleep-us", "1000001"],
        &["locality", "--policy", "fifo"],
        &["locality", "--here", "--kernel", "7"],
        &["ekiben-tables", "--round-trips", "9"],
        &["ekiben-tables", "--wakeups", "1599"],
        &["ekiben-tables", "--here", "--kernel", "7"],
        &["ekiben-tables", "wfq"],
    ] {
        let (code, printed, error) = run(&[&["reproduce"], wrong].concat());
        assert!(code == 2 && printed.is_empty() && error.contains("--help"), "{wrong:?}: {code}\n{printed}{error}");
    }
}

#[test]
fn bad_parameters_are_found_before_anything_else_is_looked_at() {
    for command in [&["run"][..], &["vm", "run"], &["sim", "fair-share", "-p"]] {
        let args: Vec<&str> = command.iter().copied().chain(["wfq", "--set", "slice_min_us=1"]).collect();
        let (code, _, error) = run(&args);
        assert_eq!(code, 111, "{args:?}: {error}");
        assert!(error.contains("outside 10..=100000") && error.contains("period_us=24000"), "{error}");
    }
}

/// What a program is appended to that is to run as this user, without a network. Where no ordinary user may have a namespace, as in a chroot and in
/// some distributions, sudo makes one.
fn without_network() -> Command {
    const AS_ROOT: [&str; 2] = ["unshare", "--net"];
    const BY_ANY_USER: [&str; 3] = ["unshare", "--map-root-user", "--net"];
    let command_of = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    };
    if nix::unistd::geteuid().is_root() {
        return command_of(&AS_ROOT);
    }
    if command_of(&BY_ANY_USER).arg("true").output().is_ok_and(|done| done.status.success()) {
        return command_of(&BY_ANY_USER);
    }
    let (user, group) = (nix::unistd::getuid().to_string(), nix::unistd::getgid().to_string());
    let path = format!("PATH={}", std::env::var("PATH").unwrap_or_default());
    let mut command = command_of(&[&["sudo", "--non-interactive", "--preserve-env"][..], &AS_ROOT].concat());
    command.args(["setpriv", "--reuid", &user, "--regid", &group, "--init-groups", "env", &path]);
    command
}

#[test]
fn without_a_network_it_simulates_and_says_what_a_machine_lacks() {
    let directory = tempfile::tempdir().unwrap();
    let alone_in = |place: &Path, args: &[&str]| {
        let mut command = without_network();
        command.arg(env!("CARGO_BIN_EXE_ekiden")).args(args);
        let made = |what| directory.path().join(what);
        command.env("EKIDEN_CACHE", made("cache")).env("CARGO_HOME", made("cargo")).env("CARGO_NET_RETRY", "0");
        let output = command.current_dir(place).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let alone = |args: &[&str]| alone_in(directory.path(), args);
    let (code, error) = alone(&["sim", "pipe", "-p", "fifo"]);
    assert_eq!(code, Some(0), "{error}");
    let (code, error) = alone(&["vm", "run", "fifo", "--", "true"]);
    assert_eq!(code, Some(112), "{error}");
    assert!(error.contains("cannot fetch from the Debian mirror"), "{error}");
    assert!(error.trim_end().ends_with("run the same command again: what was downloaded is kept"), "{error}");
    let project = directory.path().join("mine");
    let made = ekiden(directory.path(), &["new", "mine"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    // None of the crates that it needs is there.
    let (code, error) = alone_in(&project, &["sim", "pipe", "-p", "mine"]);
    assert_eq!(code, Some(117), "{error}");
    assert!(error.trim_end().ends_with("check the network, then run the same command again"), "{error}");
}

#[test]
fn the_simulator_gives_the_same_trace_every_time() {
    let directory = tempfile::tempdir().unwrap();
    let trace = |name: &str, seed: &str| {
        let output =
            ekiden(directory.path(), &["sim", "sleepers", "-p", "wfq", "--seed", seed, "--trace", name, "--json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["events"].as_u64() > Some(100) && report["fault"].is_null(), "{report}");
        fs::read(directory.path().join(name)).unwrap()
    };
    assert_eq!(trace("a", "7"), trace("b", "7"));
    assert_ne!(trace("c", "8"), trace("d", "7"));
}

#[test]
fn a_failed_check_of_the_simulator_can_be_told_by_the_exit_code() {
    // FIFO knows no weights.
    assert_eq!(run(&["sim", "nice:0:5", "-p", "fifo", "--check"]).0, 116);
    assert_eq!(run(&["sim", "nice:0:5", "-p", "wfq", "--check"]).0, 0);
}

#[test]
fn a_broken_promise_is_118_and_a_broken_trace_an_error_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let sim = |policy: &str| {
        let args = ["sim", "forced-move", "--cpus", "2", "-p", policy, "--trace", policy];
        assert!(ekiden(directory.path(), &args).status.success());
    };
    sim("wfq");
    let checked = ekiden(directory.path(), &["check", "wfq", "--every", "20", "--persists", "10"]);
    assert_eq!(checked.status.code(), Some(0), "{}", String::from_utf8_lossy(&checked.stdout));
    sim("fifo");
    let checked = ekiden(directory.path(), &["check", "fifo", "--every", "20", "--persists", "10", "--json"]);
    assert_eq!(checked.status.code(), Some(118));
    let report: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(report["violations"][0]["check"], "work-conservation", "{report}");

    let mut bytes = fs::read(directory.path().join("fifo")).unwrap();
    bytes.pop();
    fs::write(directory.path().join("cut"), bytes).unwrap();
    let checked = ekiden(directory.path(), &["check", "cut"]);
    let error = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.code() == Some(1) && error.contains("damaged at byte"), "{error}");
    assert_eq!(ekiden(directory.path(), &["check", "no-such-file"]).status.code(), Some(1));
}

#[test]
fn what_is_recorded_is_replayed_and_differences_are_118() {
    let directory = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let output = ekiden(directory.path(), args);
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, shown) = run(&["sim", "churn", "-p", "wfq", "--upgrade", "5=wfq", "--record", "out"]);
    assert!(code == Some(0) && shown.contains("next: ekiden replay out"), "{shown}");
    let (code, shown) = run(&["replay", "out", "--json"]);
    let report: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(code, Some(0), "{shown}");
    assert!(report["calls"].as_u64() > Some(500) && report["calls"] == report["replayed"], "{report}");
    assert!(report["happened_s"].as_f64() > Some(0.0) && report["replay_s"].as_f64() > Some(0.0), "{report}");
    assert_eq!((&report["differences"], &report["recording"]["policy"]), (&0.into(), &"wfq".into()));

    let (code, shown) = run(&["replay", "out", "--set", "slice_min_us=50", "--stop-on-diff"]);
    assert_eq!(code, Some(118), "{shown}");
    assert!(shown.contains("first difference: it ") && shown.contains("next: ekiden replay out --stop-at"), "{shown}");
    assert_eq!(run(&["replay", "out", "--set", "colour=3"]).0, Some(111));
    let (code, shown) = run(&["replay", "out", "--what-if", "fifo"]);
    assert!(code == Some(0) && shown.contains("what fifo would have decided"), "{shown}");
    assert_eq!(run(&["replay", "out", "--what-if", "no-such-policy"]).0, Some(110));

    let mut bytes = fs::read(directory.path().join("out")).unwrap();
    bytes.truncate(bytes.len() - 5);
    fs::write(directory.path().join("cut"), &bytes).unwrap();
    let (code, shown) = run(&["replay", "cut"]);
    assert!(code == Some(0) && shown.contains("cut off at byte"), "{shown}");
    fs::write(directory.path().join("foreign"), "nothing").unwrap();
    let (code, shown) = run(&["replay", "foreign"]);
    assert!(code == Some(1) && shown.contains("does not begin with EKIRECRD"), "{shown}");
    assert_eq!(run(&["replay", "no-such-file"]).0, Some(1));
}

#[test]
fn a_replay_stops_in_the_policy_under_a_debugger() {
    let directory = tempfile::tempdir().unwrap();
    let output = ekiden(directory.path(), &["sim", "churn", "-p", "wfq", "--cpus", "2", "--record", "out"]);
    assert!(output.status.success());
    let gdb = Command::new("gdb").arg("--version").output();
    assert!(gdb.is_ok_and(|output| output.status.success()), "there is no gdb: scripts/prepare tests installs it");
    let stop_at = |call: &str, command: &mut Command| {
        let output = command.current_dir(&directory).args(["replay", "out", "--stop-at", call]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text)
    };
    let program = env!("CARGO_BIN_EXE_ekiden");
    // Without a terminal it ends at the end of its input, which is where it stopped.
    // The methods are long and short, and not all of them the policy's own.
    for call in ["3", "30", "200", "500"] {
        let (_, shown) = stop_at(call, Command::new(program).stdin(std::process::Stdio::null()));
        let is_there = shown.contains("\nTemporary breakpoint 2, ") || shown.contains("\nTemporary breakpoint 3, ");
        assert!(is_there, "call {call}: {shown}");
        assert!(call != "3" || shown.contains("policies/src/wfq.rs:"), "{shown}");
    }
    let (code, shown) = stop_at("3", Command::new(program).env("PATH", "/nowhere"));
    assert_eq!(code, Some(115), "{shown}");
    assert!(shown.contains("apt-get install gdb") && shown.contains("'break ekiden_replay_stop'"), "{shown}");
}

#[test]
fn a_trace_tells_what_it_is_of() {
    let directory = tempfile::tempdir().unwrap();
    let args = ["sim", "pipe", "--cpus", "2", "-p", "wfq", "--set", "period_us=6000", "--trace", "out", "--seed", "3"];
    assert!(ekiden(directory.path(), &args).status.success());
    let info = ekiden(directory.path(), &["trace", "info", "out", "--json"]);
    let info: Value = serde_json::from_slice(&info.stdout).unwrap();
    let header = &info["header"];
    assert_eq!((&header["policy"], &header["workload"], &header["seed"]), (&"wfq".into(), &"pipe".into(), &3.into()));
    assert_eq!(header["params"], "period_us=6000");
    let all = String::from_utf8(ekiden(directory.path(), &["trace", "cat", "out"]).stdout).unwrap();
    assert_eq!(info["records"], all.lines().count());
    let of_one = String::from_utf8(ekiden(directory.path(), &["trace", "cat", "out", "--pid", "1001"]).stdout).unwrap();
    assert!(of_one.lines().count() > 10 && of_one.lines().all(|line| line.contains("pid 1001")), "{of_one}");
}

#[test]
fn a_sweep_is_a_table_with_a_row_for_each_simulation() {
    let directory = tempfile::tempdir().unwrap();
    let sweep = |file: &str, policies: &str| {
        let args = ["sim", "sleepers", "--sweep", file, "--seeds", "3-5", "--machines", "1x1x2x1,laptop", "--policies"];
        let output = ekiden(directory.path(), &[&args[..], &[policies]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read_to_string(directory.path().join(file)).unwrap()
    };
    let table = sweep("a.csv", "fifo,wfq:period_us=6000");
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("load,policy,params,machine,cpus,seed,wall_ns"), "{table}");
    assert_eq!(lines.len(), 1 + 2 * 2 * 3, "{table}");
    assert!(lines[12].starts_with("sleepers,wfq,period_us=6000,laptop,16,5,"), "{table}");
    assert_eq!(table, sweep("b.csv", "fifo,wfq:period_us=6000"));
    assert_eq!(run(&["sim", "sleepers", "--sweep", "-", "--policies", "nope"]).0, 110);
    assert_eq!(run(&["sim", "sleepers", "--sweep", "-", "--machines", "nope"]).0, 2);
}

#[test]
fn an_unknown_policy_is_110_and_the_known_ones_are_named() {
    let (code, _, error) = run(&["sim", "fair-share", "-p", "nope"]);
    assert_eq!(code, 110);
    assert!(error.contains("fifo, wfq"), "{error}");
}

#[test]
fn a_new_project_is_made_once() {
    let directory = tempfile::tempdir().unwrap();
    assert!(ekiden(directory.path(), &["new", "round-trip"]).status.success());
    assert!(directory.path().join("round-trip/src/lib.rs").exists());
    let again = ekiden(directory.path(), &["new", "round-trip"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists already"));
    assert!(!ekiden(directory.path(), &["new", "No Name"]).status.success());
}

#[test]
fn without_a_machine_there_is_nothing_to_run_in() {
    assert_eq!(run(&["vm", "exec", "--", "true"]).0, 114);
    let (code, text, _) = run(&["vm", "status", "--json"]);
    assert_eq!((code, text.trim()), (0, "null"));
    assert_eq!(run(&["vm", "stop"]).0, 0);
}

#[test]
fn status_and_unsafe_code_are_told_as_json() {
    let (code, text, error) = run(&["status", "--json"]);
    assert_eq!(code, 0, "{error}");
    let status: Value = serde_json::from_str(&text).unwrap();
    assert!(status["sched_ext"]["supported"].is_boolean(), "{status}");
    let (code, text, _) = run(&["bench", "count-unsafe", "--json", "--check"]);
    assert_eq!(code, 0);
    let table: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(table["passed"], true, "{table}");
}

#[test]
fn an_upgrade_and_a_recording_need_root_and_a_policy_that_runs() {
    for command in [&["upgrade", "wfq"][..], &["record", "--dump", "-o", "/dev/null"]] {
        let (code, _, error) = run(command);
        let expected = if nix::unistd::geteuid().is_root() { (119, "`ekiden run`") } else { (102, "sudo") };
        assert!(code == expected.0 && error.contains(expected.1), "{command:?} {code}: {error}");
    }
}

#[test]
fn a_bench_refuses_cpus_that_run_in_parallel_before_it_fetches_anything() {
    for bench in [&["bench", "pipe", "--vm"][..], &["bench", "edit"], &["bench", "upgrade", "--vm"], &["demo"]] {
        let (code, _, error) = run(&[bench, &["--parallel"]].concat());
        assert!(code == 2 && error.contains("what something costs says nothing"), "{bench:?}: {code} {error}");
    }
}

#[test]
fn a_machine_that_was_not_started_is_called_by_its_name() {
    let (code, out, _) = run(&["vm", "stop", "--name", "races"]);
    assert_eq!((code, out.as_str()), (0, "there is no machine races\n"));
    let (code, _, error) = run(&["vm", "exec", "--name", "races", "--", "true"]);
    assert!(code == 114 && error.contains("no machine races"), "{code} {error}");
    assert_eq!(run(&["vm", "list", "--json"]).1, "[]\n");
    assert_eq!(run(&["vm", "start", "--name", "../races"]).0, 2);
}

/// With a cargo that only says what it is asked to build.
#[test]
fn a_first_simulation_in_a_clone_builds_no_more_than_it_needs() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(place("bin")).unwrap();
    let program = |name: &str, text: &str| {
        fs::write(place(name), format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(place(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    let said = place("said");
    program(
        "bin/cargo",
        &format!("echo \"$@\" >{said}; mkdir -p {0}/release; cp {0}/made {0}/release/ekiden", place("")),
    );
    program("made", "exit 0");
    let builds_all = |command: &str| {
        let mut script = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../ekiden"));
        let path = format!("{}:{}", place("bin"), std::env::var("PATH").unwrap());
        script.args(command.split(' ')).env("PATH", path).env("CARGO_TARGET_DIR", directory.path());
        // Whatever this machine has.
        let output = script.env("EKIDEN_CLANG", "clang").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let asked = fs::read_to_string(&said).unwrap();
        assert!(asked.contains("build --release") && asked.contains("-p ekiden-cli"), "{asked}");
        !asked.contains("--no-default-features")
    };
    for command in ["sim pipe", "replay out", "check out", "view out", "hints header locality"] {
        assert!(!builds_all(command), "{command}");
    }
    assert_eq!(["check --live", "sim pipe"].map(builds_all), [true, true]);
}
