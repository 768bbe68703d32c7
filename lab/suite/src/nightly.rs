//! What takes a night: long runs, each by itself, with what has passed kept for the commit, so that an interrupted night resumes
//! there. Ends with one report.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::{Arguments, leftovers::Before, parts::Part, runner::Runner};

/// The result of a part.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Outcome {
    passed: bool,
    seconds: f64,
}

/// The results of a commit.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    commit: String,
    parts: BTreeMap<String, Outcome>,
    left_behind: Vec<String>,
}

/// The long runs. What `make test` does once or for minutes, these do many times or for an hour.
fn parts(root: &Path) -> Result<Vec<Part>> {
    let guests = |name: &str, test: &str| {
        let command = format!("cargo test --quiet -p ekiden-kernel-tests --test guests -- --exact {test}");
        Part::new(root, name, &command)
    };
    let mut parts = vec![
        // And all of what takes turns by the day.
        Part::new(root, "everything that make test checks", "make test")
            .with("EKIDEN_TURN", "all")
            .with("EKIDEN_POLICIES", "all"),
        Part::new(root, "bare roots of Debian", "scripts/test-fresh"),
        Part::new(root, "a command line that cargo installed", "scripts/test-installed"),
        Part::new(
            root,
            "traces of an optimised build",
            "cargo test --release --quiet -p ekiden-sim --test simulator determinism",
        ),
        Part::new(
            root,
            "a simulation by a command line without BPF",
            "cargo run --release --quiet -p ekiden-cli --no-default-features --target-dir target/without-bpf -- sim fair-share --check",
        ),
        Part::new(
            root,
            "lints with BPF and without virtual machines",
            "cargo clippy -p ekiden-cli --no-default-features --features bpf -- -D warnings",
        ),
        Part::new(root, "the kernel's checkpatch", "scripts/checkpatch"),
        Part::new(root, "the modules' C under sparse", "scripts/sparse"),
        Part::new(root, "locks under Miri", "scripts/miri -p ekiden-lock --lib"),
        // Its own tests are these: the crate has none inside.
        Part::new(root, "rings of hints under Miri", "scripts/miri -p ekiden-hints --test ring"),
        Part::new(root, "recordings under Miri", "scripts/miri -p ekiden-recording --lib"),
        Part::new(
            root,
            "the kernel's allocator under Miri",
            "scripts/miri --manifest-path hosts/kernel/Cargo.toml -p ekiden-kernel-rt --lib",
        ),
    ];
    // What makes it depends on a library that nothing else needs; in its directory are the settings that say where that is.
    for (name, what) in [("lints of", "clippy --all-targets -- -D warnings"), ("tests of", "test --quiet")] {
        let mut part = Part::new(root, &format!("{name} requests to RocksDB"), &format!("cargo {what}"));
        part.directory = root.join("workload/rocksdb");
        parts.push(part);
    }
    for cpus in [1, 2, 4] {
        let name = format!("every fault twenty times on {cpus} CPUs");
        let command =
            format!("./ekiden faults --vm --rounds 20 --cpus {cpus} --save target/nightly/faults-{cpus}.json");
        parts.push(Part::new(root, &name, &command));
    }
    for (cpus, how) in [(1, ""), (4, ""), (4, " --parallel")] {
        let name =
            format!("a thousand generated policies on {cpus} CPUs{}", how.replace(" --parallel", " that run at once"));
        let save = format!("--save target/nightly/generated-{cpus}{}.json", how.replace(" --", "-"));
        let command = format!("./ekiden faults --vm --generated 1000 --seed 1 --cpus {cpus}{how} {save}");
        parts.push(Part::new(root, &name, &command));
    }
    parts.push(Part::new(
        root,
        "an hour of everything on CPUs that run at once",
        "./ekiden soak --vm --parallel --minutes 60 --check --save target/nightly/soak.json",
    ));
    for (name, what, file) in [
        ("a hostile neighbour", "--neighbour", "soak-neighbour.json"),
        ("random requests for the device", "--device --parallel", "soak-device.json"),
    ] {
        let command = format!("./ekiden soak --vm {what} --minutes 60 --save target/nightly/{file}");
        parts.push(Part::new(root, &format!("an hour of {name}"), &command));
    }
    for (how, test) in [
        ("in one stream", "policies_live_beside_a_hostile_neighbour"),
        ("on CPUs that run at once", "in_parallel_policies_live_beside_a_hostile_neighbour"),
    ] {
        parts.push(
            guests(&format!("five minutes of a hostile neighbour {how}"), test)
                .with("EKIDEN_NEIGHBOUR_MINUTES", "5")
                .with("EKIDEN_POLICIES", "all"),
        );
    }
    parts.push(
        guests("a panic in each call twenty times", "a_panic_in_each_call_of_the_trait_ends_only_the_policy")
            .with("EKIDEN_TURN", "all")
            .with("EKIDEN_FAULT_ROUNDS", "20"),
    );
    parts.push(
        guests("modules loaded and unloaded five hundred times", "modules_load_run_and_unload_again_and_again")
            .with("EKIDEN_RELOAD_ROUNDS", "500"),
    );
    // By itself: if QEMU breaks its guest, this begins anew.
    parts.push(
        guests(
            "modules loaded and unloaded a thousand times on CPUs that run at once",
            "in_parallel_modules_load_run_and_unload",
        )
        .with("EKIDEN_RELOAD_ROUNDS", "1000"),
    );
    parts.push(
        guests("control groups under every policy", "shares_and_limits_of_control_groups_hold_under_every_policy")
            .with("EKIDEN_POLICIES", "all"),
    );
    parts.push(
        guests("agents while a CPU leaves twenty times", "every_policy_lives_in_an_agent_and_no_task_is_lost")
            .with("EKIDEN_ROUNDS", "200")
            .with("EKIDEN_POLICIES", "all"),
    );
    parts.push(
        Part::new(
            root,
            "tests on CPUs that run at once, ten times",
            "cargo test --quiet -p ekiden-kernel-tests --test guests -- in_parallel",
        )
        .with("EKIDEN_PARALLEL_TIMES", "10")
        .with("EKIDEN_COMINGS", "1000")
        .with("EKIDEN_TURN", "all")
        .with("EKIDEN_POLICIES", "all")
        .with("EKIDEN_FAULT_LIST_ROUNDS", "20"),
    );
    for seed in [1, 7] {
        parts.push(
            guests(&format!("an hour of storm, seed {seed}"), "policies_live_through_a_storm_of_everything_at_once")
                .with("EKIDEN_STORM_MINUTES", "60")
                .with("EKIDEN_STORM_SEED", &seed.to_string()),
        );
    }
    parts.push(
        Part::new(root, "readers fuzzed for an hour", "cargo test --release --quiet -p ekiden-fuzz --test smoke")
            .with("EKIDEN_FUZZ_MINUTES", "60"),
    );
    parts.push(Part::new(root, "tables 2 to 4 of papers/000", "./ekiden reproduce ekiben-tables --check"));
    parts.push(Part::new(
        root,
        "every bit of a foreign recording",
        "cargo test --release --quiet -p ekiden-foreign --test recordings -- --ignored",
    ));
    parts.push(Part::new(
        root,
        "a fault of the emulator",
        "cargo test --quiet -p ekiden-vm --test machine -- --ignored",
    ));
    for test in ignored_guest_tests(root)? {
        let command = format!("cargo test --quiet -p ekiden-kernel-tests --test guests -- --ignored --exact {test}");
        parts.push(Part::new(root, &test.replace('_', " "), &command).with("EKIDEN_WATCH_MINUTES", "10"));
    }
    Ok(parts)
}

