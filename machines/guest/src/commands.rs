//! The commands that run for the host: start, output, end; and the reaping that is PID 1's duty.

use ekiden_guest::{Reply, Status, Stream};
use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, killpg},
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

/// How long the outputs must have been quiet after a command's end: a background process may hold them open for ever.
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
}

/// How far the two outputs of one command have got.
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

    /// Sends one message. With nobody connected it is lost, and so it should be.
    pub(crate) fn reply(&self, reply: &Reply) {
        let mut line = serde_json::to_vec(reply).expect("replies hold nothing that JSON cannot say");
        line.push(b'\n');
        let _ = lock(&self.port).write_all(&line);
    }

    pub(crate) fn start(self: &Arc<Self>, id: u64, argv: &[String], env: &[(String, String)], cwd: Option<&str>) {
        if let Err(error) = self.try_start(id, argv, env, cwd) {
            self.reply(&Reply::Failed { id, error });
        }
    }

    fn try_start(
        self: &Arc<Self>,
        id: u64,
        argv: &[String],
        env: &[(String, String)],
        cwd: Option<&str>,
    ) -> Result<(), String> {
        let (program, arguments) = argv.split_first().ok_or("the command is empty")?;
        let outputs = Arc::new(Outputs {
            progress: Mutex::new(Progress { open: 2, sending: 0, sent: 0 }),
            closed: Condvar::new(),
        });
        // Held while spawning, so that the reaper cannot see the end of a process before it is in the table.
        let mut running = lock(&self.running);
        let mut child = Command::new(program)
            .args(arguments)
            .env("PATH", PATH)
            .env("HOME", "/root")
            .envs(env.iter().map(|(name, value)| (name, value)))
            .current_dir(cwd.unwrap_or("/"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| format!("{program}: {error}"))?;
        let pid = Pid::from_raw(child.id() as i32);
        running.insert(pid, Running { id, outputs: Arc::clone(&outputs) });
        self.reply(&Reply::Started { id, pid: pid.as_raw() });
        self.started.notify_one();
        drop(running);
        let stdout = child.stdout.take().expect("was asked for");
        let stderr = child.stderr.take().expect("was asked for");
        self.forward(id, Stream::Stdout, stdout, &outputs);
        self.forward(id, Stream::Stderr, stderr, &outputs);
        Ok(())
    }

    /// Sends everything from one pipe to the host, in a thread of its own.
    fn forward(
        self: &Arc<Self>,
        id: u64,
        stream: Stream,
        mut pipe: impl Read + Send + 'static,
        outputs: &Arc<Outputs>,
    ) {
        let (commands, outputs) = (Arc::clone(self), Arc::clone(outputs));
        thread::spawn(move || {
            let mut buffer = [0; 16 << 10];
            while let Ok(length @ 1..) = pipe.read(&mut buffer) {
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

    pub(crate) fn kill(&self, id: u64, signal: i32) {
        let running = lock(&self.running);
        let Some(pid) = running.iter().find(|(_, command)| command.id == id).map(|(pid, _)| *pid) else {
            // It has ended; its exit message is on its way.
            return;
        };
        let sent = Signal::try_from(signal).and_then(|signal| killpg(pid, signal));
        drop(running);
        if let Err(error) = sent {
            let error = format!("signal {signal}: {error}");
            self.reply(&Reply::Failed { id, error });
        }
    }

    /// The host that started the commands has gone.
    pub(crate) fn kill_all(&self) {
        for pid in lock(&self.running).keys() {
            // It may have ended already.
            let _ = killpg(*pid, Signal::SIGKILL);
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

/// A thread that panicked while it held a lock left nothing half done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
