//! The CPUs at which a policy looked, in a trace: a replay of its calls tells them.

use std::{
    fs::File,
    io::{BufReader, BufWriter, Write},
    path::Path,
};

use anyhow::{Context, Result};
use ekiden::Call;
use ekiden_recording::RecordingReader;
use ekiden_replay::{Considered, Outcome};
use ekiden_trace::{Record, What, masks};

use crate::{
    failure::{Exit, Failure},
    output::open_trace,
    policies,
};

/// Writes the trace with the CPUs that the policy considered. Returns in how many decisions, and what the replay found.
pub fn put(trace: &Path, recording: &Path, output: impl Write) -> Result<(u64, Outcome)> {
    let reader = open_trace(trace)?;
    let header = reader.header().clone();
    let open = || {
        let file = File::open(recording).with_context(|| format!("cannot read {}", recording.display()))?;
        anyhow::Ok(BufReader::with_capacity(1 << 20, file))
    };
    let of_calls = RecordingReader::new(open()?).with_context(|| recording.display().to_string())?;
    if let Some(why) = apart(&header, of_calls.header()) {
        return Err(Failure::new(Exit::Other, format!("{}: {why}", trace.display())).into());
    }
    let begin_ns = header.clock_ns.saturating_add(header.begins_ns);
    let mut decisions: Vec<Considered> = Vec::new();
    let outcome = policies::replay()
        .considered(open()?, |decision| decisions.extend((decision.call.time_ns >= begin_ns).then_some(decision)))
        .with_context(|| recording.display().to_string())?;
    decisions.sort_by_key(|decision| decision.call.time_ns);

    let mut output = BufWriter::with_capacity(1 << 16, output);
    let failed = || format!("cannot write what {} becomes", trace.display());
    output.write_all(&header.to_bytes()).with_context(failed)?;
    let (mut coming, mut count) = (decisions.into_iter().peekable(), 0);
    let mut is_between = true;
    for record in reader {
        let record = record.with_context(|| trace.display().to_string())?;
        let until_ns = record.time_ns.saturating_add(begin_ns);
        while let Some(decision) = coming.next_if(|decision| is_between && decision.call.time_ns <= until_ns) {
            count += 1;
            for record in records(&decision, begin_ns, header.nr_cpus()) {
                output.write_all(&record.to_bytes()).with_context(failed)?;
            }
        }
        // What the kernel's own balancing looked at is in pieces, which stay together.
        is_between = record.what != What::Considered;
        output.write_all(&record.to_bytes()).with_context(failed)?;
    }
    output.flush().with_context(failed)?;
    Ok((count, outcome))
}

/// Why a trace and a recording cannot be of the same time.
pub fn apart(trace: &ekiden_trace::Header, recording: &ekiden_recording::Header) -> Option<&'static str> {
    let is_in_kernel = trace.host == ekiden_trace::Host::Kernel;
    if is_in_kernel != (recording.host != ekiden_recording::Host::Simulator) {
        return Some("one of the two is of a kernel, and the other one is not");
    }
    if recording.topology().map_or(true, |topology| topology.nr_cpus() != trace.nr_cpus()) {
        return Some("the recording is of a machine with another number of CPUs");
    }
    (is_in_kernel && trace.clock_ns == 0).then_some("it does not say when it was recorded: record it again")
}

/// Records like those of the kernel's own balancing: the CPUs, then the one that looked at them.
fn records(decision: &Considered, begin_ns: u64, nr_cpus: u32) -> impl Iterator<Item = Record> {
    let Considered { call, cpus } = decision;
    let time_ns = call.time_ns - begin_ns;
    // A task that wakes up looks for a place, and a CPU for work.
    let pid = if call.message.call == Call::SelectTaskRq as u32 { call.message.pid } else { 0 };
    let considered = (0..).zip(masks(cpus, nr_cpus)).map(move |(piece, value)| Record {
        time_ns,
        cpu: piece,
        what: What::Considered,
        pid,
        value,
    });
    considered.chain([Record {
        time_ns,
        cpu: call.message.cpu,
        what: What::Kick,
        pid: 0,
        value: call.message.cpu.into(),
    }])
}