/// The tests in guests that `make test` leaves out as they take long.
fn ignored_guest_tests(root: &Path) -> Result<Vec<String>> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--quiet", "-p", "ekiden-kernel-tests", "--test", "guests", "--", "--list", "--ignored"]);
    // Or else what has the next turn would be among them.
    let output = cargo.env("EKIDEN_TURN", "all").current_dir(root).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("cannot list the tests in guests:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<bool> {
    let directory = root.join("target/nightly");
    fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let file = directory.join("state.json");
    let commit = commit(root)?;
    let mut state: State = fs::read_to_string(&file)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .filter(|state: &State| state.commit == commit && !arguments.again)
        .unwrap_or_default();
    state.commit = commit;
    let mut all = parts(root)?;
    if let Some(word) = &arguments.only {
        all.retain(|part| part.name.contains(word.as_str()));
    }
    let names: Vec<String> = all.iter().map(|part| part.name.clone()).collect();
    if arguments.list {
        println!("{}", report(&state, &names));
        return Ok(true);
    }
    for part in all {
        let name = part.name.clone();
        if state.parts.get(&name).is_some_and(|outcome| outcome.passed) {
            eprintln!("passed before, for this commit: {name}");
            continue;
        }
        let start = Instant::now();
        let mut runner = Runner::new(root, start)?;
        let before = Before::now(root, runner.temporary())?;
        let passed = runner.run_one(part);
        state.left_behind.extend(before.compare().into_iter().map(|thing| format!("{name}: {thing}")));
        state.parts.insert(name, Outcome { passed, seconds: start.elapsed().as_secs_f64() });
        keep(&file, &serde_json::to_string_pretty(&state)?)?;
        keep(&directory.join("report.md"), &report(&state, &names))?;
    }
    println!(
        "{}\nThis report is target/nightly/report.md, and state.json beside it is for programs.",
        report(&state, &names)
    );
    let is_good = |name: &String| state.parts.get(name).is_some_and(|outcome| outcome.passed);
    Ok(names.iter().all(is_good) && state.left_behind.is_empty())
}

