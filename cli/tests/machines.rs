//! A machine that stays, as people use it: its name, who uses it, and the ways in which that ends. It boots a stock
//! kernel.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A machine of this test's own. It is ended however the test ends.
struct Machine(String);

impl Machine {
    fn start() -> Self {
        let machine = Self(format!("test-{}", std::process::id()));
        let output = machine.vm("start", &["--parallel"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        machine
    }

    fn command(&self, what: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ekiden"));
        command.args(["vm", what, "--name", &self.0]).args(args);
        command
    }

    fn vm(&self, what: &str, args: &[&str]) -> Output {
        self.command(what, args).output().unwrap()
    }

    /// A command in the guest that has begun.
    fn exec(&self, line: &str) -> Child {
        let child = self.command("exec", &["--", "sh", "-c", line]).stderr(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while !text(&self.vm("status", &[]).stdout).contains(&format!("(PID {}, since ", child.id())) {
            assert!(Instant::now() < deadline, "it has not begun");
            thread::sleep(Duration::from_millis(20));
        }
        // It holds the machine a little before the command runs.
        thread::sleep(Duration::from_secs(1));
        child
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It is gone already if the test has passed.
        let _ = self.command("stop", &["--force"]).output();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_machine_outlives_commands_that_are_ended_or_killed_and_says_who_uses_it() {
    let machine = Machine::start();
    let all = text(&Command::new(env!("CARGO_BIN_EXE_ekiden")).args(["vm", "list", "--json"]).output().unwrap().stdout);
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    let seen = all.as_array().unwrap().iter().find(|seen| seen["name"] == machine.0.as_str()).unwrap();
    assert_eq!((&seen["clock"], &seen["used_by"]), (&"parallel".into(), &serde_json::Value::Null), "{seen}");

    let mut ended = machine.exec("sleep 1000; true");
    let busy = machine.vm("exec", &["--", "true"]);
    let holder = format!("machine {} is used by `ekiden vm exec --name {0} -- sh -c sleep 1000; true` (PID", machine.0);
    assert_eq!(busy.status.code(), Some(107));
    assert!(text(&busy.stderr).contains(&holder), "{}", text(&busy.stderr));
    kill(Pid::from_raw(ended.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(ended.wait().unwrap().code(), Some(128 + 15));

    // Deaf to the first signal, it is killed by the second one.
    let mut deaf = machine.exec("trap '' TERM; sleep 1000; sleep 1000");
    for _ in 0..2 {
        kill(Pid::from_raw(deaf.id() as i32), Signal::SIGTERM).unwrap();
        thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(deaf.wait().unwrap().code(), Some(128 + 9));

    let mut killed = machine.exec("sleep 1000");
    killed.kill().unwrap();
    killed.wait().unwrap();
    let after = machine.vm("exec", &["--", "sh", "-c", "while pidof sleep; do sleep 0.1; done; echo still here"]);
    assert!(text(&after.stdout).ends_with("still here\n"), "{}", text(&after.stderr));

    let mut used = machine.exec("sleep 1000");
    let refused = machine.vm("stop", &[]);
    assert!(refused.status.code() == Some(107) && text(&refused.stderr).contains("--force"));
    let forced = text(&machine.vm("stop", &["--force"]).stdout);
    assert!(forced.contains("was ended by force: it was used by `ekiden vm exec"), "{forced}");
    assert_eq!(used.wait().unwrap().code(), Some(114));
    let stat = fs::read_to_string(format!("/proc/{}/stat", seen["pid"])).unwrap_or_default();
    // A zombie is over, too.
    assert!(stat.is_empty() || stat.contains(") Z "), "QEMU is left: {stat}");
    // What is known of a machine that was ended by force is kept for people to look at.
    let files = Path::new(seen["share"].as_str().unwrap()).parent().unwrap();
    assert!(files.join("console.log").exists());
    fs::remove_dir_all(files).unwrap();
}
