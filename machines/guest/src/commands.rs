//! The commands that run for the host: start, output, end; and the reaping that is PID 1's duty.

use crate::terminal::{self, Event, Terminal};
use ekiden_guest::{Reply, Size, Status, Stream};
use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill, killpg},
        wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    },
    unistd::Pid,
};
use std::{
    collections::HashMap,
    fs::File,
    io::{Read, Write},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

const PATH: &str = "/bin:/sbin:/usr/bin:/usr/sbin:/host/bin";

/// How long the outputs must have been quiet after a command's end: a background process may hold them open without end.
const DRAIN: Duration = Duration::from_millis(200);

/// All running commands and the channel that their output goes to.
pub(crate) struct Commands {
    port: Mutex<File>,
    running: Mutex<HashMap<Pid, Running>>,
    started: Condvar,
}

struct Running {
    id: u64,
    outputs: Arc<Outputs>,
    terminal: Option<Terminal>,
}

/// How far the outputs of one command have got.
struct Outputs {
    progress: Mutex<Progress>,
    closed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Progress {
    /// Outputs that have not reached their end.
    open: usize,
    /// Outputs of which a piece is on its way to the host.
    sending: usize,
    /// Pieces sent so far.
    sent: u64,
}

impl Commands {
    pub(crate) fn new(port: File) -> Self {
        Self { port: Mutex::new(port), running: Mutex::default(), started: Condvar::new() }
    }

    /// Sends one message. Without a connected host it is lost, and so it should be.
    pub(crate) fn reply(&self, reply: &Reply) {
        let mut line = serde_json::to_vec(reply).expect("replies hold nothing that JSON cannot say");
        line.push(b'\n');
        let _ = lock(&self.port).write_all(&line);
    }

    pub(crate) fn start(
        self: &Arc<Self>,
        id: u64,
        argv: &[String],
        env: &[(String, String)],
        cwd: Option<&str>,
        terminal: Option<Size>,
    ) {
        if let Err(error) = self.try_start(id, argv, env, cwd, terminal) {
            self.reply(&Reply::Failed { id, error });
        }
    }

    fn try_start(
        self: &Arc<Self>,
        id: u64,
        argv: &[String],
        env: &[(String, String)],
        cwd: Option<&str>,
        terminal: Option<Size>,
    ) -> Result<(), String> {
        let (program, arguments) = argv.split_first().ok_or("the command is empty")?;
        let failed = |error: &dyn std::fmt::Display| format!("{program}: {error}");
        let mut sources: Vec<(Stream, Box<dyn Read + Send>)> = Vec::new();
        let (mut command, terminal) = match terminal {
            Some(size) => {
                let (terminal, mut command) = Terminal::open(size).map_err(|error| failed(&error))?;
                command.arg(program);
                sources.push((Stream::Stdout, Box::new(terminal.screen().map_err(|error| failed(&error))?)));
                (command, Some(terminal))
            }
            None => {
                let mut command = Command::new(program);
                command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
                (command, None)
            }
        };
        command
            .args(arguments)
            .env("PATH", PATH)
            .env("HOME", "/root")
            .envs(env.iter().map(|(name, value)| (name, value)))
            .current_dir(cwd.unwrap_or("/"));
        // Held while spawning, so that the reaper cannot see the end of a process before it is in the table.
        let mut running = lock(&self.running);
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        // As long as we have the command's end of a terminal, ours has no end.
        drop(command);
        sources.extend(child.stdout.take().map(|pipe| (Stream::Stdout, Box::new(pipe) as _)));
        sources.extend(child.stderr.take().map(|pipe| (Stream::Stderr, Box::new(pipe) as _)));
        let outputs = Arc::new(Outputs {
            progress: Mutex::new(Progress { open: sources.len(), sending: 0, sent: 0 }),
            closed: Condvar::new(),
        });
        let pid = Pid::from_raw(child.id() as i32);
        running.insert(pid, Running { id, outputs: Arc::clone(&outputs), terminal });
        self.reply(&Reply::Started { id, pid: pid.as_raw() });
        self.started.notify_one();
        drop(running);
        for (stream, source) in sources {
            self.forward(id, stream, source, &outputs);
        }
        Ok(())
    }

    /// Sends everything from a pipe or a terminal to the host, in a thread of its own. Reading a terminal that no process has open any more
    /// is an error, and its end.
    fn forward(self: &Arc<Self>, id: u64, stream: Stream, mut source: Box<dyn Read + Send>, outputs: &Arc<Outputs>) {
        let (commands, outputs) = (Arc::clone(self), Arc::clone(outputs));
        thread::spawn(move || {
            let mut buffer = [0; 16 << 10];
            while let Ok(length @ 1..) = source.read(&mut buffer) {
                lock(&outputs.progress).sending += 1;
                let data = buffer[..length].to_vec();
                commands.reply(&Reply::Output { id, stream, data });
                let mut progress = lock(&outputs.progress);
                progress.sending -= 1;
                progress.sent += 1;
            }
            lock(&outputs.progress).open -= 1;
            outputs.closed.notify_all();
        });
    }

    /// Hands on what the user of a command's terminal did.
    pub(crate) fn tell_terminal(&self, id: u64, event: Event) {
        let told = match lock(&self.running).values().find(|command| command.id == id) {
            Some(Running { terminal: Some(terminal), .. }) => terminal.tell(event),
            Some(_) => Err("it has no terminal"),
            // It has ended; its exit message is on its way.
            None => Ok(()),
        };
        if let Err(error) = told {
            self.reply(&Reply::Failed { id, error: error.into() });
        }
    }

    pub(crate) fn kill(&self, id: u64, signal: i32) {
        let running = lock(&self.running);
        let Some((pid, command)) = running.iter().find(|(_, command)| command.id == id) else {
            // It has ended; its exit message is on its way.
            return;
        };
        let sent = Signal::try_from(signal).and_then(|signal| command.signal(*pid, signal));
        drop(running);
        if let Err(error) = sent {
            let error = format!("signal {signal}: {error}");
            self.reply(&Reply::Failed { id, error });
        }
    }

    /// The host that started the commands has gone.
    pub(crate) fn kill_all(&self) {
        for (pid, command) in lock(&self.running).iter() {
            // It may have ended already.
            let _ = command.signal(*pid, Signal::SIGKILL);
        }
    }

    /// Collects every process that ends: commands, and orphans that were handed to PID 1.
    pub(crate) fn reap_forever(self: Arc<Self>) {
        loop {
            // Only look: the process must stay a zombie until the table is locked, see `try_start`.
            let ended = match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
                Ok(status) => status.pid(),
                Err(Errno::ECHILD) => {
                    let running = lock(&self.running);
                    if running.is_empty() {
                        drop(self.started.wait(running));
                    }
                    continue;
                }
                Err(_) => continue,
            };
            let Some(pid) = ended else { continue };
            let mut running = lock(&self.running);
            let status = match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, code)) => Status::Code(code),
                Ok(WaitStatus::Signaled(_, signal, _)) => Status::Signal(signal as i32),
                _ => continue,
            };
            if let Some(command) = running.remove(&pid) {
                let commands = Arc::clone(&self);
                thread::spawn(move || commands.finish(&command, status));
            }
        }
    }

    fn finish(&self, command: &Running, status: Status) {
        let outputs = &command.outputs;
        let mut progress = lock(&outputs.progress);
        let mut before = None;
        while progress.open > 0 && (progress.sending > 0 || before != Some(*progress)) {
            before = Some(*progress);
            progress = outputs.closed.wait_timeout(progress, DRAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(progress);
        self.reply(&Reply::Exited { id: command.id, status });
    }
}

impl Running {
    /// Sends a signal to the command and its children. A shell with a terminal has each of its jobs in a group of its own.
    fn signal(&self, pid: Pid, signal: Signal) -> nix::Result<()> {
        if self.terminal.is_none() {
            return killpg(pid, signal);
        }
        let jobs = terminal::groups_of_session(pid).into_iter().filter(|group| *group != pid);
        // The shell first, which could start another job. In the first moment of a command it is not yet a session, nor a group.
        let sent = killpg(pid, signal).or_else(|_| kill(pid, signal));
        for group in jobs {
            // It may have ended since.
            let _ = killpg(group, signal);
        }
        sent
    }
}

/// A thread that panicked while it held a lock left nothing half done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