/// The commit, and a mark if the checkout differs from it: what was tried then says nothing of the commit.
fn commit(root: &Path) -> Result<String> {
    let git = |args: &[&str]| -> Result<String> {
        let output = Command::new("git").args(args).current_dir(root).output().context("cannot start git")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let head = git(&["rev-parse", "HEAD"])?;
    let changes = git(&["status", "--porcelain"])?;
    Ok(if changes.is_empty() { head } else { format!("{head} with changes") })
}

/// Writes a file in one step.
fn keep(file: &Path, text: &str) -> Result<()> {
    let draft: PathBuf = file.with_extension("partial");
    fs::write(&draft, text).with_context(|| format!("cannot write {}", draft.display()))?;
    fs::rename(&draft, file).with_context(|| format!("cannot write {}", file.display()))
}

fn report(state: &State, names: &[String]) -> String {
    let mut text = format!("# Nightly run of {}\n\n| part | result | minutes |\n| --- | --- | --- |\n", state.commit);
    for name in names {
        let (result, minutes) = match state.parts.get(name) {
            Some(outcome) if outcome.passed => ("passed", format!("{:.1}", outcome.seconds / 60.0)),
            Some(outcome) => ("FAILED", format!("{:.1}", outcome.seconds / 60.0)),
            None => ("not run yet", String::new()),
        };
        text.push_str(&format!("| {name} | {result} | {minutes} |\n"));
    }
    for thing in &state.left_behind {
        text.push_str(&format!("\nLeft behind by {thing}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_a_row_for_each_part() {
        let mut state = State { commit: "abc".into(), ..State::default() };
        state.parts.insert("one".into(), Outcome { passed: true, seconds: 90.0 });
        state.parts.insert("two".into(), Outcome { passed: false, seconds: 30.0 });
        let text = report(&state, &["one".into(), "two".into(), "three".into()]);
        for row in ["| one | passed | 1.5 |", "| two | FAILED | 0.5 |", "| three | not run yet |  |"] {
            assert!(text.contains(row), "{text}");
        }
    }
}
