//! A terminal of the guest, with this process's terminal at the other end of it.

use std::{
    io::{self, IsTerminal},
    os::fd::AsFd,
    sync::mpsc::{Receiver, TryRecvError, channel},
    thread,
};

use anyhow::{Context, Result, bail};
use ekiden_vm::{GuestCommand, Running, Size, Status, Terminal, Vm};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, poll},
    sys::signal::Signal,
    unistd::read,
};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::{
    failure::{Exit, Failure},
    machine::{passing_signals_on, print},
};

/// How often the size is looked at, and whether the command has ended.
const LOOK_MS: u16 = 100;

/// Refuses what is no terminal.
pub(super) fn check() -> Result<()> {
    for (name, is_terminal) in [("input", io::stdin().is_terminal()), ("output", io::stdout().is_terminal())] {
        if !is_terminal {
            let message = format!("standard {name} is no terminal; leave out --tty for a command without one");
            return Err(Failure::new(Exit::Usage, message).into());
        }
    }
    Ok(())
}

/// Runs a command in a terminal. Keys go to it as they are, Ctrl-C too; SIGTERM ends it.
pub(super) fn follow(vm: &Vm, mut command: GuestCommand) -> Result<Status> {
    let size = size().context("cannot tell the size of the terminal")?;
    if let Ok(kind) = std::env::var("TERM") {
        // It says which colours and keys there are.
        command = command.env("TERM", kind);
    }
    let running = vm.spawn(&command.terminal(size))?;
    // While this waits, no signal ends this process, so the terminal is put back.
    passing_signals_on(&running.signaller(), || {
        let _raw = Raw::enable().context("cannot set the terminal up")?;
        connect(running, size)
    })
}

/// Hands on output, keys and sizes until the command ends.
fn connect(running: Running, size: Size) -> Result<Status> {
    let (terminal, signaller) = (running.terminal(), running.signaller());
    thread::scope(|scope| {
        // It is dropped by a panic, too, so the thread ends in any case.
        let (alive, over) = channel::<()>();
        scope.spawn(move || match hand_on(&terminal, size, &over) {
            Ok(()) => {}
            // The terminal is gone, or the machine; the other end hears of both.
            Err(_) => signaller.signal(Signal::SIGHUP as i32).unwrap_or_default(),
        });
        let status = running.stream(&mut print);
        drop(alive);
        Ok(status?)
    })
}

/// Hands on keys and sizes until the other end of `over` is dropped; an error if the terminal cannot be read any more.
fn hand_on(terminal: &Terminal, mut size: Size, over: &Receiver<()>) -> Result<()> {
    let stdin = io::stdin();
    let mut keys = [0; 4096];
    while over.try_recv() != Err(TryRecvError::Disconnected) {
        let now = self::size()?;
        if now != size {
            terminal.resize(now)?;
            size = now;
        }
        let mut waiting = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waiting, LOOK_MS) {
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        // Not by way of `Stdin`, which would keep what does not fit from being waited for.
        match read(&stdin, &mut keys) {
            Ok(0) => bail!("the terminal has ended"),
            Ok(length) => terminal.input(&keys[..length])?,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn size() -> io::Result<Size> {
    let size = tcgetwinsize(io::stdout())?;
    Ok(Size { rows: size.ws_row, columns: size.ws_col })
}

/// While this lives, the terminal hands on each key as it is, and shows none. How it was before.
struct Raw(Termios);

impl Raw {
    fn enable() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // It may have gone away.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
