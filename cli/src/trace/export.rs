//! `ekiden trace export`: a trace in formats of others, written while it is read.

use std::{
    collections::HashMap,
    io::{BufWriter, Write},
    path::Path,
};

use anyhow::{Context, Result};
use clap::ValueEnum;
use ekiden_check::{Checker, Limits};
use ekiden_page::perfetto::Exporter;
use ekiden_trace::{NoteNames, Record, What};
use serde::Serialize;

use super::{
    parquet::Table,
    recording::Recording,
    until_error::{UntilError, tell_error},
};
use crate::{
    failure::{Exit, Failure},
    output::{Output, open_trace},
    progress::Progress,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For ui.perfetto.dev, with what the checks find
    Perfetto,
    /// A JSON object in each line
    Jsonl,
    /// A table as text
    Csv,
    /// A table, packed by columns
    Parquet,
}

impl Format {
    /// By the name of the file, which may say besides that it is compressed.
    fn of(path: &Path) -> Option<Self> {
        let name = path.to_str()?;
        let (_, extension) = name.strip_suffix(".zst").unwrap_or(name).rsplit_once('.')?;
        Some(match extension {
            "pftrace" | "perfetto-trace" | "perfetto" => Self::Perfetto,
            "jsonl" | "ndjson" => Self::Jsonl,
            "csv" => Self::Csv,
            "parquet" => Self::Parquet,
            _ => return None,
        })
    }
}

/// A record in a table.
#[derive(Serialize)]
pub(super) struct Row<'a> {
    /// When, in nanoseconds since the trace began.
    pub(super) time_ns: u64,
    /// On which CPU.
    pub(super) cpu: Option<u32>,
    /// What.
    pub(super) what: &'static str,
    /// The PID of the task; for a limit, the number of the group.
    pub(super) pid: Option<u32>,
    /// The task's name, if there is a task and it has one.
    pub(super) task: Option<&'a str>,
    /// More about it, as documented at [`What`].
    pub(super) value: i128,
    /// Numbers the words of a set of CPUs, and the halves of a limit.
    pub(super) piece: Option<u32>,
    /// What the policy calls the value, of a note.
    pub(super) note: Option<&'a str>,
}

pub(super) fn run(path: &Path, to: &Path, format: Option<Format>) -> Result<()> {
    let Some(format) = format.or_else(|| Format::of(to)) else {
        let message = format!(
            "{} does not tell the format: end it in .pftrace, .jsonl, .csv or .parquet, or add --format",
            to.display()
        );
        return Err(Failure::new(Exit::Usage, message).into());
    };
    // To a pipe or standard output as well: this is on standard error.
    let busy = Progress::brief(format!("exporting {}", path.display()));
    if let Some(recording) = Recording::open(path)? {
        return calls(path, recording, to, format);
    }
    let trace = open_trace(path)?;
    let output = Output::create(to)?;
    let out = BufWriter::with_capacity(1 << 16, output.clone());
    let failed = || format!("cannot write {}", to.display());
    let header = trace.header().clone();
    let mut trace = UntilError::of(trace);
    match format {
        Format::Perfetto => {
            let mut checker = Checker::new(&header, &Limits::default());
            let mut exporter = Exporter::new(header.nr_cpus(), out).with_context(failed)?;
            for record in &mut trace {
                exporter.record(&record, checker.view()).with_context(failed)?;
                checker.record(&record);
            }
            exporter.finish(&checker.finish()).with_context(failed)?;
        }
        Format::Jsonl => {
            let mut out = out;
            rows(&mut trace, |row| line(&mut out, &row)).with_context(failed)?;
            out.flush().with_context(failed)?;
        }
        Format::Csv => {
            let mut table = csv::Writer::from_writer(out);
            rows(&mut trace, |row| Ok(table.serialize(row)?)).with_context(failed)?;
            table.flush().with_context(failed)?;
        }
        Format::Parquet => {
            let mut table = Table::new(out).with_context(failed)?;
            rows(&mut trace, |row| table.put(&row)).with_context(failed)?;
            table.finish().with_context(failed)?;
        }
    }
    output.finish()?;
    drop(busy);
    tell_error(trace.error, path, to)?;
    match format {
        Format::Perfetto => eprintln!("next: open {} at https://ui.perfetto.dev", to.display()),
        _ => eprintln!("next: ekiden check {}", path.display()),
    }
    Ok(())
}

/// Writes a recording as a table.
fn calls(path: &Path, recording: Recording, to: &Path, format: Format) -> Result<()> {
    if !matches!(format, Format::Jsonl | Format::Csv) {
        let message = format!("{} is a recording of a policy's calls: export it as .jsonl or .csv", path.display());
        return Err(Failure::new(Exit::Usage, message).into());
    }
    let output = Output::create(to)?;
    let mut out = BufWriter::with_capacity(1 << 16, output.clone());
    let failed = || format!("cannot write {}", to.display());
    let mut recording = UntilError::of(recording);
    if format == Format::Csv {
        let mut table = csv::Writer::from_writer(out);
        recording.try_for_each(|told| table.serialize(told).with_context(failed))?;
        table.flush().with_context(failed)?;
    } else {
        recording.try_for_each(|told| line(&mut out, &told).with_context(failed))?;
        out.flush().with_context(failed)?;
    }
    output.finish()?;
    tell_error(recording.error, path, to)
}

/// Writes a JSON object in a line.
fn line(out: &mut impl Write, row: &impl Serialize) -> Result<()> {
    serde_json::to_writer(&mut *out, row)?;
    Ok(out.write_all(b"\n")?)
}

/// Hands a trace to `put`, a row for each record but those of names, which the columns `task` and `note` have. Takes memory for
/// the tasks that live.
fn rows(trace: impl Iterator<Item = Record>, mut put: impl FnMut(Row<'_>) -> Result<()>) -> Result<()> {
    let mut names: HashMap<u32, Vec<u8>> = HashMap::new();
    let mut notes = NoteNames::default();
    let mut tell = |record: &Record, names: &HashMap<u32, Vec<u8>>| {
        let note = notes.record(record).map(|note| note.name.to_string());
        if record.what == What::NoteName {
            return Ok(());
        }
        let name = record.task().and_then(|pid| names.get(&pid)).map(|name| String::from_utf8_lossy(name));
        let is_piece = record.is_piece();
        put(Row {
            time_ns: record.time_ns,
            cpu: Some(record.cpu).filter(|_| !is_piece),
            what: record.what.name(),
            pid: Some(record.pid).filter(|pid| *pid != 0),
            task: name.as_deref().map(|name| name.trim_end_matches('\0')),
            value: if record.what == What::Nice { (record.value as i64).into() } else { record.value.into() },
            piece: Some(record.cpu).filter(|_| is_piece),
            note: note.as_deref(),
        })
    };
    // Its name follows.
    let mut new: Option<Record> = None;
    for record in trace {
        if record.what == What::Name {
            let name = names.entry(record.pid).or_default();
            if record.cpu == 0 {
                name.clear();
            }
            name.extend(record.value.to_le_bytes());
            continue;
        }
        if let Some(new) = new.take() {
            tell(&new, &names)?;
        }
        match record.what {
            What::New => {
                names.remove(&record.pid);
                new = Some(record);
            }
            What::Exit => {
                tell(&record, &names)?;
                names.remove(&record.pid);
            }
            _ => tell(&record, &names)?,
        }
    }
    if let Some(new) = new {
        tell(&new, &names)?;
    }
    Ok(())
}
