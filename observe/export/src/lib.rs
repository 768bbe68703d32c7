//! Traces in formats of others: Perfetto's, and tables with a row for each record. Each is written while the trace is read,
//! and takes memory for the tasks that live, whatever the length of the trace.
#![forbid(unsafe_code)]

mod parquet;
mod perfetto;
mod table;

use std::io::{self, Write};

use ekiden_check::{Checker, Limits};
use ekiden_trace::{Header, Record};
use serde::Serialize;

use self::parquet::Table;
pub use self::{perfetto::Perfetto, table::Row};

/// Writes a trace for <https://ui.perfetto.dev>, with what the checks find. It is written in small pieces: put a
/// [`BufWriter`](io::BufWriter) around it.
///
/// # Errors
/// When nothing more can be written.
pub fn perfetto(header: &Header, records: impl Iterator<Item = Record>, out: impl Write) -> io::Result<()> {
    let mut checker = Checker::new(header, &Limits::default());
    let mut exporter = Perfetto::new(header.nr_cpus(), out)?;
    for record in records {
        exporter.record(&record, checker.view())?;
        checker.record(&record);
    }
    exporter.finish(&checker.finish())
}

/// Writes a JSON object for each [`Row`], in a line.
///
/// # Errors
/// As [`perfetto`].
pub fn jsonl(header: &Header, records: impl Iterator<Item = Record>, mut out: impl Write) -> io::Result<()> {
    table::rows(header, records, |row| json_line(&mut out, &row))?;
    out.flush()
}

/// Writes something as a JSON object in a line.
///
/// # Errors
/// As [`perfetto`].
pub fn json_line(out: &mut impl Write, row: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, row)?;
    out.write_all(b"\n")
}

/// Writes a [`Row`] in a line, by commas, after a line with their names.
///
/// # Errors
/// As [`perfetto`].
pub fn csv(header: &Header, records: impl Iterator<Item = Record>, out: impl Write) -> io::Result<()> {
    let mut table = csv::Writer::from_writer(out);
    table::rows(header, records, |row| Ok(table.serialize(row)?))?;
    table.flush()
}

/// Writes [`Row`]s by columns, for programs that read a few of them.
///
/// # Errors
/// As [`perfetto`].
pub fn parquet(header: &Header, records: impl Iterator<Item = Record>, out: impl Write + Send) -> io::Result<()> {
    let mut table = Table::new(out).map_err(io::Error::other)?;
    table::rows(header, records, |row| table.put(&row).map_err(io::Error::other))?;
    table.finish().map_err(io::Error::other)
}
