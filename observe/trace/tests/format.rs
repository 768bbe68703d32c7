//! The format: what is written is read again, and whatever else is given is refused with its place.

use std::io::Read;

use ekiden::Topology;
use ekiden_trace::{Header, MAY_BE_PASSED_OVER, RECORD_LEN, Reader, Record, Trace, TraceError, What};
use proptest::prelude::*;

fn header() -> Header {
    Header { policy: Some("wfq".into()), seed: 7, ..Header::of(&Topology::regular(2, 1, 2, 2)) }
}

fn record(what: What, time_ns: u64) -> Record {
    Record { time_ns, cpu: 7, what, pid: 70_000, value: u64::MAX - time_ns }
}

fn trace() -> Trace {
    let mut trace = Trace::new(&header());
    for (time_ns, what) in (0..).zip(What::ALL) {
        trace.push(record(*what, time_ns));
    }
    trace
}

#[test]
fn every_record_is_read_as_it_was_written() {
    let trace = Trace::from_bytes(trace().as_bytes().to_vec()).unwrap();
    assert!(trace.records().eq((0..).zip(What::ALL).map(|(time_ns, what)| record(*what, time_ns))));
    assert_eq!(trace.header(), Some(header()));
    assert_eq!(trace.header().unwrap().topology().unwrap(), Topology::regular(2, 1, 2, 2));
    let reader = Reader::new(trace.as_bytes()).unwrap();
    assert!(reader.map(Result::unwrap).eq(trace.records()));
}

#[test]
fn every_kind_of_record_has_its_own_name() {
    for what in What::ALL {
        assert_eq!(what.name(), format!("{what:?}").to_lowercase());
    }
}

#[test]
fn foreign_and_damaged_bytes_are_refused_with_their_place() {
    let good = trace().as_bytes().to_vec();
    let refused = |bytes: &[u8]| Trace::from_bytes(bytes.to_vec()).unwrap_err();
    let begin = good.len() - What::ALL.len() * RECORD_LEN;
    assert!(matches!(refused(b"something else"), TraceError::Foreign));
    assert!(matches!(refused(b""), TraceError::Foreign));
    assert!(matches!(refused(&good[..10]), TraceError::Damaged { at: 10 }));
    assert!(matches!(refused(&good[..40]), TraceError::Damaged { at: 40 }));
    let last = (good.len() - RECORD_LEN) as u64;
    assert!(matches!(refused(&good[..good.len() - 1]), TraceError::Damaged { at } if at == last));
    let change = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        refused(&bytes)
    };
    assert!(matches!(change(begin + 14, 99), TraceError::Unknown { kind: 99, at } if at == begin as u64));
    assert!(matches!(change(begin + 13, 1), TraceError::Damaged { at } if at == begin as u64), "CPU 263 of 8");
    assert!(matches!(change(8, 77), TraceError::Version { found: 77 }));
    assert!(matches!(change(15, 255), TraceError::Header { .. }));
    assert!(matches!(change(17, b'!'), TraceError::Header { .. }));
}

/// A kind of a later version that adds to what the others say.
#[test]
fn records_that_may_be_passed_over_are_counted_and_the_others_are_read() {
    let mut bytes = trace().as_bytes().to_vec();
    let begin = bytes.len() - What::ALL.len() * RECORD_LEN;
    for place in [0, 3] {
        let mut later = record(What::Note, 1).to_bytes();
        later[14..16].copy_from_slice(&(MAY_BE_PASSED_OVER + 1).to_le_bytes());
        let at = begin + place * RECORD_LEN;
        bytes.splice(at..at, later);
    }
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    assert!(reader.by_ref().map(Result::unwrap).eq(trace().records()));
    assert_eq!(reader.passed_over(), 2);
    assert!(Trace::from_bytes(bytes).unwrap().records().eq(trace().records()));
}

#[test]
fn a_trace_of_the_version_before_is_read() {
    let record = record(What::Run, 5);
    let numbers = |version: u32, nr_cpus: u32| [version.to_le_bytes(), nr_cpus.to_le_bytes()].concat();
    let file = |version, nr_cpus| {
        [&b"EKIDSIM\0"[..], &numbers(version, nr_cpus), &7_u64.to_le_bytes(), &record.to_bytes()].concat()
    };
    let good = file(1, 8);
    let reader = Reader::new(good.as_slice()).unwrap();
    assert_eq!((reader.version(), reader.header().seed, reader.header().nr_cpus()), (1, 7, 8));
    assert!(reader.map(Result::unwrap).eq([record]));
    let refused = |bytes: &[u8]| Reader::new(bytes).unwrap_err();
    assert!(matches!(refused(&file(3, 8)), TraceError::Version { found: 3 }));
    assert!(matches!(refused(&file(1, 0)), TraceError::Header { .. }));
    assert!(matches!(refused(&file(1, u32::MAX)), TraceError::Header { .. }));
    assert!(matches!(refused(&good[..20]), TraceError::Damaged { at: 20 }));
}

#[test]
fn a_machine_that_cannot_be_is_refused() {
    let mut header = header();
    header.distances.pop();
    assert!(matches!(Reader::new(header.to_bytes().as_slice()), Err(TraceError::Header { .. })));
    header.cpus.clear();
    assert!(matches!(Reader::new(header.to_bytes().as_slice()), Err(TraceError::Header { .. })));
}

/// A source that gives a byte at a time, as a slow pipe does.
struct Slow<'a>(&'a [u8]);

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(&mut buffer[..1])
    }
}

#[test]
fn a_slow_source_gives_the_same() {
    let trace = trace();
    let reader = Reader::new(Slow(trace.as_bytes())).unwrap();
    assert!(reader.map(Result::unwrap).eq(trace.records()));
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(reader) = Reader::new(bytes.as_slice()) {
            prop_assert!(reader.count() <= bytes.len());
        }
    }

    #[test]
    fn no_change_makes_the_reader_panic(at in 0_usize..2_000, byte: u8, cut in 0_usize..2_000) {
        let mut bytes = trace().as_bytes().to_vec();
        let len = bytes.len();
        bytes[at % len] = byte;
        bytes.truncate(len.saturating_sub(cut % len));
        if let Ok(reader) = Reader::new(bytes.as_slice()) {
            prop_assert!(reader.count() <= len / RECORD_LEN);
        }
    }
}
