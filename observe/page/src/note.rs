//! What the policy noted, and what was said in queues of hints, as it is drawn.

use std::collections::HashMap;

use ekiden_abi::NoteName;
use ekiden_trace::{InQueue, NoteNames, QueueNote, Record};

/// The policy noted a value, or something was said in a queue of hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// When, in nanoseconds.
    pub time_ns: u64,
    /// The CPU that the call was about.
    pub cpu: u32,
    /// About which task, or [`NO_TASK`](crate::NO_TASK).
    pub task: u32,
    /// What it is: its place in [`Model::note_kinds`](crate::Model::note_kinds).
    pub kind: u32,
    /// The value; of a queue of hints how often.
    pub value: u64,
}

/// A kind of note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoteKind {
    /// The name that is shown.
    pub name: String,
    /// Whether it is about a queue of hints, and not the policy's own.
    pub is_of_queue: bool,
}

/// Numbers the kinds of notes while the records of a trace go by.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    pieces: NoteNames,
    of_policy: HashMap<NoteName, u32>,
    of_queues: HashMap<(u32, u8), u32>,
}

impl Kinds {
    /// Kind and value of the note that is complete with this record, if one is. A kind that is new is added to `kinds`.
    pub(crate) fn noted(&mut self, record: &Record, kinds: &mut Vec<NoteKind>) -> Option<(u32, u64)> {
        let note = self.pieces.record(record)?;
        let kind = self.of_policy.entry(note.name).or_insert_with(|| add(kinds, note.name.to_string(), false));
        Some((*kind, note.value))
    }

    /// Kind and value of what was said in a queue of hints.
    pub(crate) fn said(&mut self, said: QueueNote, kinds: &mut Vec<NoteKind>) -> (u32, u64) {
        let QueueNote { queue, what, times } = said;
        let name = || match what {
            InQueue::Opened => format!("queue {queue} opened"),
            InQueue::Closed => format!("queue {queue} closed"),
            InQueue::Heard => format!("queue {queue}, hints heard"),
            InQueue::Refused => format!("queue {queue}, hints refused"),
            InQueue::Full => format!("queue {queue}, hints without room"),
            InQueue::Told => format!("queue {queue}, notices"),
            InQueue::NotTold => format!("queue {queue}, notices without room"),
        };
        let kind = self.of_queues.entry((queue, what as u8)).or_insert_with(|| add(kinds, name(), true));
        (*kind, times.into())
    }
}

fn add(kinds: &mut Vec<NoteKind>, name: String, is_of_queue: bool) -> u32 {
    kinds.push(NoteKind { name, is_of_queue });
    kinds.len() as u32 - 1
}
