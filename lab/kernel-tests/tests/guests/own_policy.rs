//! Policies of one's own, of a workspace with two crates, in a stock kernel: built, run, upgraded, recorded, replayed and measured by the
//! commands that do it with ours.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use ekiden_build::{Checkout, Project, Runner, new_project};
use serde_json::Value;

use crate::{
    pool::tests,
    test_guest::{Machine, TestGuest, built, newest_kernel},
};

tests! {
    Machine::Calm => {
        90 policies_of_ones_own_run_take_over_and_are_recorded_and_measured,
    }
}

/// What the first policy does with hints.
const HINTS: &str = "
#[policy]
impl HintQueues for First {
    type Hint = u64;
    type Notice = u64;

    fn register_queue(&self, _: &Cx, _: ekiden::QueueId, _: ekiden::ProcessId) {}

    fn enter_queue(&self, cx: &Cx, queue: ekiden::QueueId, hints: ekiden::Hints<'_, u64>) {
        for hint in hints {
            let _ = cx.notify::<Self>(queue, &(6 * hint));
        }
    }
}
";

/// A workspace with two policies, each in a crate that `ekiden new` makes. It stays from run to run: what cargo makes of it is called after it.
fn workspace() -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("own-workspace");
    for name in ["first", "second"] {
        let _ = fs::remove_dir_all(root.join(name));
        fs::create_dir_all(&root).unwrap();
        let project = new_project(&root, name).unwrap();
        // It says that it is a workspace of its own.
        let manifest = project.join("Cargo.toml");
        let text = fs::read_to_string(&manifest).unwrap();
        let lines = text.lines().filter(|line| *line != "[workspace]").map(|line| format!("{line}\n"));
        fs::write(&manifest, lines.collect::<String>()).unwrap();
        fs::rename(project.join("Cargo.lock"), root.join("Cargo.lock")).unwrap();
    }
    // It takes numbers as hints, and says six times as much.
    let source = root.join("first/src/lib.rs");
    let text = fs::read_to_string(&source).unwrap();
    let text = text.replace("#[policy]\nimpl Scheduler for", "#[policy(HintQueues)]\nimpl Scheduler for");
    fs::write(&source, text + HINTS).unwrap();
    fs::write(root.join("Cargo.toml"), "[workspace]\nmembers = [\"first\", \"second\"]\nresolver = \"3\"\n").unwrap();
    root
}

/// Runs `ekiden` there, on this machine. Returns what it printed.
fn ekiden(workspace: &Path, args: &[&str]) -> String {
    let mut command = Command::new(built().join("ekiden"));
    let output = command.args(args).current_dir(workspace).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {}\n{said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// The last JSON object that a command printed, over one line or several.
fn json(text: &str) -> Value {
    let start = text.rfind("\n{").map_or(0, |at| at + 1);
    serde_json::from_str(&text[start..]).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn policies_of_ones_own_run_take_over_and_are_recorded_and_measured(guest: &TestGuest) {
    guest.bring("ekiden-cli", "ekiden");
    let workspace = workspace();
    let kernel = newest_kernel();
    let modules = json(&ekiden(&workspace, &["build", "--kernel", kernel.release(), "--json"]));
    assert_eq!(modules["policies"], serde_json::json!(["first", "second"]), "{modules}");
    for module in ["ekiden_first.ko", "ekiden_second.ko"] {
        let directory = Path::new(modules["directory"].as_str().unwrap());
        fs::copy(directory.join(module), guest.host(module)).unwrap();
    }
    let run = |line: &str| {
        guest.shell(&format!(
            "export LD_LIBRARY_PATH=/lab/programs EKIDEN_MODULES=/lab PATH=/lab/programs:$PATH; cd /tmp; {line}"
        ))
    };
    run("mv /host/ekiden_first.ko /host/ekiden_second.ko /lab/");
    // The program that `ekiden` becomes in the workspace. Replay below becomes it, too.
    let runner = Runner { features: vec!["bpf", "vm"], release: false, as_root: false };
    let project = Project::open(&workspace).unwrap();
    let runner = runner.build(&Checkout::find().unwrap(), &project, &mut |line| println!("{line}")).unwrap();
    let stripped = Command::new("strip").arg("-o").arg(guest.host("own-ekiden")).arg(runner.program).status().unwrap();
    assert!(stripped.success());
    run("mv /host/own-ekiden /lab/programs/");

    // Under load, one takes over from the other, which had taken over from itself with another parameter.
    let status = run("ekiden run first --set slice_us=500 -- sh -c '
        ekiden-load run churn --check >/dev/null &&
        ekiden upgrade first --set slice_us=700 --start-over >/dev/null && ekiden upgrade second >/dev/null &&
        ekiden-load run churn --check >/dev/null && ekiden status --json'");
    println!("{status}");
    assert_eq!(json(&status)["ekiden"]["policies"][0]["policy"], "second", "{status}");

    run("ekiden run second --record /host/own.ekirec -- ekiden-load run churn --check");
    let recording = guest.host("own.ekirec");
    let replayed = json(&ekiden(&workspace, &["replay", recording.to_str().unwrap(), "--json"]));
    println!("{replayed}");
    assert_eq!(replayed["differences"], 0, "{replayed}");
    assert!(replayed["replayed"].as_u64() > Some(200), "{replayed}");

    let figures = run("ekiden bench pipe --policy first --policy second --repeat 1 --round-trips 200 --json");
    println!("{figures}");
    for policy in ["first", "second"] {
        assert!(figures.contains(policy), "{figures}");
    }
    assert!(!figures.contains("\"was_taken_out\":true"), "{figures}");

    // In a process, and what talks to it and looks at it.
    run("own-ekiden agent first --set slice_us=500 --record /host/agent.ekirec -- ekiden-load run churn --check");
    let recording = guest.host("agent.ekirec");
    let replayed = json(&ekiden(&workspace, &["replay", recording.to_str().unwrap(), "--json"]));
    println!("{replayed}");
    assert_eq!(replayed["differences"], 0, "{replayed}");
    let noticed = run("ekiden run first -- own-ekiden hint first --wait 2000 7");
    assert!(noticed.lines().any(|line| line == "42"), "{noticed}");
    let waits = run("ekiden runqlat --compare default,first --json -- ekiden-load run churn");
    println!("{waits}");
    // Each of the two was the scheduler to the end.
    assert!(waits.contains("\"first\""), "{waits}");
    assert_eq!(waits.matches("\"stayed\": true").count(), 2, "{waits}");
}
