//! What a policy noted, as records.

use ekiden_abi::{NOTE_NAME_WORDS, NoteName, Noted};

use crate::{Record, What};

/// The records of a note: `at` says when, on which CPU and about which task.
pub fn noted(note: Noted, at: Record) -> impl Iterator<Item = Record> {
    let name = (0..).zip(note.name.pieces());
    let name = name.map(move |(cpu, value)| Record { cpu, what: What::NoteName, value, ..at });
    name.chain([Record { what: What::Note, value: note.value, ..at }])
}

/// Reads the names of notes while the records of a trace go by.
#[derive(Clone, Debug, Default)]
pub struct NoteNames {
    words: [u64; NOTE_NAME_WORDS],
    len: usize,
}

impl NoteNames {
    /// The note that is complete with this record, if one is: of a damaged trace, without its name or with a part of it.
    pub fn record(&mut self, record: &Record) -> Option<Noted> {
        match record.what {
            What::NoteName => {
                if record.cpu == 0 {
                    *self = Self::default();
                }
                if let Some(word) = self.words.get_mut(self.len) {
                    (*word, self.len) = (record.value, self.len + 1);
                }
                None
            }
            What::Note => {
                let Self { words, .. } = std::mem::take(self);
                Some(Noted { name: NoteName(words), value: record.value })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_comes_back_with_its_name() {
        let at = Record { time_ns: 5, cpu: 3, what: What::Note, pid: 1_000, value: 0 };
        let mut names = NoteNames::default();
        for (name, records) in [("short", 2), ("of_three_words_or_so", 4), ("thirty_two_bytes_are_the_longest", 5)] {
            let note = Noted { name: NoteName::new(name).unwrap(), value: 9 };
            let all: Vec<Record> = noted(note, at).collect();
            assert_eq!(all.len(), records, "{name}");
            assert_eq!(all.last(), Some(&Record { value: 9, ..at }));
            let read: Vec<Noted> = all.iter().filter_map(|record| names.record(record)).collect();
            assert_eq!(read, [note]);
        }
    }

    #[test]
    fn pieces_without_end_make_no_longer_name() {
        let mut names = NoteNames::default();
        let piece =
            Record { time_ns: 0, cpu: 1, what: What::NoteName, pid: 0, value: u64::from_le_bytes(*b"12345678") };
        assert!((0..9).all(|_| names.record(&piece).is_none()));
        let note = names.record(&Record { what: What::Note, value: 7, ..piece }).unwrap();
        assert_eq!(note.to_string(), "12345678".repeat(4) + " 7");
        assert_eq!(names.record(&Record { what: What::Note, ..piece }).unwrap().name, NoteName::default());
    }
}
