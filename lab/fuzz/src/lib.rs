//! What reads foreign input, as targets for a fuzzer: each takes bytes, says whether they were good, and panics if something
//! is wrong with the reader. `lab/fuzz/libfuzzer` hands them to libFuzzer; the tests here run each for about a second.
#![forbid(unsafe_code)]

mod mutate;
mod queues;
mod replies;

use std::io::{Cursor, Read};

use ekiden::Topology;
use ekiden_check::{Checker, Limits};
use ekiden_foreign::Foreign;
use ekiden_policies::Wfq;
use ekiden_recording::{Entry, Header, Instance, Item, Record, RecordingReader, RecordingWriter};
use ekiden_replay::Replay;
use ekiden_trace::{Cut, CutError, Reader, Trace};
use ekiden_workload::{Workload, rt_app};

pub use mutate::Mutator;
pub use queues::queues;
pub use replies::replies;

/// Takes bytes; whether they were good.
pub type Target = fn(&[u8]) -> bool;

/// All targets, by the names of their seeds.
pub const TARGETS: [(&str, Target); 9] = [
    ("rt_app", rt_app),
    ("load", load),
    ("trace", trace),
    ("foreign", foreign),
    ("machine", machine),
    ("recording", recording),
    ("records", records),
    ("replies", replies),
    ("queues", queues),
];

/// A refusal has to say something.
fn refused(error: impl std::error::Error) -> bool {
    assert!(error.to_string().len() > 10, "a refusal without a reason: {error}");
    false
}

/// Files in rt-app's format: what is read is a load that can run.
pub fn rt_app(bytes: &[u8]) -> bool {
    match rt_app::parse("fuzz", &String::from_utf8_lossy(bytes)) {
        Ok((load, _)) => {
            load.check().expect("what is read can run");
            true
        }
        Err(error) => refused(error),
    }
}

/// Loads in JSON: what is read is written as it was.
pub fn load(bytes: &[u8]) -> bool {
    match Workload::parse(&String::from_utf8_lossy(bytes)) {
        Ok(load) => {
            assert_eq!(Workload::parse(&load.to_json()).ok().as_ref(), Some(&load));
            true
        }
        Err(error) => refused(error),
    }
}

/// Traces: whatever a trace says, the checks live through it, and a piece of it is a trace.
pub fn trace(bytes: &[u8]) -> bool {
    let reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return refused(error),
    };
    let mut checker = Checker::new(reader.header(), &Limits { lag_ns: Some(1_000_000), ..Limits::default() });
    for record in reader {
        match record {
            Ok(record) => checker.record(&record),
            Err(error) => return refused(error),
        }
    }
    let half_ns = checker.view().now_ns / 2;
    checker.finish();
    for cut in [
        Cut { from_ns: half_ns, ..Cut::default() },
        Cut { until_ns: half_ns, cpus: Some([1].into_iter().collect()), ..Cut::default() },
        Cut { from_ns: half_ns / 2, pids: [1_001].into(), names: vec!["r*".into()], ..Cut::default() },
    ] {
        let mut piece = Vec::new();
        match cut.run(Reader::new(bytes).expect("it was read before"), &mut piece) {
            Ok(()) => drop(Trace::from_bytes(piece).expect("a piece of a trace is a trace")),
            // The clock of a damaged trace may go backwards.
            Err(CutError::Beyond { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    true
}

/// Recordings of trace-cmd and perf: whatever one says, what is made of it is a trace in which no task runs twice.
pub fn foreign(bytes: &[u8]) -> bool {
    let mut recording = match Foreign::open(Cursor::new(bytes)) {
        Ok(recording) => recording,
        Err(error) => return refused(error),
    };
    let mut made = Vec::new();
    let end = recording.read_to_end(&mut made);
    let made = Trace::from_bytes(made).expect("what is made of a recording is a trace");
    let header = made.header().expect("a trace has a header");
    let mut checker = Checker::new(&header, &Limits::default());
    made.records().for_each(|record| checker.record(&record));
    let twice = checker.finish().into_iter().find(|violation| violation.check == "double-run");
    assert!(twice.is_none(), "{twice:?}");
    end.map_or_else(refused, |_| true)
}

/// Files of recordings: whatever is wrong with one, what comes before it is told. Good is one that tells anything.
pub fn recording(bytes: &[u8]) -> bool {
    let reader = match RecordingReader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return refused(error),
    };
    let mut told = 0;
    for recorded in reader {
        match recorded {
            Ok(_) => told += 1,
            Err(error) => drop(refused(error)),
        }
    }
    told > 0
}

/// The records of such files, where checksums keep a fuzzer from getting to them: a replay lives through any records. Good are
/// those that are calls and marks.
pub fn records(bytes: &[u8]) -> bool {
    let record = |bytes: &[u8]| {
        let mut words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        Record(std::array::from_fn(|_| words.next().unwrap_or_default()))
    };
    let records: Vec<Record> = bytes.chunks(64).map(record).collect();
    let instance = Instance { policy: "wfq".into(), params: String::new() };
    let header = Header { instance, max_tasks: 64, topology: Topology::flat(4).to_words(), ..Header::default() };
    let mut writer = RecordingWriter::new(Vec::new(), &header).expect("memory has room");
    // On two CPUs, between calls.
    let half = records.len() / 2;
    let begins = |record: &Record| record.0[0] & 0xff == 1;
    let (early, late) = records.split_at(half + records[half..].iter().position(begins).unwrap_or(0));
    writer.block(0, 0, early).and_then(|()| writer.block(1, 0, late)).expect("memory has room");
    let file = writer.finish().expect("memory has room");
    let outcome = Replay::of::<Wfq>().run(&file[..]).expect("the header is good");
    assert!(outcome.replayed <= outcome.calls && outcome.calls <= records.len() as u64);
    let is_stray = |item: &Item| matches!(item, Item::Entry(Entry::Stray(_)));
    let mut told = RecordingReader::new(&file[..]).expect("the header is good").flatten().map(|recorded| recorded.item);
    !records.is_empty() && told.all(|item| !is_stray(&item))
}

/// Machines in a few words.
pub fn machine(bytes: &[u8]) -> bool {
    match ekiden_machine::parse(&String::from_utf8_lossy(bytes)) {
        Ok(machine) => {
            assert!(machine.nr_cpus() > 0);
            true
        }
        Err(error) => refused(error),
    }
}

/// The canary: a reader with a bug, which is found if fuzzing works.
pub fn canary(bytes: &[u8]) -> bool {
    // Four bytes one after the other, each of which is a branch of its own for a fuzzer that looks at coverage.
    if bytes.first() == Some(&b'E') && bytes.get(1) == Some(&b'K') && bytes.get(2) == Some(&b'I') {
        assert_ne!(bytes.get(3), Some(&b'!'), "the canary sings");
    }
    true
}
