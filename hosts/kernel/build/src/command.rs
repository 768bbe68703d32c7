//! Runs programs of this machine and turns their failure into an [`Error`].

use crate::{Error, Progress, Result};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs::File,
    io::{self, ErrorKind, Read},
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::{
        Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};
use wait_timeout::ChildExt;

/// Lines of a program's output that are worth showing.
const SHOWN_LINES: usize = 60;

/// How the lines begin that only say that something is not over yet. What shows them may replace one by the next.
pub const STILL: &str = "still ";

/// For how long nothing may be said of a program that runs; with [`LOOK_MS`] it stays below two seconds.
const SILENCE: Duration = Duration::from_millis(1800);

/// How often a program is looked at, in milliseconds.
const LOOK_MS: u8 = 100;

/// The most that a pipe may have room for (`/proc/sys/fs/pipe-max-size`).
const PIPE_BYTES: usize = 1 << 20;

/// How long a program that was told to end may take for it.
const GRACE: Duration = Duration::from_secs(10);

/// Where programs may be that only root has in `PATH`.
const SYSTEM_PATHS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Where a program is, in `PATH` or where root's programs are.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_PATHS.map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// Runs to the end, with the outputs captured.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| cannot_start(command, &error))?;
    if output.status.success() { Ok(output) } else { Err(failed(command, &output)) }
}

/// Runs to the end and returns the standard output.
pub(crate) fn stdout(command: &mut Command) -> Result<String> {
    output(command).map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs until the end, or until the limit, at which the program is stopped. `what` says what it does in words ("compiling
/// …"), and `progress` is told of it all the time. `told` makes of a line that the program prints what `progress` is to be
/// told at once. A program that fails is no error here.
pub(crate) fn watched(
    command: &mut Command,
    what: &str,
    limit: Duration,
    progress: Progress<'_>,
    told: &dyn Fn(&str) -> Option<String>,
) -> Result<Output> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| cannot_start(command, &error))?;
    let _running = Registered::new(&child, what, command);
    let failed = |error: io::Error| cannot_start(command, &error);
    let mut stdout = Lines::of(child.stdout.take()).map_err(failed)?;
    let mut stderr = Lines::of(child.stderr.take()).map_err(failed)?;
    let start = Instant::now();
    let mut last_said = start;
    loop {
        // Before its output is read: of one that has ended, all of it is there then. What it has left behind may keep the pipes open for as long as
        // it likes.
        let ended = child.try_wait().map_err(failed)?;
        if ended.is_none() {
            wait(&mut child, &stdout, &stderr).map_err(failed)?;
        }
        for output in [&mut stdout, &mut stderr] {
            output.read(&mut |line| {
                if let Some(text) = told(String::from_utf8_lossy(line).trim_end()) {
                    progress(&text);
                    last_said = Instant::now();
                }
            });
        }
        if let Some(status) = ended {
            return Ok(Output { status, stdout: stdout.bytes, stderr: stderr.bytes });
        }
        if last_said.elapsed() >= SILENCE {
            progress(&format!("{STILL}{what}, {} s", start.elapsed().as_secs()));
            last_said = Instant::now();
        }
        if start.elapsed() >= limit {
            stop(&mut child);
            let text = String::from_utf8_lossy(&[stdout.bytes, stderr.bytes].concat()).into_owned();
            return Err(Error::TimedOut {
                doing: what.to_owned(),
                command: line(command),
                limit,
                output: last_lines(&text, 5),
            });
        }
    }
}

