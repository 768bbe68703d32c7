//! What policies say of their decisions: notes go to the trace and to the recording, text to standard error.

use std::cell::RefCell;
use std::fmt::Arguments;
use std::io::{self, Write};
use std::mem;
use std::sync::Arc;

use ekiden::{Call, CpuId};
use ekiden_contain::{Show, texts_of_thread};
use ekiden_host::Host;
use ekiden_host::abi::{Message, Noted};
use ekiden_recording::{Hear, notes_of_thread};
use ekiden_trace::noted;

use crate::kernel::Kernel;
use crate::masks::SimHost;
use crate::recorded;
use crate::trace::{Record, What};

thread_local! {
    static SPOKEN: RefCell<Spoken> = RefCell::default();
}

/// Notes and text that the policies of this thread's simulation are to give.
#[derive(Default)]
struct Spoken {
    /// Notes that the trace does not have yet, if it is to have them.
    notes: Option<Vec<At>>,
    text: Option<Text>,
}

/// A note, and the CPU and the task that the call was about.
struct At {
    cpu: CpuId,
    pid: u32,
    note: Noted,
}

struct Text {
    to: Box<dyn Write>,
    clock: Arc<SimHost>,
    /// The first error is kept, and ends the writing.
    result: io::Result<()>,
}

impl Text {
    fn line(&mut self, message: &Message, text: Arguments<'_>) {
        if self.result.is_err() {
            return;
        }
        let now_ns = self.clock.now_ns();
        let (us, ns) = (now_ns / 1_000, now_ns % 1_000);
        let call = Call::from_number(message.call).map_or("?", Call::name);
        let pid = if message.pid == 0 { String::new() } else { format!(" pid {}", message.pid) };
        self.result = writeln!(self.to, "{us:>10}.{ns:03} [{:>3}] {call}{pid}: {text}", message.cpu);
    }
}

/// Listens to the policies of the simulation that runs on this thread, while this lives.
pub(crate) struct Listening {
    notes: Option<Hear>,
    texts: Option<Show>,
}

impl Listening {
    /// Notes go to the recording, if there is one, and to the trace, if that is wanted; they and text go to `text`, if it is.
    pub(crate) fn begin(to_trace: bool, text: Option<Box<dyn Write>>, clock: &Arc<SimHost>) -> Self {
        let text = text.map(|to| Text { to, clock: clock.clone(), result: Ok(()) });
        let shows = text.is_some().then_some(show as Show);
        SPOKEN.set(Spoken { notes: to_trace.then(Vec::new), text });
        Self { notes: notes_of_thread(Some(hear)), texts: texts_of_thread(shows) }
    }

    /// The first error of writing text.
    pub(crate) fn finish(self) -> io::Result<()> {
        let Some(Text { mut to, result, .. }) = SPOKEN.take().text else { return Ok(()) };
        result.and_then(|()| to.flush())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        notes_of_thread(self.notes.take());
        texts_of_thread(self.texts.take());
        SPOKEN.take();
    }
}

fn hear(message: &Message, note: Noted) {
    recorded::note(&note);
    SPOKEN.with_borrow_mut(|spoken| {
        let Message { cpu, pid, .. } = *message;
        spoken.notes.iter_mut().for_each(|notes| notes.push(At { cpu, pid, note }));
        spoken.text.iter_mut().for_each(|text| text.line(message, format_args!("{note}")));
    });
}

fn show(message: &Message, text: Arguments<'_>) {
    // Formatting is the policy's own, and may come back here.
    let taken = SPOKEN.with_borrow_mut(|spoken| spoken.text.take());
    if let Some(mut to) = taken {
        to.line(message, text);
        SPOKEN.with_borrow_mut(|spoken| spoken.text = Some(to));
    }
}

impl Kernel {
    /// What policies have noted up to now goes to the trace.
    pub(crate) fn push_notes(&mut self) {
        let notes = SPOKEN.with_borrow_mut(|spoken| spoken.notes.as_mut().map(mem::take));
        for At { cpu, pid, note } in notes.into_iter().flatten() {
            let at = Record { time_ns: self.now_ns, cpu, what: What::Note, pid, value: 0 };
            noted(note, at).for_each(|record| self.sink.push(record));
        }
    }
}
