//! Nothing that takes long is silent for more than two seconds, also where there is no terminal.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::channel,
    thread,
    time::{Duration, Instant},
};

/// The longest that a user waits for output.
const SILENCE_MAX: Duration = Duration::from_secs(2);

struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
    longest_silence: Duration,
}

/// Runs a command with its outputs on pipes. Any byte ends a silence, and so does the end.
fn run(command: &mut Command) -> Run {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (sender, said) = channel();
    let pipes: [Box<dyn Read + Send>; 2] =
        [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
    for (which, mut pipe) in pipes.into_iter().enumerate() {
        let sender = sender.clone();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut bytes) {
                sender.send((which, Instant::now(), bytes[..count].to_vec())).unwrap();
            }
        });
    }
    drop(sender);
    let (mut last, mut longest_silence, mut texts) = (Instant::now(), Duration::ZERO, [vec![], vec![]]);
    for (which, at, bytes) in said {
        longest_silence = longest_silence.max(at.saturating_duration_since(last));
        last = at;
        texts[which].extend(bytes);
    }
    let code = child.wait().unwrap().code();
    longest_silence = longest_silence.max(last.elapsed());
    let [stdout, stderr] = texts.map(|bytes| String::from_utf8(bytes).unwrap());
    Run { code, stdout, stderr, longest_silence }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn with_progress(what: &str, script: &str) -> Run {
    run(Command::new(root().join("scripts/with-progress")).args([what, "sh", "-c", script]))
}

#[test]
fn a_silent_command_is_said_to_run_every_two_seconds() {
    let run = with_progress("waiting", "echo out; sleep 5; echo err >&2; exit 7");
    assert!(run.longest_silence <= SILENCE_MAX, "silent for {:?}: {}", run.longest_silence, run.stderr);
    assert_eq!((run.code, &run.stdout[..]), (Some(7), "out\n"));
    assert!(run.stderr.starts_with("waiting, ") && run.stderr.ends_with("err\n"), "{}", run.stderr);
}

#[test]
fn a_command_that_talks_is_left_alone() {
    let run = with_progress("talking", "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done");
    assert_eq!((run.code, &run.stdout[..], &run.stderr[..]), (Some(0), "1\n2\n3\n4\n5\n6\n7\n8\n", ""));
}

#[test]
fn the_policy_of_a_new_project_is_never_built_in_silence() {
    // It stays from run to run: what cargo makes of it is called after that.
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR")).join("silence");
    let _ = fs::remove_dir_all(&parent);
    fs::create_dir_all(&parent).unwrap();
    let ekiden = env!("CARGO_BIN_EXE_ekiden");
    let new = run(Command::new(ekiden).args(["new", "silent", "--in"]).arg(&parent));
    assert_eq!(new.code, Some(0), "{}", new.stderr);
    let sim = run(Command::new(ekiden).args(["sim", "fair-share", "-p", "silent"]).current_dir(parent.join("silent")));
    assert_eq!(sim.code, Some(0), "{}", sim.stderr);
    assert!(sim.stderr.contains("Compiling silent"), "{}", sim.stderr);
    assert!(sim.longest_silence <= SILENCE_MAX, "silent for {:?}: {}", sim.longest_silence, sim.stderr);
}
