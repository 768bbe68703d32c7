//! `ekiden trace record`: a trace of the kernel of this machine, under whichever scheduler.

use std::{
    ffi::OsString,
    io::{self, BufWriter, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use ekiden_loader::{Recorder, scheduler};
use ekiden_trace::{Header, Record};

use crate::{
    child::{self, Events},
    output::Output,
};

/// Memory of each CPU for what happens until it is taken, and how often it is: enough for two million records a second. To
/// get up more often would be in the way of what is recorded.
const RING_BYTES: u32 = 8 << 20;
const EVERY: Duration = Duration::from_millis(100);

#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo ekiden trace record out -- make -j4            under the scheduler that there is
  sudo ekiden trace record out                        until Ctrl-C
  ekiden vm start; ekiden vm run wfq -- ekiden trace record /host/out -- ekiden-load run messaging
                                                      and out is in the directory that `ekiden vm status` shows
  ekiden trace info out; ekiden check out             what is in it, and whether CPUs idled while tasks waited
It is written while it is recorded, in little memory, and needs root and BTF, but no sched_ext and none of our modules.
Switches, wake-ups, moves and forks of all tasks are recorded, by BPF programs on the kernel's tracepoints.")]
pub(super) struct RecordTrace {
    /// Where to write the trace
    trace: PathBuf,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl RecordTrace {
    pub(super) fn run(self) -> Result<ExitCode> {
        // Before anything runs: to find at the end that it cannot be written would be late.
        let output = Output::create(&self.trace)?;
        let events = Events::listen()?;
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        let mut recorder = Recorder::load(RING_BYTES)?;
        let mut file = File::begin(output.clone(), &recorder.header(&words.join(" "))?);
        recorder.begin(&mut |record| file.put(record))?;
        if self.command.is_empty() {
            eprintln!("recording {}; Ctrl-C ends it", scheduler());
        }
        let code = child::until(&events, &self.command, EVERY, &mut || {
            recorder.take(&mut |record| file.put(record));
            file.error.is_some()
        })?;
        let lost = recorder.end(&mut |record| file.put(record));
        file.finish().with_context(|| format!("cannot write {}", self.trace.display()))?;
        output.finish()?;
        if lost > 0 {
            bail!("{lost} records were lost: the trace has holes; record less at a time");
        }
        eprintln!("next: ekiden trace info {}", self.trace.display());
        Ok(code)
    }
}

/// A trace on its way to its file. After an error, nothing more is written.
struct File {
    output: BufWriter<Output>,
    error: Option<io::Error>,
}

impl File {
    fn begin(output: Output, header: &Header) -> Self {
        let mut file = Self { output: BufWriter::with_capacity(1 << 18, output), error: None };
        file.error = file.output.write_all(&header.to_bytes()).err();
        file
    }

    fn put(&mut self, record: Record) {
        if self.error.is_none() {
            self.error = self.output.write_all(&record.to_bytes()).err();
        }
    }

    fn finish(mut self) -> io::Result<()> {
        self.error.take().map_or(Ok(()), Err)?;
        self.output.flush()
    }
}
