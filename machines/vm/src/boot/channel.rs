//! The host's end of the channel to a guest's init: sends requests, hands each reply to the command it is about.

use super::Console;
use crate::{Error, GuestCommand, Output, Result, process::last_lines};
use ekiden_guest::{Reply, Request, Size, Status, Stream};
use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Lines of console or output that an error shows.
pub(crate) const SHOWN_LINES: usize = 30;

/// How long the guest may take to confirm that a killed command has ended.
const KILL_GRACE: Duration = Duration::from_secs(10);

/// How long a guest may take in nothing of what it is sent; one that hangs is given up then.
const SEND_MOST: Duration = Duration::from_secs(30);

/// Requests go out here; a thread of its own takes the replies in.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: UnixStream,
    /// Held while a message is written. Closing does not wait for it.
    sending: Mutex<()>,
    commands: Mutex<Table>,
    next_id: AtomicU64,
    console: Console,
}

/// Whom replies go to; `None` once the channel has broken.
type Table = Option<HashMap<u64, Sender<Reply>>>;

impl Channel {
    /// Takes over a connection and waits until init answers, for `timeout` at most. `alive` says why the machine is
    /// gone, if it is.
    pub(crate) fn open(
        stream: UnixStream,
        console: Console,
        timeout: Duration,
        alive: &dyn Fn() -> std::result::Result<(), String>,
    ) -> std::result::Result<(Arc<Self>, Vec<String>), String> {
        let reading = stream.try_clone().map_err(|error| error.to_string())?;
        stream.set_write_timeout(Some(SEND_MOST)).map_err(|error| error.to_string())?;
        // Replies to an earlier user may still be in the channel, and commands of its may end only now: ours are known by this
        // number and those that follow it.
        let nonce = RandomState::new().build_hasher().finish();
        let channel = Arc::new(Self {
            stream,
            sending: Mutex::new(()),
            commands: Mutex::new(Some(HashMap::new())),
            next_id: AtomicU64::new(nonce),
            console,
        });
        let (hello_to, hello) = std::sync::mpsc::channel();
        let reader = Arc::clone(&channel);
        thread::spawn(move || reader.read_forever(reading, nonce, &hello_to));
        channel.send(&Request::Hello { nonce }).map_err(|error| error.to_string())?;
        let deadline = Instant::now() + timeout;
        loop {
            match hello.recv_timeout(Duration::from_millis(50)) {
                Ok(problems) => return Ok((channel, problems)),
                Err(RecvTimeoutError::Timeout) => {
                    alive()?;
                    if Instant::now() > deadline {
                        return Err(format!("no answer within {timeout:?}"));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    alive()?;
                    return Err("the channel was closed".into());
                }
            }
        }
    }

    fn read_forever(&self, stream: UnixStream, nonce: u64, hello: &Sender<Vec<String>>) {
        let mut greeted = false;
        for line in BufReader::new(stream).split(b'\n') {
            let Ok(line) = line else { break };
            // The tail of a message to an earlier user makes no sense; nothing else can be wrong with a line.
            let Ok(reply) = serde_json::from_slice::<Reply>(&line) else {
                continue;
            };
            match reply {
                Reply::Hello { nonce: answered, problems, .. } if answered == nonce => {
                    greeted = true;
                    // The thread that waited may have given up.
                    let _ = hello.send(problems);
                }
                Reply::Started { id, .. }
                | Reply::Output { id, .. }
                | Reply::Exited { id, .. }
                | Reply::Failed { id, .. }
                    if greeted =>
                {
                    if let Some(command) = lock(&self.commands).as_ref().and_then(|table| table.get(&id)) {
                        // The thread that waited may have dropped its handle.
                        let _ = command.send(reply);
                    }
                }
                _ => {}
            }
        }
        *lock(&self.commands) = None;
    }

    /// Ends the connection; the guest kills what was started through it.
    pub(crate) fn close(&self) {
        // Closed already is closed as well.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    pub(crate) fn send(&self, request: &Request) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let _sending = lock(&self.sending);
        // Half a message may be in the channel now, so nothing can follow it.
        (&self.stream).write_all(&line).inspect_err(|_| self.close())
    }

    pub(crate) fn start(self: &Arc<Self>, command: &GuestCommand) -> Result<Running> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, replies) = channel();
        match lock(&self.commands).as_mut() {
            Some(table) => table.insert(id, sender),
            None => return Err(self.gone("its channel has closed")),
        };
        let request = Request::Run {
            id,
            argv: command.argv.clone(),
            env: command.env.clone(),
            cwd: command.cwd.clone(),
            terminal: command.terminal,
        };
        self.request(&request)?;
        Ok(Running {
            id,
            pid: None,
            command: command.clone(),
            replies,
            channel: Arc::clone(self),
            stdout: Vec::new(),
            stderr: Vec::new(),
            status: None,
        })
    }

    /// Sends a request about a command.
    fn request(&self, request: &Request) -> Result<()> {
        self.send(request).map_err(|error| self.gone(&error.to_string()))
    }

    fn gone(&self, reason: &str) -> Error {
        Error::Gone {
            reason: self.console.with_emulator_fault(reason),
            console: self.console.tail(SHOWN_LINES),
            log: self.console.log.clone(),
        }
    }
}

