//! `ekiden top`: a page that is refreshed. Its text is a pure function of two looks at the machine.

#[cfg(feature = "bpf")]
mod draw;
#[cfg(feature = "bpf")]
mod page;
#[cfg(feature = "bpf")]
mod sample;
#[cfg(feature = "bpf")]
mod show;
#[cfg(all(test, feature = "bpf"))]
mod tests;
#[cfg(feature = "bpf")]
mod watch;

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Args;

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden top                         policies and CPUs, every second
  ekiden top --interval 5 --json     for programs: one object every five seconds
  ekiden top --once --interval 0.5   one page as text

Keys: q ends, s sorts by something else, space pauses. `share` is a policy's
part of the time in which CPUs ran tasks of policies, by ticks; `moves/s` are
waiting tasks that it moved to another CPU; `waiting` is how many tasks waited
for a CPU on average. As root and with BTF, it looks at the run queues fifty
times a second, under whichever scheduler: a CPU is `wasted` when it is idle
while a task waits that could use it; `waited` are those who waited the longest
since the last page.")]
pub(crate) struct Top {
    /// Seconds from one page to the next
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = seconds)]
    interval: Duration,
    /// Print one page and end
    #[arg(long)]
    once: bool,
    /// Print each page as a JSON object on a line
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 0.1..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("a number of seconds, 0.1 to 3600".into()),
    }
}

impl Top {
    #[cfg(feature = "bpf")]
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.show()
    }

    #[cfg(not(feature = "bpf"))]
    pub(crate) fn run(self) -> Result<ExitCode> {
        Err(ekiden_loader::LoadError::WithoutBpf.into())
    }
}
