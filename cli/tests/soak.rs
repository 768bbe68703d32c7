//! Two minutes of `ekiden soak` on CPUs that run at once, ended by an interrupt.

use std::{
    collections::BTreeSet,
    fs, iter,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

const FOR: Duration = Duration::from_secs(120);
/// Steps that are over when the interrupt comes. The first takes ten seconds, but one of the others may take longer than all of [`FOR`].
const STEPS: usize = 3;
/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(600);

/// How often it may run again because QEMU itself has lost the guest, which takes the time of a step and of another boot.
const AGAIN_MAX: usize = 3;

/// The order of the steps is another one at each turn.
#[test]
fn two_minutes_of_soak_find_nothing_and_an_interrupt_keeps_what_was_found() {
    let steps = (0..=AGAIN_MAX).find_map(|_| {
        let report = soaked();
        let steps: u64 = report["steps"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        (steps >= STEPS as u64 || report["emulator_faults"] == 0).then_some((steps, report))
    });
    let (steps, report) = steps.expect("QEMU loses each guest");
    assert!(steps >= STEPS as u64, "{report}");
}

/// The numbers of the steps that have been saved. The last line may not be whole yet.
fn saved_steps(saved: &Path) -> BTreeSet<u64> {
    let lines = fs::read_to_string(saved).unwrap_or_default();
    let number = |line: &str| serde_json::from_str::<Value>(line).ok()?["number"].as_u64();
    lines.lines().filter_map(number).collect()
}

/// Waits for this many steps of a soak, or until it has ended.
fn wait_for_steps(saved: &Path, steps: usize, soak: Pid) {
    let start = Instant::now();
    while saved_steps(saved).len() < steps && start.elapsed() < PATIENCE && kill(soak, None).is_ok() {
        thread::sleep(Duration::from_millis(200));
    }
}

/// A process: its number, and when it began, as numbers are used again.
type Process = (i32, String);

/// The fields of `/proc/PID/stat` from the state on; none of a process that is over.
fn stat(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<String> = stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect();
    // A zombie is over, too.
    (fields[0] != "Z").then_some(fields)
}

/// The guests of a process: what it has started of QEMU, be it through others.
fn guests_of(ancestor: Pid) -> Vec<Process> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids: Vec<i32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let parent = |pid: i32| stat(pid)?[1].parse::<i32>().ok();
    let is_of = |pid| iter::successors(parent(pid), |pid| parent(*pid)).any(|pid| pid == ancestor.as_raw());
    // One that was fetched is started by a loader of its own, whose name its process has.
    let is_guest = |pid: i32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains("qemu-system")
    };
    let guests = pids.into_iter().filter(|pid| is_of(*pid) && is_guest(*pid));
    guests.filter_map(|pid| Some((pid, stat(pid)?[19].clone()))).collect()
}

/// What the report says. Whatever the guest was lost by, nothing may have been found before.
fn soaked() -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let directory = tempfile::tempdir().unwrap();
    let saved = directory.path().join("guest_tests");
    let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 86_400;
    // A run of all tests says whose turn it is.
    let turn = std::env::var("EKIDEN_TURN").ok().and_then(|turn| turn.parse().ok());
    let day: u64 = turn.unwrap_or(today);
    let soak = Command::new(env!("CARGO_BIN_EXE_ekiden"))
        .args(["soak", "--vm", "--parallel", "--busy=0", "--minutes=60", "--json", &format!("--seed={day}"), "--save"])
        .arg(&saved)
        .current_dir(root)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(soak.id() as i32);
    let interrupts = thread::spawn(move || {
        // The first guest test tells when the guest is there.
        wait_for_steps(&saved, 1, pid);
        thread::sleep(FOR);
        wait_for_steps(&saved, STEPS, pid);
        let guests = guests_of(pid);
        // If it has ended, its exit code says so.
        let _ = kill(pid, Signal::SIGINT);
        guests
    });
    let output = soak.wait_with_output().unwrap();
    let guests = interrupts.join().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no report: {said}"));
    println!("{report}");
    assert_eq!(output.status.code(), Some(130), "{report}\n{said}");
    assert_eq!((&report["findings"], &report["interrupted"]), (&Value::Array(vec![]), &true.into()), "{report}");
    assert_eq!(report["differences"], 0, "{report}");
    assert!(!guests.is_empty(), "no guest was seen: {report}");
    let is_left = |(pid, began): &&Process| stat(*pid).is_some_and(|fields| fields[19] == *began);
    assert_eq!(guests.iter().find(is_left), None, "a guest is left, of these: {guests:?}");
    report
}
