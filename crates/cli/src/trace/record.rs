//! `ekiden trace record`: a trace of the kernel of this machine, under whichever scheduler.

use std::{ffi::OsString, io::Write, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;
use ekiden_loader::Recorder;

use crate::{
    child::{self, Events},
    output::Output,
};

/// Memory for what happens within a second.
const RING_BYTES: u32 = 64 << 20;

#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo ekiden trace record out -- make -j4            under the scheduler that there is
  sudo ekiden trace record out                        until Ctrl-C
  ekiden vm start; ekiden vm run wfq -- ekiden trace record /host/out -- ekiden-load run messaging
                                                      and out is in the directory that `ekiden vm status` shows
  ekiden trace info out; ekiden check out             what is in it, and whether CPUs idled while tasks waited
Switches, wake-ups, moves and forks of all tasks are recorded, by BPF programs on the kernel's tracepoints.")]
pub(super) struct Record {
    /// Where to write the trace
    trace: PathBuf,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Record {
    pub(super) fn run(self) -> Result<ExitCode> {
        // Before anything runs: to find at the end that it cannot be written would be late.
        let mut output = Output::create(&self.trace)?;
        let events = Events::listen()?;
        let mut recorder = Recorder::start(RING_BYTES)?;
        let code = child::run(&events, &self.command, true, || Ok(recorder.take().map(drop)?))?;
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        let recording = recorder.stop(&words.join(" "))?;
        output
            .write_all(recording.trace.as_bytes())
            .with_context(|| format!("cannot write {}", self.trace.display()))?;
        output.finish()?;
        if recording.lost > 0 {
            bail!("{} records were lost: the trace has holes; record less at a time", recording.lost);
        }
        eprintln!("next: ekiden trace info {}", self.trace.display());
        Ok(code)
    }
}