/// A command that was started in a guest. Dropping it kills the command.
#[derive(Debug)]
pub struct Running {
    id: u64,
    pid: Option<i32>,
    command: GuestCommand,
    replies: Receiver<Reply>,
    channel: Arc<Channel>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: Option<Status>,
}

impl Running {
    /// Takes in what the guest has said, waiting for `patience` at most; true if there was something.
    fn advance(&mut self, patience: Duration) -> Result<bool> {
        match self.replies.recv_timeout(patience) {
            Ok(Reply::Started { pid, .. }) => self.pid = Some(pid),
            Ok(Reply::Output { stream: Stream::Stdout, data, .. }) => self.stdout.extend(data),
            Ok(Reply::Output { data, .. }) => self.stderr.extend(data),
            Ok(Reply::Exited { status, .. }) => self.status = Some(status),
            Ok(Reply::Failed { error, .. }) => {
                // A signal to a command that runs can fail, or its input; then there is still an end to wait for.
                if self.pid.is_none() {
                    self.status = Some(Status::Code(127));
                }
                return Err(Error::Guest { command: self.command.to_string(), reason: error });
            }
            Ok(Reply::Hello { .. }) => {}
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => {
                self.status = Some(Status::Signal(9));
                return Err(self.channel.gone("its channel closed while a command ran"));
            }
        }
        Ok(true)
    }

    /// The command's process id in the guest; waits until it has started.
    pub fn pid(&mut self) -> Result<i32> {
        let deadline = Instant::now() + self.command.timeout;
        loop {
            if let Some(pid) = self.pid {
                return Ok(pid);
            }
            self.advance_until(deadline)?;
        }
    }

    /// Waits for the end and returns everything that was not taken by [`Running::wait_for`].
    pub fn wait(mut self) -> Result<Output> {
        let deadline = Instant::now() + self.command.timeout;
        while self.status.is_none() {
            self.advance_until(deadline)?;
        }
        Ok(Output {
            status: self.status.unwrap_or(Status::Code(127)),
            stdout: String::from_utf8_lossy(&self.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&self.stderr).into_owned(),
        })
    }

    /// Waits until standard output or error so far contains `text`, an end without it being an error.
    pub fn wait_for(&mut self, text: &str) -> Result<()> {
        let deadline = Instant::now() + self.command.timeout;
        loop {
            let found = |output: &[u8]| String::from_utf8_lossy(output).contains(text);
            if found(&self.stdout) || found(&self.stderr) {
                return Ok(());
            }
            if let Some(status) = self.status {
                return Err(Error::Failed {
                    command: self.command.to_string(),
                    status,
                    output: format!("{}\n(ended without saying {text:?})", self.text()),
                    console: self.channel.console.tail(SHOWN_LINES),
                });
            }
            self.advance_until(deadline)?;
        }
    }

