//! Programs that serve a virtual machine (QEMU, the share's server): started, watched and killed here.

use crate::{Result, error::Context, process};
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, SysconfVar, sysconf},
};
use std::{
    ffi::OsStr,
    fs::{self, File},
    os::{
        fd::AsRawFd,
        unix::{
            net::{UnixListener, UnixStream},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::channel,
    thread,
    time::{Duration, Instant},
};

/// A running program, known by its process id and the time it started, so that it can also be found by another process.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    pid: i32,
    /// In clock ticks after boot; tells the program from a later one with the same id.
    started: u64,
    /// Its output.
    pub(crate) log: PathBuf,
}

impl Daemon {
    /// Starts a program in its log's directory. Unless it is to outlive this process, the kernel kills it when this
    /// process ends, however that happens.
    pub(crate) fn start(
        program: &Path,
        args: &[impl AsRef<OsStr>],
        stdin: Stdio,
        log: &Path,
        outlives: bool,
    ) -> Result<Self> {
        let output = File::create(log).context("create", log)?;
        let mut command = if outlives {
            Command::new("setsid")
        } else {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL"]).process_group(0);
            command
        };
        command
            .arg(program)
            .args(args)
            // The paths of sockets may not be long, and relative ones are short.
            .current_dir(log.parent().unwrap_or(Path::new("/")))
            .stdin(stdin)
            .stdout(output.try_clone().context("open", log)?)
            .stderr(output);
        let (sender, receiver) = channel();
        // The kernel's promise is tied to the thread that starts the program, hence one that lives as long as it.
        thread::spawn(move || match command.spawn() {
            Ok(mut child) => {
                let _ = sender.send(Ok(child.id() as i32));
                // How it ended is in its log, if it said why.
                let _ = child.wait();
            }
            Err(error) => {
                let _ = sender.send(Err(process::cannot_start(&command, &error)));
            }
        });
        let pid = receiver.recv().expect("the thread sends before it ends")?;
        Ok(Self { pid, started: start_time(pid).unwrap_or_default(), log: log.to_owned() })
    }

    /// Notes in a file how to find the program again.
    pub(crate) fn save(&self, file: &Path) -> Result<()> {
        fs::write(file, format!("{} {}\n", self.pid, self.started)).context("write", file)
    }

    /// Finds a program that another process started; it may have ended since.
    pub(crate) fn load(file: &Path, log: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).context("read", file)?;
        let mut numbers = text.split_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next().and_then(std::result::Result::ok);
        let (pid, started) = (next().unwrap_or_default(), next().unwrap_or_default());
        Ok(Self { pid: i32::try_from(pid).unwrap_or_default(), started, log: log.to_owned() })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) fn is_running(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    pub(crate) fn kill(&self) {
        if self.is_running() {
            // It may end by itself at this moment.
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
            self.wait(Duration::from_secs(5));
        }
    }

    /// Waits for its end; false if it still runs after `patience`.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.is_running() {
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// The time that it has had on processors, in seconds; 0 if it has ended.
    pub(crate) fn processor_seconds(&self) -> f64 {
        let ticks = |at| field(self.pid, at).unwrap_or_default() as f64;
        let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
        (ticks(USER_TIME) + ticks(SYSTEM_TIME)) / per_second as f64
    }

    /// The end of what it printed.
    pub(crate) fn last_words(&self) -> String {
        process::last_lines(&fs::read_to_string(&self.log).unwrap_or_default(), 10)
    }
}

/// Connects to a socket, however long its directory's path is.
pub(crate) fn connect_to(socket: &Path) -> std::io::Result<UnixStream> {
    let (_directory, short) = short(socket)?;
    UnixStream::connect(short)
}

/// Makes a socket that can be connected to, however long its directory's path is.
pub(crate) fn listen_at(socket: &Path) -> std::io::Result<UnixListener> {
    let (_directory, short) = short(socket)?;
    UnixListener::bind(short)
}

/// A socket's short path, which is good while the directory is open.
fn short(socket: &Path) -> std::io::Result<(File, PathBuf)> {
    let directory = File::open(socket.parent().unwrap_or(Path::new("/")))?;
    let name = socket.file_name().unwrap_or_default();
    let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    Ok((directory, short))
}

/// Where fields are in a process's stat file, counted from its state on.
const USER_TIME: usize = 11;
const SYSTEM_TIME: usize = 12;
const START_TIME: usize = 19;

/// When a process started, in clock ticks after boot; none if there is no such process or it is a zombie.
fn start_time(pid: i32) -> Option<u64> {
    field(pid, START_TIME)
}

/// A number in a process's stat file; none if there is no such process or it is a zombie.
fn field(pid: i32, at: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    if fields.first() == Some(&"Z") {
        return None;
    }
    fields.get(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_found_again_and_killed() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let daemon = Daemon::start(Path::new("sleep"), &["60"], Stdio::null(), &log, false).unwrap();
        let file = directory.path().join("pid");
        daemon.save(&file).unwrap();
        let found = Daemon::load(&file, &log).unwrap();
        assert!(found.is_running());
        found.kill();
        assert!(!daemon.is_running());
    }

    #[test]
    fn another_process_with_the_same_id_is_not_taken_for_it() {
        let this = std::process::id() as i32;
        let daemon = Daemon { pid: this, started: start_time(this).unwrap() + 1, log: PathBuf::new() };
        assert!(!daemon.is_running());
        daemon.kill();
    }
}