/// Until it writes something or ends, but not for longer than [`LOOK_MS`].
fn wait(child: &mut Child, stdout: &Lines, stderr: &Lines) -> io::Result<()> {
    let pipes = [stdout, stderr].into_iter().filter_map(|lines| lines.pipe.as_ref());
    let mut pipes: Vec<PollFd<'_>> = pipes.map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)).collect();
    if pipes.is_empty() {
        child.wait_timeout(Duration::from_millis(LOOK_MS.into()))?;
        return Ok(());
    }
    match poll(&mut pipes, PollTimeout::from(LOOK_MS)) {
        // A signal, perhaps that a program has ended.
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// One of the two outputs of a program, as far as it was read.
struct Lines {
    /// None once it has ended.
    pipe: Option<File>,
    bytes: Vec<u8>,
    /// Where the first line begins that is not whole yet.
    rest: usize,
}

impl Lines {
    fn of(pipe: Option<impl Into<OwnedFd>>) -> io::Result<Self> {
        let pipe = pipe.map(|pipe| File::from(pipe.into()));
        if let Some(pipe) = &pipe {
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(Self { pipe, bytes: Vec::new(), rest: 0 })
    }

    /// Reads what is there, and no more than there can be at one time; `told` hears of each line.
    fn read(&mut self, told: &mut dyn FnMut(&[u8])) {
        let mut piece = [0; 1 << 12];
        let end = self.bytes.len() + PIPE_BYTES;
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut piece) {
                Ok(0) => self.pipe = None,
                Ok(length) => self.bytes.extend(&piece[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // Then there is nothing more to read.
                Err(_) => self.pipe = None,
            }
            if self.bytes.len() >= end {
                break;
            }
        }
        while let Some(length) = self.bytes[self.rest..].iter().position(|byte| *byte == b'\n') {
            told(&self.bytes[self.rest..self.rest + length]);
            self.rest += length + 1;
        }
    }
}

/// Does something that is no single program, and tells `progress` of it all the time.
pub(crate) fn while_telling<T: Send>(what: &str, progress: Progress<'_>, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let (sender, done) = mpsc::channel();
        let start = Instant::now();
        let worker = scope.spawn(move || {
            let result = work();
            // The receiver is gone if `progress` has panicked.
            let _ = sender.send(());
            result
        });
        while done.recv_timeout(SILENCE) == Err(RecvTimeoutError::Timeout) {
            progress(&format!("{STILL}{what}, {} s", start.elapsed().as_secs()));
        }
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs it like [`watched`], telling only that it is still at it; a program that fails is an error.
pub(crate) fn patient(command: &mut Command, what: &str, limit: Duration, progress: Progress<'_>) -> Result<Output> {
    let output = watched(command, what, limit, progress, &|_| None)?;
    if output.status.success() { Ok(output) } else { Err(failed(command, &output)) }
}

/// Ends a program: politely, as apt must not be interrupted in the middle of a package, then otherwise.
fn stop(child: &mut Child) {
    // Whatever fails here, the program has ended by itself or is root's, which only root can end.
    if let Ok(pid) = i32::try_from(child.id()) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    if !matches!(child.wait_timeout(GRACE), Ok(Some(_))) && child.kill().is_ok() {
        let _ = child.wait();
    }
}

/// A program that runs for us and takes its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its process.
    pub pid: u32,
    /// Its task in words.
    pub doing: String,
    /// The command line.
    pub command: String,
}

static RUNNING: Mutex<Vec<Running>> = Mutex::new(Vec::new());

/// The programs that run for us now and may take long. A process that a signal ends names them.
pub fn running() -> Vec<Running> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Asks them to end, as nothing waits for them any more, and says which they were.
pub fn end_running() -> Vec<Running> {
    let running = running();
    for program in &running {
        if let Ok(pid) = i32::try_from(program.pid) {
            // One that has ended meanwhile, or is root's, cannot be asked.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }
    running
}

struct Registered(u32);

impl Registered {
    fn new(child: &Child, doing: &str, command: &Command) -> Self {
        let running = Running { pid: child.id(), doing: doing.to_owned(), command: line(command) };
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).push(running);
        Self(child.id())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).retain(|running| running.pid != self.0);
    }
}

pub(crate) fn cannot_start(command: &Command, error: &std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::NotFound {
        return Error::MissingProgram(command.get_program().to_string_lossy().into_owned());
    }
    Error::Program { command: line(command), status: error.to_string(), output: String::new() }
}

pub(crate) fn failed(command: &Command, output: &Output) -> Error {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Error::Program { command: line(command), status: output.status.to_string(), output: last_lines(&text, SHOWN_LINES) }
}

/// A command as it would be typed.
pub(crate) fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The end of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_stopped_and_named_with_what_it_was_doing() {
        let start = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", "echo began; sleep 60"]);
        let error = patient(&mut command, "resting", Duration::from_millis(500), &mut |_| ()).unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
        let message = error.to_string();
        assert!(["resting", "500ms", "sh -c", "began"].iter().all(|word| message.contains(word)), "{message}");
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_program_that_says_nothing_is_spoken_of_within_two_seconds() {
        let mut said = vec![Instant::now()];
        let mut doing = None;
        patient(Command::new("sleep").arg("5"), "resting", Duration::from_secs(60), &mut |text| {
            assert!(text.starts_with("still resting, "), "{text}");
            doing = running().into_iter().find(|running| running.command == "sleep 5");
            said.push(Instant::now());
        })
        .unwrap();
        said.push(Instant::now());
        assert!(said.windows(2).all(|pair| pair[1] - pair[0] < Duration::from_secs(3)), "{said:?}");
        assert_eq!((said.len(), doing.unwrap().doing), (4, "resting".to_owned()));
        assert!(running().iter().all(|running| running.command != "sleep 5"));
    }

    #[test]
    fn what_a_program_leaves_behind_does_not_keep_its_end_from_being_seen() {
        let start = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 20 & echo out"]);
        let output = patient(&mut command, "leaving", Duration::from_secs(15), &mut |_| ()).unwrap();
        assert_eq!(output.stdout, b"out\n");
        assert!(start.elapsed() < Duration::from_secs(15));
    }

    /// It has ended long before its last lines are read.
    #[test]
    fn all_that_a_program_has_written_is_read_however_late() {
        let late = |line: &str| {
            if line == "first" {
                thread::sleep(Duration::from_millis(1500));
            }
            None
        };
        let mut command = Command::new("sh");
        command.args(["-c", "echo first; seq 5000; printf last; sleep 20 &"]);
        let output = watched(&mut command, "writing", Duration::from_secs(15), &mut |_| (), &late).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with("first\n1\n") && text.ends_with("\n5000\nlast"), "{} bytes", text.len());
    }

    #[test]
    fn a_program_that_fails_shows_the_end_of_its_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "seq 100; echo broken >&2; exit 3"]);
        let message = output(&mut command).unwrap_err().to_string();
        assert!(message.contains("exit status: 3") && message.contains("100\nbroken"), "{message}");
        assert!(!message.contains("\n9\n"), "{message}");
    }

    #[test]
    fn what_is_worth_telling_of_a_programs_lines_is_told() {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one >&2; echo out; echo two >&2; exit 3"]);
        let told = |line: &str| line.contains('o').then(|| line.to_uppercase());
        let output =
            watched(&mut command, "counting", Duration::from_secs(60), &mut |line| lines.push(line.to_owned()), &told);
        let output = output.unwrap();
        lines.sort();
        assert_eq!((lines.join(" "), output.status.code()), ("ONE OUT TWO".to_owned(), Some(3)));
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"one\ntwo\n"[..]));
    }

    #[test]
    fn a_missing_program_is_called_missing() {
        let error = stdout(&mut Command::new("no-such-program-of-ekiden")).unwrap_err();
        assert!(matches!(error, Error::MissingProgram(_)), "{error}");
    }
}