    /// How the command ended, if it has; does not wait.
    pub fn try_status(&mut self) -> Result<Option<Status>> {
        while self.status.is_none() && self.advance(Duration::ZERO)? {}
        Ok(self.status)
    }

    /// Hands every piece of output to `sink` as it comes, until the command ends.
    pub fn stream(mut self, sink: &mut dyn FnMut(Stream, &[u8])) -> Result<Status> {
        let deadline = Instant::now() + self.command.timeout;
        loop {
            for (stream, bytes) in
                [(Stream::Stdout, std::mem::take(&mut self.stdout)), (Stream::Stderr, std::mem::take(&mut self.stderr))]
            {
                if !bytes.is_empty() {
                    sink(stream, &bytes);
                }
            }
            if let Some(status) = self.status {
                return Ok(status);
            }
            self.advance_until(deadline)?;
        }
    }

    /// Sends a signal to the command and all its children.
    pub fn signal(&self, signal: i32) -> Result<()> {
        self.signaller().signal(signal)
    }

    /// Sends signals to the command, also while another thread waits for it.
    pub fn signaller(&self) -> Signaller {
        Signaller { id: self.id, channel: Arc::clone(&self.channel), in_terminal: self.command.terminal.is_some() }
    }

    /// The user's end of its terminal, if it has one, also while another thread waits for it.
    pub fn terminal(&self) -> Terminal {
        Terminal { id: self.id, channel: Arc::clone(&self.channel) }
    }

    fn text(&self) -> String {
        let mut text = String::from_utf8_lossy(&self.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&self.stderr));
        last_lines(&text, SHOWN_LINES)
    }

    fn advance_until(&mut self, deadline: Instant) -> Result<()> {
        if self.advance(deadline.saturating_duration_since(Instant::now()))? {
            return Ok(());
        }
        self.signal(9)?;
        let grace = Instant::now() + KILL_GRACE;
        while self.status.is_none() && Instant::now() < grace {
            self.advance(grace.saturating_duration_since(Instant::now()))?;
        }
        Err(Error::Timeout {
            command: self.command.to_string(),
            timeout: self.command.timeout,
            output: self.text(),
            console: self.channel.console.tail(SHOWN_LINES),
        })
    }
}

/// Sends signals to one command.
#[derive(Clone, Debug)]
pub struct Signaller {
    id: u64,
    channel: Arc<Channel>,
    in_terminal: bool,
}

impl Signaller {
    /// Sends a signal to the command and all its children.
    pub fn signal(&self, signal: i32) -> Result<()> {
        self.channel.request(&Request::Kill { id: self.id, signal })
    }

    /// Whether the command has a terminal, in which a shell ignores SIGTERM, but not SIGHUP.
    pub fn in_terminal(&self) -> bool {
        self.in_terminal
    }

    /// Gives the command up, and the connection to its machine: a thread that waits for it is told that the machine is
    /// gone.
    pub fn abandon(&self) {
        self.channel.close();
    }
}

/// The user's end of one command's terminal. What the command writes there is its standard output.
#[derive(Clone, Debug)]
pub struct Terminal {
    id: u64,
    channel: Arc<Channel>,
}

impl Terminal {
    /// Types something. It waits for the command to read it; if it is too much for that, waiting for the command fails.
    pub fn input(&self, data: &[u8]) -> Result<()> {
        self.channel.request(&Request::Input { id: self.id, data: data.to_vec() })
    }

    /// Changes the size, of which the command is told.
    pub fn resize(&self, size: Size) -> Result<()> {
        self.channel.request(&Request::Resize { id: self.id, size })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.status.is_none() {
            // The machine may be gone, and the command with it.
            let _ = self.signal(9);
        }
        if let Some(table) = lock(&self.channel.commands).as_mut() {
            table.remove(&self.id);
        }
    }
}

/// A thread that panicked while it held a lock left nothing half done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
