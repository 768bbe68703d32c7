//! A command that runs under something that has to be watched meanwhile.

use std::{
    ffi::OsString,
    io,
    os::unix::{net::UnixStream, process::ExitStatusExt},
    process::{Command, ExitCode, ExitStatus},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    failure::{Exit, Failure},
    progress::Progress,
    signals::{self, Handling},
};

/// How often what has to be watched is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How long a command may take to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(3);

enum Event {
    Ended(io::Result<ExitStatus>),
    Signal(i32),
    Asked(UnixStream),
    Changed,
}

/// Has the loop of [`answering`] look at what it watches.
#[derive(Clone)]
pub(crate) struct LookAgain(Sender<Event>);

impl LookAgain {
    pub(crate) fn say(&self) {
        // When that loop has ended, it has looked for the last time.
        let _ = self.0.send(Event::Changed);
    }
}

/// What happens. From the moment that this is made, a signal does not end this process at once: what was begun is undone
/// in order.
pub(crate) struct Events {
    sender: Sender<Event>,
    receiver: Receiver<Event>,
    _signals: Handling,
}

impl Events {
    pub(crate) fn listen() -> Result<Self> {
        let (sender, receiver) = channel();
        let told = sender.clone();
        // An error says that the receiver is gone: then no event is needed any more.
        let signals = signals::handle(move |signal| told.send(Event::Signal(signal)).unwrap_or_default())
            .context("cannot watch for signals")?;
        Ok(Self { sender, receiver, _signals: signals })
    }

    pub(crate) fn look_again(&self) -> LookAgain {
        LookAgain(self.sender.clone())
    }

    /// Passes the connection of a process that asks to the loop of [`answering`]. False when that loop has ended.
    pub(crate) fn asked(&self) -> impl Fn(UnixStream) -> bool + Send + use<> {
        let sender = self.sender.clone();
        move |stream| sender.send(Event::Asked(stream)).is_ok()
    }
}

/// Runs a command until it ends, a signal comes, or `is_over` says so, which is asked once per `every`; then the command is
/// ended too. Without a command, likewise.
pub(crate) fn until(
    events: &Events,
    command: &[OsString],
    what: &str,
    every: Duration,
    is_over: &mut dyn FnMut() -> bool,
) -> Result<ExitCode> {
    let (sender, events) = (events.sender.clone(), &events.receiver);
    let child = spawn(command, sender)?;
    let _waiting = waiting(command, what);
    loop {
        match events.recv_timeout(every) {
            Ok(Event::Ended(status)) => return Ok(code_of(status.context("cannot wait for the command")?)),
            Ok(Event::Signal(signal)) => {
                end(child, signal, events);
                return Ok(ExitCode::from(128_u8.saturating_add(signal as u8)));
            }
            Err(_) if is_over() => {
                end(child, Signal::SIGTERM as i32, events);
                return Ok(ExitCode::SUCCESS);
            }
            Ok(Event::Asked(_) | Event::Changed) | Err(_) => {}
        }
    }
}

/// Shows what is done until Ctrl-C. A command has output of its own.
fn waiting(command: &[OsString], what: &str) -> Option<Progress> {
    command.is_empty().then(|| Progress::open(what))
}

/// Starts a command, if there is one; `sender` is told when it ends.
fn spawn(command: &[OsString], sender: Sender<Event>) -> Result<Option<Pid>> {
    let [program, args @ ..] = command else { return Ok(None) };
    let mut child = Command::new(program).args(args).spawn().map_err(|error| cannot_run(program, &error))?;
    let pid = Pid::from_raw(child.id() as i32);
    thread::spawn(move || sender.send(Event::Ended(child.wait())));
    Ok(Some(pid))
}

/// Runs a command to its end, or without one until a signal comes. `watch` is called every second; an error of its ends
/// the command too, unless `keep_going`, and is what is returned in the end.
pub(crate) fn run(
    events: &Events,
    command: &[OsString],
    what: &str,
    keep_going: bool,
    watch: impl FnMut() -> Result<()>,
) -> Result<ExitCode> {
    run_or_wait(events, command, what, keep_going, Some(LOOK), watch, drop)
}

