//! Installs by apt what this machine lacks for making modules and running them in a virtual machine, and with the
//! argument `tests` what `make test` needs besides, after saying what and why. A program of its own because the command
//! line cannot be compiled before these packages are there.

use ekiden_build::{STILL, doctor::Purpose, end_running, install_missing};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
    thread,
};

fn main() -> ExitCode {
    let purpose = if std::env::args().nth(1).as_deref() == Some("tests") { Purpose::Tests } else { Purpose::Vm };
    match Signals::new([SIGINT, SIGTERM, SIGHUP]) {
        Ok(mut signals) => {
            thread::spawn(move || signals.forever().for_each(|_| end()));
        }
        Err(error) => eprintln!("ekiden-setup: signals end it without a word: {error}"),
    }
    match install_missing(purpose, &mut say) {
        Ok(installed) if installed.packages.is_empty() => {
            say("no package is missing");
            ExitCode::SUCCESS
        }
        Ok(installed) => {
            say(&format!("installed: {}", installed.packages.join(" ")));
            ExitCode::SUCCESS
        }
        Err(error) => {
            say(&format!("ekiden-setup: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// On a terminal, what only says that something is not over yet makes room for the next line.
fn say(line: &str) {
    let mut stderr = std::io::stderr();
    // Without a place to say it the work is still to be done.
    let _ = match (stderr.is_terminal(), line.starts_with(STILL)) {
        (true, true) => write!(stderr, "\r\x1b[K{line}").and_then(|()| stderr.flush()),
        (true, false) => writeln!(stderr, "\r\x1b[K{line}"),
        (false, _) => writeln!(stderr, "{line}"),
    };
}

/// Says what it was doing. Apt, asked to end, finishes the package that it is at.
fn end() {
    say("ekiden-setup: ended by a signal");
    for program in end_running() {
        say(&format!("  while {}; process {}: {}", program.doing, program.pid, program.command));
    }
    std::process::exit(130);
}
