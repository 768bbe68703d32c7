//! A machine that stays, as people use it: its name, who uses it, and the ways in which that ends. It boots a stock
//! kernel.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    os::fd::OwnedFd,
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use nix::{
    pty::{Winsize, openpty},
    sys::{
        signal::{Signal, kill},
        termios::{LocalFlags, Termios, tcgetattr},
    },
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

    /// A command in the guest that has begun, which it says itself: its line has to print "begun".
    fn exec(&self, line: &str) -> Child {
        let mut command = self.command("exec", &["--", "sh", "-c", line]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        let (says, said) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            let _ = printed.read_line(&mut line);
            let _ = says.send(line);
            // Without a reader, SIGPIPE would end what writes.
            io::copy(&mut printed, &mut io::sink())
        });
        assert_eq!(said.recv_timeout(Duration::from_secs(30)).as_deref(), Ok("begun\n"), "{line}");
        let holder = format!("(PID {}, since ", child.id());
        let status = text(&self.vm("status", &[]).stdout);
        assert!(status.contains(&holder), "{status}");
        child
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It is gone already if the test has passed.
        let _ = self.command("stop", &["--force"]).output();
    }
}

/// A terminal of this test's own, of 33 lines and 111 columns, and all that was shown there.
struct Screen {
    keys: File,
    other_end: OwnedFd,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Screen {
    fn new() -> Self {
        let size = Winsize { ws_row: 33, ws_col: 111, ws_xpixel: 0, ws_ypixel: 0 };
        let ends = openpty(&size, None).unwrap();
        let keys = File::from(ends.master);
        let (mut output, shown) = (keys.try_clone().unwrap(), Arc::<Mutex<Vec<u8>>>::default());
        let seen = Arc::clone(&shown);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                seen.lock().unwrap().extend(&buffer[..length]);
            }
        });
        Self { keys, other_end: ends.slave, shown }
    }

    fn end(&self) -> OwnedFd {
        self.other_end.try_clone().unwrap()
    }

    fn settings(&self) -> Termios {
        tcgetattr(&self.other_end).unwrap()
    }

    /// Runs a command of the guest, with this terminal as its own.
    fn exec(&self, machine: &Machine, command: &[&str]) -> Child {
        let exec = machine.command("exec", &[&["--tty", "--"], command].concat());
        let mut here = Command::new("setsid");
        here.arg("--ctty").arg(exec.get_program()).args(exec.get_args());
        here.stdin(self.end()).stdout(self.end()).stderr(self.end()).spawn().unwrap()
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until something is shown, and forgets what there was.
    fn expect(&self, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let mut shown = self.shown.lock().unwrap();
            if text(&shown).contains(what) {
                return shown.clear();
            }
            assert!(Instant::now() < deadline, "{what} is not shown, but {}", text(&shown));
            drop(shown);
            thread::sleep(Duration::from_millis(20));
        }
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

    let mut ended = machine.exec("echo begun; sleep 1000; true");
    let busy = machine.vm("exec", &["--", "true"]);
    let holder = format!(
        "machine {} is used by `ekiden vm exec --name {0} -- sh -c echo begun; sleep 1000; true` (PID",
        machine.0
    );
    assert_eq!(busy.status.code(), Some(107));
    assert!(text(&busy.stderr).contains(&holder), "{}", text(&busy.stderr));
    kill(Pid::from_raw(ended.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(ended.wait().unwrap().code(), Some(128 + 15));

    // Deaf to the first signal, it is killed by the second one.
    let mut deaf = machine.exec("trap '' TERM; echo begun; sleep 1000; sleep 1000");
    for _ in 0..2 {
        kill(Pid::from_raw(deaf.id() as i32), Signal::SIGTERM).unwrap();
        thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(deaf.wait().unwrap().code(), Some(128 + 9));

    let mut killed = machine.exec("echo begun; sleep 1000");
    killed.kill().unwrap();
    killed.wait().unwrap();
    let after = machine.vm("exec", &["--", "sh", "-c", "while pidof sleep; do sleep 0.1; done; echo still here"]);
    assert!(text(&after.stdout).ends_with("still here\n"), "{}", text(&after.stderr));

    let refused = machine.vm("exec", &["--tty", "--", "true"]);
    assert!(refused.status.code() == Some(2) && text(&refused.stderr).contains("leave out --tty"));
    let mut screen = Screen::new();
    let before = screen.settings();
    let mut shell = screen.exec(&machine, &["sh"]);
    // What speaks last is what Ctrl-C is for; before it, the shell would take the key.
    screen.press("stty size; tty; sh -c 'echo $((5 * 5)); sleep 1000'\r");
    screen.expect("33 111\r\n/dev/pts/0\r\n25\r\n");
    assert!(!screen.settings().local_flags.intersects(LocalFlags::ISIG | LocalFlags::ECHO));
    screen.press("\x03");
    assert!(Command::new("stty").args(["rows", "44", "cols", "122"]).stdin(screen.end()).status().unwrap().success());
    screen.press("until [ \"$(stty size)\" = '44 122' ]; do sleep 0.1; done; echo $((6 * 7)); exit 7\r");
    screen.expect("42\r\n");
    assert_eq!(shell.wait().unwrap().code(), Some(7));
    assert_eq!(screen.settings(), before);

    // An interactive shell ignores that signal; that its terminal is gone, it does not ignore.
    let mut shell = screen.exec(&machine, &["sh"]);
    screen.press("echo $((7 * 8))\r");
    screen.expect("56\r\n");
    kill(Pid::from_raw(shell.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(shell.wait().unwrap().code(), Some(128 + 1));
    assert_eq!(screen.settings(), before);

    let mut used = screen.exec(&machine, &["sh", "-c", "echo $((6 * 7)); sleep 1000"]);
    screen.expect("42\r\n");
    let refused = machine.vm("stop", &[]);
    assert!(refused.status.code() == Some(107) && text(&refused.stderr).contains("--force"));
    let forced = text(&machine.vm("stop", &["--force"]).stdout);
    assert!(forced.contains("was ended by force: it was used by `ekiden vm exec"), "{forced}");
    assert_eq!(used.wait().unwrap().code(), Some(114));
    assert_eq!(screen.settings(), before);
    let stat = fs::read_to_string(format!("/proc/{}/stat", seen["pid"])).unwrap_or_default();
    // A zombie is over, too.
    assert!(stat.is_empty() || stat.contains(") Z "), "QEMU is left: {stat}");
    // The files of a machine that was ended by force are kept for people to look at.
    let files = Path::new(seen["share"].as_str().unwrap()).parent().unwrap();
    assert!(files.join("console.log").exists());
    fs::remove_dir_all(files).unwrap();
}
