//! Which tasks a command is asked about, by the names that a trace has.

use ekiden_loader::Whom;
use ekiden_trace::Record;

/// The kernel keeps so many bytes of a name.
const NAME_LEN: usize = 15;

/// A task's name, which comes in pieces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Name(Vec<u8>);

impl Name {
    /// One more piece; the first one begins a new name.
    pub(crate) fn add(&mut self, record: &Record) {
        if record.cpu == 0 {
            self.0.clear();
        }
        self.0.extend(record.value.to_le_bytes().into_iter().take_while(|byte| *byte != 0));
    }

    /// Whether the command is asked about the task of this name and `pid`.
    pub(crate) fn is_of(&self, whom: &Whom, pid: u32) -> bool {
        let is_named = |wanted: &String| {
            let wanted = &wanted.as_bytes()[..wanted.len().min(NAME_LEN)];
            self.0.iter().take(NAME_LEN).eq(wanted)
        };
        whom.pid.is_none_or(|wanted| wanted == pid) && whom.name.as_ref().is_none_or(is_named)
    }
}
