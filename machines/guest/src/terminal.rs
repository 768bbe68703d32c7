//! The terminal of a command: a pseudo-terminal of the guest, at the other end of which the host's user sits.

use ekiden_guest::Size;
use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    pty::{Winsize, openpty},
    unistd::{Pid, getpgid, getsid},
};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    process::{Command, Stdio},
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    thread,
};

const BUSYBOX: &str = "/bin/busybox";

/// Most events that wait for a command that does not read, beyond the 64 KiB that the kernel keeps for it.
const WAITING_MOST: usize = 1024;

/// What the user does.
pub(crate) enum Event {
    Input(Vec<u8>),
    Resize(Size),
}

/// Our end of a terminal.
pub(crate) struct Terminal {
    master: File,
    events: SyncSender<Event>,
}

impl Terminal {
    /// Makes a terminal, and what runs a program in it, which is still to be added as arguments.
    pub(crate) fn open(size: Size) -> io::Result<(Self, Command)> {
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        let ends = openpty(&size, None)?;
        for end in [&ends.master, &ends.slave] {
            // Other commands must not keep it open.
            fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        }
        // It makes the command the leader of a session, whose terminal is the one that it reads.
        let mut command = Command::new(BUSYBOX);
        command.args(["setsid", "-c", "--"]);
        command.stdin(ends.slave.try_clone()?).stdout(ends.slave.try_clone()?).stderr(ends.slave);
        let master = File::from(ends.master);
        let hand = master.try_clone()?;
        let (events, waiting) = sync_channel(WAITING_MOST);
        // In a thread of its own, as a write blocks when the command does not read.
        thread::spawn(move || carry_out(hand, &waiting));
        Ok((Self { master, events }, command))
    }

    /// Reads what the command writes.
    pub(crate) fn screen(&self) -> io::Result<File> {
        self.master.try_clone()
    }

    /// Hands an event on, without waiting for the command.
    pub(crate) fn tell(&self, event: Event) -> Result<(), &'static str> {
        match self.events.try_send(event) {
            Err(TrySendError::Full(_)) => Err("too much was typed that it has not read"),
            // The terminal was closed by its last process.
            Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
        }
    }
}

/// Does what the user does, in its order, until the command has ended.
fn carry_out(mut terminal: File, events: &Receiver<Event>) {
    for event in events {
        match event {
            Event::Input(data) => {
                if terminal.write_all(&data).is_err() {
                    // No process has it open any more.
                    return;
                }
            }
            Event::Resize(size) => {
                if let Err(error) = resize(&terminal, size) {
                    println!("ekiden-guest: size of a terminal: {error}");
                }
            }
        }
    }
}

/// By a program, as the system call can only be made by unsafe code.
fn resize(terminal: &File, size: Size) -> io::Result<()> {
    let mut stty = Command::new(BUSYBOX)
        .args(["stty", "rows", &size.rows.to_string(), "cols", &size.columns.to_string()])
        .stdin(terminal.try_clone()?)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    // PID 1's reaper takes its exit code; its end is that of its output.
    if let Some(mut output) = stty.stdout.take() {
        io::copy(&mut output, &mut io::sink())?;
    }
    Ok(())
}

/// The process groups of the session that a process leads.
pub(crate) fn groups_of_session(leader: Pid) -> BTreeSet<Pid> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let processes = names.filter_map(|name| name.to_str()?.parse().ok()).map(Pid::from_raw);
    let members = processes.filter(|process| getsid(Some(*process)) == Ok(leader));
    members.filter_map(|process| getpgid(Some(process)).ok()).collect()
}
