//! A trace as rows of a table.

use std::io;

use ekiden_trace::{Header, Machine, NoteNames, Record, What};
use serde::Serialize;

/// A record in a table.
#[derive(Serialize)]
pub struct Row<'a> {
    /// When, in nanoseconds since the trace began.
    pub time_ns: u64,
    /// On which CPU.
    pub cpu: Option<u32>,
    /// What.
    pub what: &'static str,
    /// The PID of the task; for a limit, the number of the group.
    pub pid: Option<u32>,
    /// The task's name, if there is a task and it has one.
    pub task: Option<&'a str>,
    /// More about it, as documented at [`What`].
    pub value: i128,
    /// Numbers the words of a set of CPUs, and the halves of a limit.
    pub piece: Option<u32>,
    /// What the policy calls the value, of a note.
    pub note: Option<&'a str>,
}

/// Hands a trace to `put`, a row for each record but those of names, which the columns `task` and `note` have.
pub(crate) fn rows(
    header: &Header,
    records: impl Iterator<Item = Record>,
    put: impl FnMut(Row<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let mut writer = Rows { machine: Machine::new(header), notes: NoteNames::default(), put };
    // Its name follows.
    let mut new: Option<Record> = None;
    for record in records {
        if let Some(new) = new.take_if(|_| record.what != What::Name) {
            writer.tell(&new)?;
        }
        match record.what {
            What::Name => {}
            What::New => new = Some(record),
            // It is gone afterwards.
            _ => writer.tell(&record)?,
        }
        writer.machine.apply(&record);
    }
    new.map_or(Ok(()), |new| writer.tell(&new))
}

struct Rows<P> {
    machine: Machine,
    notes: NoteNames,
    put: P,
}

impl<P: FnMut(Row<'_>) -> io::Result<()>> Rows<P> {
    fn tell(&mut self, record: &Record) -> io::Result<()> {
        let note = self.notes.record(record).map(|note| note.name.to_string());
        if record.what == What::NoteName {
            return Ok(());
        }
        let name = record.task().and_then(|pid| self.machine.task(pid)).map(|task| task.name());
        let is_piece = record.is_piece();
        (self.put)(Row {
            time_ns: record.time_ns,
            cpu: Some(record.cpu).filter(|_| !is_piece),
            what: record.what.name(),
            pid: Some(record.pid).filter(|pid| *pid != 0),
            task: name.as_deref().filter(|name| !name.is_empty()),
            value: if record.what == What::Nice { (record.value as i64).into() } else { record.value.into() },
            piece: Some(record.cpu).filter(|_| is_piece),
            note: note.as_deref(),
        })
    }
}
