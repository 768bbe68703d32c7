//! Installs by apt what this machine lacks for making modules and running them in a virtual machine, and with the
//! argument `tests` what `make test` needs besides, after saying what and why. A program of its own because the command
//! line cannot be compiled before these packages are there.

use ekiden_build::{doctor::Purpose, install_missing};
use std::process::ExitCode;

fn main() -> ExitCode {
    let purpose = if std::env::args().nth(1).as_deref() == Some("tests") { Purpose::Tests } else { Purpose::Vm };
    match install_missing(purpose, &mut |line| eprintln!("{line}")) {
        Ok(installed) if installed.packages.is_empty() => {
            eprintln!("no package is missing");
            ExitCode::SUCCESS
        }
        Ok(installed) => {
            eprintln!("installed: {}", installed.packages.join(" "));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("ekiden-setup: {error}");
            ExitCode::FAILURE
        }
    }
}
