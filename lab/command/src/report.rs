//! Pages of what is in memory, as files that stand alone.

use std::path::Path;

use anyhow::Result;
use ekiden_check::{Checker, Limits, Verdict};
use ekiden_page::{Builder, Model, Notes, REPORT_BYTES_MAX, report};
use ekiden_trace::{Header, Record};

use crate::output;

/// What people call the machine, if it is one that has a name.
pub fn machine_name(header: &Header) -> Option<String> {
    let mut named = ekiden_machine::PRESETS.iter().map(|(name, _)| *name);
    let is_it =
        |name: &str| ekiden_machine::preset(name).is_some_and(|machine| Header::of(&machine).cpus == header.cpus);
    named.find(|name| is_it(name)).map(str::to_owned)
}

/// Writes a page of what is in memory. Returns what the checks have found in it.
pub fn write_report(
    path: &Path,
    header: &Header,
    records: impl Iterator<Item = Record>,
    limits: &Limits,
    notes: Notes,
) -> Result<Verdict> {
    let mut checker = Checker::new(header, limits);
    let mut builder = Builder::new(header);
    for record in records {
        builder.record(&record);
        checker.record(&record);
    }
    let verdict = checker.verdict();
    write_page(path, header, &builder.finish(), &verdict, notes)?;
    Ok(verdict)
}

/// Writes the page with a verdict that was found otherwise.
pub fn write_page(path: &Path, header: &Header, model: &Model, verdict: &Verdict, notes: Notes) -> Result<()> {
    let notes = Notes { machine: notes.machine.or_else(|| machine_name(header)), ..notes };
    output::write(path, report(header, model, verdict, &notes, REPORT_BYTES_MAX)?.as_bytes())
}