/// The same, but `watch` is called after each [`LookAgain::say`] and at the end, and `answer` for each [connection](Events::asked).
pub(crate) fn answering(
    events: &Events,
    command: &[OsString],
    what: &str,
    keep_going: bool,
    watch: impl FnMut() -> Result<()>,
    answer: impl FnMut(UnixStream),
) -> Result<ExitCode> {
    run_or_wait(events, command, what, keep_going, None, watch, answer)
}

fn run_or_wait(
    events: &Events,
    command: &[OsString],
    what: &str,
    keep_going: bool,
    every: Option<Duration>,
    mut watch: impl FnMut() -> Result<()>,
    mut answer: impl FnMut(UnixStream),
) -> Result<ExitCode> {
    let (sender, events) = (events.sender.clone(), &events.receiver);
    let child = spawn(command, sender)?;
    let waiting = waiting(command, what);
    let mut trouble = None;
    let code = loop {
        let event = match every {
            Some(every) => events.recv_timeout(every),
            None => events.recv().map_err(Into::into),
        };
        match event {
            Ok(Event::Ended(status)) => break code_of(status.context("cannot wait for the command")?),
            Ok(Event::Signal(signal)) => {
                end(child, signal, events);
                break ExitCode::from(128_u8.saturating_add(signal as u8));
            }
            // What was asked for may have ended it.
            Ok(Event::Asked(stream)) => answer(stream),
            Ok(Event::Changed) | Err(RecvTimeoutError::Timeout) => {}
            // The handler of signals holds a sender.
            Err(RecvTimeoutError::Disconnected) => break Exit::Other.into(),
        }
        if trouble.is_some() {
            continue;
        }
        if let Err(error) = watch() {
            eprintln!("ekiden: {}", crate::failure::explain(&error));
            let taken_out = |what: &str| Failure::new(Exit::of(&error), what);
            if child.is_none() || !keep_going {
                end(child, Signal::SIGTERM as i32, events);
                return Err(taken_out("stopped; `ekiden status` shows the reason again").into());
            }
            eprintln!("ekiden: the command still runs, under the kernel's own scheduler");
            trouble = Some(taken_out("the command ended without the policy; `ekiden status` shows the reason again"));
        }
    };
    drop(waiting);
    // It may have happened since the last look.
    match trouble {
        Some(trouble) => Err(trouble.into()),
        None => watch().map(|()| code),
    }
}

/// Ends a command that got a signal, or should: at the terminal, Ctrl-C goes to the command as well, so it is given time
/// to end by itself before it is told.
fn end(child: Option<Pid>, signal: i32, events: &Receiver<Event>) {
    let Some(child) = child else { return };
    let steps =
        [(signal != Signal::SIGINT as i32).then_some(Signal::SIGTERM), Some(Signal::SIGTERM), Some(Signal::SIGKILL)];
    for signal in steps {
        if let Some(signal) = signal {
            // It may have ended meanwhile.
            let _ = kill(child, signal);
        }
        if ends_within(PATIENCE, events) {
            return;
        }
    }
}

/// Whether the command ends in time. Another signal meanwhile means that the next step is wanted now.
fn ends_within(patience: Duration, events: &Receiver<Event>) -> bool {
    let until = Instant::now() + patience;
    loop {
        match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Event::Ended(_)) => return true,
            Ok(Event::Signal(_)) | Err(_) => return false,
            Ok(Event::Asked(_) | Event::Changed) => {}
        }
    }
}

fn cannot_run(program: &OsString, error: &io::Error) -> Failure {
    let program = program.to_string_lossy();
    if error.kind() == io::ErrorKind::NotFound {
        return Failure::new(Exit::NotFound, format!("there is no command `{program}`; check its name and PATH"));
    }
    Failure::new(Exit::CannotRun, format!("cannot run `{program}`: {error}; check its permissions"))
}

/// What a shell would say of it.
fn code_of(status: ExitStatus) -> ExitCode {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(code as u8),
        (None, Some(signal)) => ExitCode::from(128_u8.saturating_add(signal as u8)),
        (None, None) => Exit::Other.into(),
    }
}
