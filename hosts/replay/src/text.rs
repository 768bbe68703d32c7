//! What policies say in words while they are replayed, for their authors.

use std::cell::RefCell;
use std::fmt::Arguments;
use std::io::{self, Write};

use ekiden::Call;
use ekiden_contain::{Show, texts_of_thread};
use ekiden_host::abi::Message;

use crate::flight::under_way;

struct Text {
    to: Box<dyn Write>,
    /// The first error is kept, and ends the writing.
    result: io::Result<()>,
}

thread_local! {
    static TEXT: RefCell<Option<Text>> = const { RefCell::new(None) };
}

/// Shows the text of the calls that are replayed on this thread, while this lives.
pub(crate) struct Showing {
    before: Option<Show>,
}

impl Showing {
    pub(crate) fn begin(to: Option<Box<dyn Write>>) -> Self {
        let show = to.is_some().then_some(show as Show);
        TEXT.set(to.map(|to| Text { to, result: Ok(()) }));
        Self { before: texts_of_thread(show) }
    }

    /// The first error of writing.
    pub(crate) fn finish(self) -> io::Result<()> {
        let Some(Text { mut to, result }) = TEXT.take() else { return Ok(()) };
        result.and_then(|()| to.flush())
    }
}

impl Drop for Showing {
    fn drop(&mut self) {
        texts_of_thread(self.before.take());
        TEXT.take();
    }
}

/// Shows a text of the call that is under way.
pub(crate) fn show(message: &Message, text: Arguments<'_>) {
    // Formatting is the policy's own, and may come back here.
    let Some(mut to) = TEXT.take() else { return };
    if to.result.is_ok() {
        let call = Call::from_number(message.call).map_or("?", Call::name);
        let pid = if message.pid == 0 { String::new() } else { format!(", PID {}", message.pid) };
        let cpu = message.cpu;
        to.result = match under_way() {
            Some((number, time_ns)) => writeln!(to.to, "#{number} at {time_ns} ns: {call}(cpu {cpu}{pid}): {text}"),
            // Calls about tasks that must be waiting after a gap, or about tokens that come back.
            None => writeln!(to.to, "not recorded: {call}(cpu {cpu}{pid}): {text}"),
        };
    }
    TEXT.set(Some(to));
}
