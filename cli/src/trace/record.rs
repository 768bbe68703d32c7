//! `ekiden trace record`: a trace of the kernel of this machine, under whichever scheduler.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write},
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use ekiden_loader::{Raw, Recorder, scheduler};

use crate::{
    child::{self, Events},
    output::Output,
    progress::Progress,
    trace::time_ns,
};

/// Memory of each CPU for what happens until it is taken, and how often it is: enough for two million records a second. To
/// get up more often would be in the way of what is recorded.
const RING_BYTES: u32 = 8 << 20;
const EVERY: Duration = Duration::from_millis(100);

/// How much is written to a file, or read, at a time.
const BUFFER: usize = 1 << 18;

#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo ekiden trace record out -- make -j4   under the scheduler that there is
  sudo ekiden trace record out               until Ctrl-C
  sudo ekiden trace record out --for 10s     for ten seconds
  ekiden vm start; ekiden vm run wfq -- \\
      ekiden trace record /host/out -- ekiden-load run messaging
      and out is in the directory that `ekiden vm status` shows
  ekiden trace info out; ekiden check out
      what is in it, and whether CPUs idled while tasks waited
It takes little memory, as what the kernel writes is put beside the trace as it
is, and made the trace of at the end. It needs root and BTF, but no sched_ext
and none of our modules. Switches, wake-ups, moves and forks of all tasks are
recorded, by BPF programs on the kernel's tracepoints.")]
pub(super) struct RecordTrace {
    /// Where to write the trace
    trace: PathBuf,
    /// For how long, as in 10s or 5min; by default until the command ends, or Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = time_ns)]
    for_ns: Option<u64>,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl RecordTrace {
    pub(super) fn run(self) -> Result<ExitCode> {
        // Before anything runs: to find at the end that it cannot be written would be late.
        let output = Output::create_private(&self.trace)?;
        let events = Events::listen()?;
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        let mut recorder = Recorder::load(RING_BYTES)?;
        let mut trace = CallWriter::new(output.clone());
        // To make records of the trace of it takes several times as long, and would be in the way of what is recorded.
        let mut raw = CallWriter::new(output.scratch()?);
        let mut present = Vec::new();
        recorder.begin(&mut |record| present.extend(record.to_bytes()))?;
        // It says when the recording began.
        trace.put(&recorder.header(&words.join(" "))?.to_bytes());
        trace.put(&present);
        let what = format!("recording {}; Ctrl-C ends it", scheduler());
        let (start, most) = (Instant::now(), self.for_ns.map_or(Duration::MAX, Duration::from_nanos));
        let code = child::until(&events, &self.command, &what, EVERY, &mut || {
            recorder.take_raw(&mut |record| raw.put(&record.to_bytes()));
            raw.error.is_some() || start.elapsed() >= most
        })?;
        let lost = recorder.end_raw(&mut |record| raw.put(&record.to_bytes()));
        let telling = Progress::brief("making the trace of what was recorded");
        let told = raw.finish().and_then(|raw| tell(&mut recorder, raw, &mut trace));
        told.and_then(|()| trace.finish()).with_context(|| format!("cannot write {}", self.trace.display()))?;
        output.finish()?;
        drop(telling);
        if lost > 0 {
            bail!("{lost} records were lost: the trace has holes; record less at a time");
        }
        eprintln!("next: ekiden trace info {}", self.trace.display());
        Ok(code)
    }
}

/// Makes the trace of what was taken raw.
fn tell(recorder: &mut Recorder, mut raw: File, trace: &mut CallWriter<Output>) -> io::Result<()> {
    raw.rewind()?;
    let mut raw = BufReader::with_capacity(BUFFER, raw);
    let mut bytes = [0; Raw::LEN];
    while trace.error.is_none() && !raw.fill_buf()?.is_empty() {
        raw.read_exact(&mut bytes)?;
        recorder.tell(Raw::from_bytes(bytes), &mut |record| trace.put(&record.to_bytes()));
    }
    Ok(())
}

/// Writes a file. After an error, nothing more is written.
struct CallWriter<W: Write> {
    output: BufWriter<W>,
    error: Option<io::Error>,
}

impl<W: Write> CallWriter<W> {
    fn new(output: W) -> Self {
        Self { output: BufWriter::with_capacity(BUFFER, output), error: None }
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if self.error.is_none() {
            self.error = self.output.write_all(bytes).err();
        }
    }

    fn finish(self) -> io::Result<W> {
        self.error.map_or(Ok(()), Err)?;
        self.output.into_inner().map_err(io::IntoInnerError::into_error)
    }
}
