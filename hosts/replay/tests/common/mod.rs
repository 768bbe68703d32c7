//! Recordings of simulations, in memory.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use ekiden_recording::{CallWriter, Entry, Header, Item, Record, RecordingReader, RecordingWriter, RingHeader};
use ekiden_sim::{SimReport, Simulation};
use ekiden_workload::Workload;

/// Bytes that can be looked at when they have been written.
#[derive(Clone, Default)]
pub(crate) struct Memory(Rc<RefCell<Vec<u8>>>);

impl Memory {
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.0.take()
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The recording of a simulation, and its report.
pub(crate) fn record(simulation: Simulation, load: &Workload) -> (Vec<u8>, SimReport) {
    let memory = Memory::default();
    let report = simulation.recorded_into(memory.clone()).run(load).unwrap();
    (memory.0.take(), report)
}

/// A recording with some of its records missing, or its calls in the streams of several CPUs.
pub(crate) fn rewritten(
    recording: &[u8],
    change: impl FnOnce(&Header, Vec<Record>) -> Vec<(u32, u64, Vec<Record>)>,
) -> Vec<u8> {
    let reader = RecordingReader::new(recording).unwrap();
    let header = reader.header().clone();
    let (mut place, mut ring) = (RingHeader::default(), vec![Record::default(); 1 << 18]);
    for recorded in reader {
        let mut call_writer = CallWriter::new(&mut place, &mut ring);
        match recorded.unwrap().item {
            Item::Entry(Entry::Call(call)) => {
                call_writer.begin(call.time_ns, call.thread, &call.message, &[]);
                call.notes.iter().for_each(|note| call_writer.note(*note));
                call.noted.iter().for_each(|noted| call_writer.noted(noted));
                if let Some(reply) = &call.reply {
                    call_writer.end(reply);
                }
            }
            Item::Entry(Entry::Mark(mark)) => call_writer.mark(mark.time_ns, mark.mark, mark.instance),
            other => panic!("{other:?}"),
        }
    }
    let head = place.head.into_inner() as usize;
    assert!(head <= ring.len());
    ring.truncate(head);
    let mut writer = RecordingWriter::new(Vec::new(), &header).unwrap();
    for (cpu, first, records) in change(&header, ring) {
        writer.block(cpu, first, &records).unwrap();
    }
    writer.pass(1 << 55).unwrap();
    writer.finish().unwrap()
}
