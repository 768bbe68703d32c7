//! Init process (PID 1) of a guest: mounts what a Linux program expects, then runs commands for the host.
//!
//! Nothing here polls or keeps a timer while a host is connected, so an idle init does not disturb a measurement.
#![forbid(unsafe_code)]

mod commands;
mod mounts;
mod terminal;

use commands::Commands;
use ekiden_guest::{PORT_NAME, Reply, Request};
use nix::sys::reboot::{RebootMode, reboot};
use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader},
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};
use terminal::Event;

fn main() {
    if std::process::id() != 1 {
        eprintln!("ekiden-guest is the init process of Ekiden's virtual machines; start one with `ekiden vm`");
        std::process::exit(2);
    }
    let problems = mounts::prepare();
    for problem in &problems {
        println!("ekiden-guest: {problem}");
    }
    match serve(&problems) {
        Ok(()) => {}
        Err(error) => println!("ekiden-guest: no channel to the host: {error}"),
    }
    power_off();
}

/// Answers the host for as long as the machine runs.
fn serve(problems: &[String]) -> io::Result<()> {
    let path = port_path()?;
    let port = File::options().read(true).write(true).open(&path)?;
    let commands = Arc::new(Commands::new(port.try_clone()?));
    let reaper = Arc::clone(&commands);
    thread::spawn(move || reaper.reap_forever());
    println!("ekiden-guest: ready");
    let mut lines = BufReader::new(port);
    let mut line = String::new();
    loop {
        line.clear();
        match lines.read_line(&mut line) {
            // No host is connected. The port cannot be waited on in this state, hence the pause; nothing is measured now.
            Ok(0) => {
                commands.kill_all();
                thread::sleep(Duration::from_millis(100));
            }
            Ok(_) => match serde_json::from_str(&line) {
                Ok(Request::Hello { nonce }) => {
                    // An earlier host may have left without our noticing, while the machine was paused.
                    commands.kill_all();
                    commands.reply(&Reply::Hello { nonce, release: release(), problems: problems.to_vec() });
                }
                Ok(Request::Run { id, argv, env, cwd, terminal }) => {
                    commands.start(id, &argv, &env, cwd.as_deref(), terminal);
                }
                Ok(Request::Input { id, data }) => commands.tell_terminal(id, Event::Input(data)),
                Ok(Request::Resize { id, size }) => commands.tell_terminal(id, Event::Resize(size)),
                Ok(Request::Kill { id, signal }) => commands.kill(id, signal),
                Ok(Request::Poweroff) => return Ok(()),
                Err(error) => println!("ekiden-guest: request ignored: {error}"),
            },
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                println!("ekiden-guest: request ignored: {error}");
            }
            Err(error) => return Err(error),
        }
    }
}

/// The device of the port called [`PORT_NAME`]; there is no udev here that would make a link by name.
fn port_path() -> io::Result<PathBuf> {
    for entry in fs::read_dir("/sys/class/virtio-ports")? {
        let entry = entry?;
        if fs::read_to_string(entry.path().join("name"))?.trim() == PORT_NAME {
            return Ok(PathBuf::from("/dev").join(entry.file_name()));
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("no virtio-serial port is called {PORT_NAME}")))
}

fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

fn power_off() {
    nix::unistd::sync();
    // Only a failure returns; then PID 1 ends and the kernel panics, which ends the machine as well.
    let Err(error) = reboot(RebootMode::RB_POWER_OFF);
    println!("ekiden-guest: power off: {error}");
}
