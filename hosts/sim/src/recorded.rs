//! Writes the calls of a simulation down, for replay.

use std::cell::RefCell;
use std::io::Write;
use std::sync::Arc;

use ekiden_host::abi::{Message, Noted, Reply};
use ekiden_host::{Around, Host, Policy, Surrounded};
use ekiden_recording::{
    CallWriter, Header, Instance, Mark, Record, RecordingError, RecordingWriter, RingHeader, Writes, WritesDown,
    call_log_of_thread,
};

use crate::masks::SimHost;

/// Records that wait to be written to the file.
const RING: usize = 1 << 14;
/// How many of them are written at once.
const BATCH: u64 = 1 << 12;
/// A simulation has one stream: one thing happens after the other.
const STREAM: u32 = 0;

thread_local! {
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

struct Recorder {
    place: RingHeader,
    ring: Vec<Record>,
    /// How many records are in the file, or were lost.
    written: u64,
    instance: u64,
    /// The first error is kept, and ends the writing.
    writer: Result<RecordingWriter<Box<dyn Write>>, RecordingError>,
}

impl Recorder {
    fn call_writer(&mut self) -> CallWriter<'_> {
        CallWriter::new(&mut self.place, &mut self.ring)
    }

    fn write_if_many(&mut self, now_ns: u64) {
        if *self.place.head.get_mut() - self.written >= BATCH {
            self.write(now_ns);
        }
    }

    #[cold]
    fn write(&mut self, now_ns: u64) {
        let head = *self.place.head.get_mut();
        // A call that learnt more than there is room for has overwritten its own beginning.
        let first = self.written.max(head.saturating_sub(RING as u64));
        self.written = head;
        let Ok(writer) = &mut self.writer else { return };
        let (from, to) = (first as usize % RING, head as usize % RING);
        let (early, late) = match first {
            _ if first == head => return,
            _ if from < to => (&self.ring[from..to], &[][..]),
            _ => (&self.ring[from..], &self.ring[..to]),
        };
        let written = writer
            .block(STREAM, first, early)
            .and_then(|()| writer.block(STREAM, first + early.len() as u64, late))
            .and_then(|()| writer.pass(now_ns));
        if let Err(error) = written {
            self.writer = Err(error);
        }
    }
}

fn with_recorder(act: impl FnOnce(&mut Recorder)) {
    RECORDER.with_borrow_mut(|recorder| {
        if let Some(recorder) = recorder {
            act(recorder);
        }
    });
}

/// The policy has noted this in the call that is under way.
pub(crate) fn note(noted: &Noted) {
    with_recorder(|recorder| recorder.call_writer().noted(noted));
}

/// The recording of the simulation that runs on this thread, while this lives.
pub(crate) struct Recording;

impl Recording {
    pub(crate) fn begin(to: Box<dyn Write>, header: &Header) -> Self {
        let recorder = Recorder {
            place: RingHeader::default(),
            ring: vec![Record::default(); RING],
            written: 0,
            instance: 0,
            writer: RecordingWriter::new(to, header),
        };
        RECORDER.set(Some(recorder));
        call_log_of_thread(Some(|value| {
            with_recorder(|recorder| recorder.call_writer().note(value));
            value
        }));
        Self
    }

    pub(crate) fn finish(self, now_ns: u64) -> Result<(), RecordingError> {
        let Some(mut recorder) = RECORDER.take() else { return Ok(()) };
        recorder.write(now_ns);
        recorder.writer?.finish().map(drop)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        call_log_of_thread(None);
        RECORDER.set(None);
    }
}

/// `policy`, written down from here on if this thread records; at the beginning of an instance, of which `mark` says what
/// it knows.
pub(crate) fn next_instance(
    policy: Box<dyn Policy>,
    mark: Mark,
    now_ns: u64,
    host: &Arc<SimHost>,
    instance: &Instance,
) -> Box<dyn Policy> {
    let mut records = false;
    with_recorder(|recorder| {
        records = true;
        recorder.instance += 1;
        let number = recorder.instance;
        if let (true, Ok(writer)) = (number > 1, &mut recorder.writer) {
            if let Err(error) = writer.instance(number, instance) {
                recorder.writer = Err(error);
            }
        }
        recorder.call_writer().mark(now_ns, mark, number);
    });
    let policy =
        if records { Box::new(Surrounded::new(policy, WritesDown(OfSimulation(host.clone())))) } else { policy };
    match host.call_costs_ns() {
        Some(costs_ns) => Box::new(Surrounded::new(policy, Priced { host: host.clone(), costs_ns })),
        None => policy,
    }
}

/// Has each call cost something.
struct Priced {
    host: Arc<SimHost>,
    costs_ns: Vec<u64>,
}

impl Around for Priced {
    fn deliver(&self, policy: &dyn Policy, message: &Message, payload: &[u8]) -> Reply {
        self.host.add_call_ns(self.costs_ns.get(message.call as usize).copied().unwrap_or_default());
        policy.deliver(message, payload)
    }
}

/// How the calls of a simulation's policy are written down.
struct OfSimulation(Arc<SimHost>);

impl Writes for OfSimulation {
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn thread(&self) -> u32 {
        self.0.thread()
    }

    fn instance(&self) -> u64 {
        RECORDER.with_borrow(|recorder| recorder.as_ref().map_or(0, |recorder| recorder.instance))
    }

    fn write(&self, act: impl FnOnce(&mut CallWriter<'_>)) {
        with_recorder(|recorder| act(&mut recorder.call_writer()));
    }

    fn call_written(&self, now_ns: u64) {
        with_recorder(|recorder| recorder.write_if_many(now_ns));
    }
}
