//! `ekiden trace export`: a trace in formats of others, written while it is read.

use std::{
    io::{BufWriter, Write},
    path::Path,
};

use anyhow::{Context, Result};
use clap::ValueEnum;
use ekiden_export::json_line;

use super::{
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
    let header = trace.header().clone();
    let mut trace = UntilError::of(trace);
    match format {
        Format::Perfetto => ekiden_export::perfetto(&header, &mut trace, out),
        Format::Jsonl => ekiden_export::jsonl(&header, &mut trace, out),
        Format::Csv => ekiden_export::csv(&header, &mut trace, out),
        Format::Parquet => ekiden_export::parquet(&header, &mut trace, out),
    }
    .with_context(|| format!("cannot write {}", to.display()))?;
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
        recording.try_for_each(|told| json_line(&mut out, &told).with_context(failed))?;
        out.flush().with_context(failed)?;
    }
    output.finish()?;
    tell_error(recording.error, path, to)
}
