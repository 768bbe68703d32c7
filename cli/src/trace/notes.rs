//! `ekiden trace notes`: what a policy noted in its calls, put into a trace of the same time.

use std::{
    fs::File,
    io::{BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_recording::{Entry, Item, RecordedCall, RecordingError, RecordingReader};
use ekiden_trace::{Record, What, noted};

use super::until_error::{UntilError, tell_error};
use crate::{
    considered::apart,
    failure::{Exit, Failure},
    output::{Output, open_trace},
    progress::Progress,
};

#[derive(Args)]
#[command(after_help = "\
What a policy notes in a kernel or under an agent is in recordings of its calls:
`ekiden trace cat calls.ekirec` shows it. In a trace of the same time it stands
among what tasks did. A trace that `ekiden sim` wrote has it already.
Example:
  sudo ekiden run mlfq --record calls.ekirec -- \\
      ekiden trace record out -- make -j4
  ekiden trace notes out calls.ekirec -o both
  ekiden trace export both both.pftrace   and open that at
      https://ui.perfetto.dev")]
pub(super) struct NotesCommand {
    /// A trace of the kernel under the policy
    trace: PathBuf,
    /// A recording of the policy's calls at that time
    recording: PathBuf,
    /// The file to write
    #[arg(short, value_name = "OUT")]
    output: PathBuf,
}

impl NotesCommand {
    pub(super) fn run(&self) -> Result<()> {
        let output = Output::create(&self.output)?;
        let busy = Progress::brief(format!("reading {}", self.recording.display()));
        let (count, error) = put(&self.trace, &self.recording, output.clone())?;
        output.finish()?;
        drop(busy);
        eprintln!("{count} notes\nnext: ekiden trace cat {}", self.output.display());
        tell_error(error, &self.recording, &self.output)
    }
}

/// Writes the trace with what the policy noted. Returns how many notes there are, and the error that ends a recording which is damaged or
/// cut off.
fn put(trace: &Path, recording: &Path, output: impl Write) -> Result<(u64, Option<RecordingError>)> {
    let reader = open_trace(trace)?;
    let header = reader.header().clone();
    let file = File::open(recording).with_context(|| format!("cannot read {}", recording.display()))?;
    let calls = RecordingReader::new(BufReader::with_capacity(1 << 20, file));
    let calls = calls.with_context(|| recording.display().to_string())?;
    if let Some(why) = apart(&header, calls.header()) {
        return Err(Failure::new(Exit::Other, format!("{}: {why}", trace.display())).into());
    }
    let begin_ns = header.clock_ns.saturating_add(header.begins_ns);
    let mut calls = UntilError::of(calls);
    let noted = calls.by_ref().filter_map(|recorded| match recorded.item {
        Item::Entry(Entry::Call(call)) if !call.noted.is_empty() && call.time_ns >= begin_ns => Some(call),
        _ => None,
    });

    let mut output = BufWriter::with_capacity(1 << 16, output);
    let failed = || format!("cannot write what {} becomes", trace.display());
    output.write_all(&header.to_bytes()).with_context(failed)?;
    let (mut coming, mut count, mut is_between) = (noted.peekable(), 0, true);
    for record in reader {
        let record = record.with_context(|| trace.display().to_string())?;
        let until_ns = record.time_ns.saturating_add(begin_ns);
        while let Some(call) = coming.next_if(|call| is_between && call.time_ns <= until_ns) {
            count += call.noted.len() as u64;
            for record in records(&call, begin_ns, header.nr_cpus()) {
                output.write_all(&record.to_bytes()).with_context(failed)?;
            }
        }
        // Pieces stay together, and with what they are pieces of.
        is_between = !matches!(record.what, What::Considered | What::NoteName);
        output.write_all(&record.to_bytes()).with_context(failed)?;
    }
    output.flush().with_context(failed)?;
    drop(coming);
    Ok((count, calls.error))
}

/// A recording may be damaged so that it names a CPU that there is not; its notes are then about the last one.
fn records(call: &RecordedCall, begin_ns: u64, nr_cpus: u32) -> impl Iterator<Item = Record> {
    let (time_ns, cpu) = (call.time_ns - begin_ns, call.message.cpu.min(nr_cpus - 1));
    let at = Record { time_ns, cpu, what: What::Note, pid: call.message.pid, value: 0 };
    call.noted.iter().flat_map(move |note| noted(*note, at))
}
