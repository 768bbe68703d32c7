//! Files of recordings: what is written is read, in the order of time, and what is not whole is said to be so.

use std::io::{self, Write};

use ekiden::Topology;
use ekiden_abi::{Call, Message, NO_CPU, RawToken, Reply, TaskId};
use ekiden_recording::{
    BEFORE_MARKS, CallWriter, Entry, Header, Host, Instance, Item, Mark, RECORDING_VERSION, Record, Recorded,
    RecordingError, RecordingReader, RecordingWriter, RingHeader,
};
use proptest::prelude::*;

fn header() -> Header {
    Header {
        host: Host::Kernel,
        instance: Instance { policy: "wfq".into(), params: "slice_min_us=500".into() },
        max_tasks: 100,
        topology: Topology::flat(4).to_words(),
        workload: "pipe".into(),
        kernel: "7.3.4".into(),
        start_ns: 5,
        writer: "ekiden".into(),
    }
}

/// Calls at these times, in the ring of one CPU.
fn records(times: impl IntoIterator<Item = u64>) -> Vec<Record> {
    let (mut place, mut ring) = (RingHeader::default(), vec![Record::default(); 1 << 12]);
    for time_ns in times {
        let mut call_writer = CallWriter::new(&mut place, &mut ring);
        call_writer.begin(time_ns, 0, &Message::about_cpu(Call::PickNextTask, 1), &[]);
        call_writer.note(time_ns * 3);
        let task = TaskId { slot: time_ns as u32 % 50, generation: 1 };
        call_writer.end(&Reply { token: RawToken { task, cpu: 1, serial: 7 }, cpu: NO_CPU, ..Reply::default() });
    }
    ring.truncate(place.head.into_inner() as usize);
    ring
}

fn read(bytes: &[u8]) -> Result<(Vec<Recorded>, Option<RecordingError>), RecordingError> {
    let mut all = Vec::new();
    for recorded in RecordingReader::new(bytes)? {
        match recorded {
            Ok(recorded) => all.push(recorded),
            Err(error) => return Ok((all, Some(error))),
        }
    }
    Ok((all, None))
}

/// The CPUs and times of the calls.
fn calls(recorded: &[Recorded]) -> Vec<(u64, u32)> {
    let is_call = |recorded: &&Recorded| matches!(recorded.item, Item::Entry(Entry::Call(_)));
    recorded.iter().filter(is_call).map(|call| (call.time_ns, call.cpu)).collect()
}

#[test]
fn cpus_are_merged_in_the_order_of_time_over_passes() {
    let mut writer = RecordingWriter::new(Vec::new(), &header()).unwrap();
    // What CPU 0 has beyond the first pass's time comes before what CPU 1 brings in the second.
    let (zero, one, two) = (records([1, 4, 12, 14]), records([2, 3]), records([11, 13, 20]));
    writer.block(0, 0, &zero).unwrap();
    writer.block(1, 0, &one).unwrap();
    writer.pass(10).unwrap();
    writer.block(1, one.len() as u64, &two).unwrap();
    writer.block(3, 0, &records([15])).unwrap();
    writer.pass(30).unwrap();
    assert_eq!(writer.counts(), (20, 0));
    let len = writer.len();
    let bytes = writer.finish().unwrap();
    assert!(bytes.len() as u64 > len);
    let reader = RecordingReader::new(&bytes[..]).unwrap();
    assert_eq!(reader.header(), &header());
    let (all, error) = read(&bytes).unwrap();
    assert!(error.is_none());
    let expected = [(1, 0), (2, 1), (3, 1), (4, 0), (11, 1), (12, 0), (13, 1), (14, 0), (15, 3), (20, 1)];
    assert_eq!(calls(&all), expected);
}

#[test]
fn a_call_that_ends_in_a_later_pass_keeps_its_place() {
    let mut writer = RecordingWriter::new(Vec::new(), &header()).unwrap();
    let open = records([5]);
    writer.block(0, 0, &open[..1]).unwrap();
    writer.block(1, 0, &records([6, 7])).unwrap();
    writer.pass(8).unwrap();
    writer.block(0, 1, &open[1..]).unwrap();
    writer.pass(9).unwrap();
    let (all, error) = read(&writer.finish().unwrap()).unwrap();
    assert!(error.is_none());
    assert_eq!(calls(&all), [(5, 0), (6, 1), (7, 1)]);
}

#[test]
fn from_a_call_on_that_has_not_ended_a_recording_is_torn() {
    let mut writer = RecordingWriter::new(Vec::new(), &header()).unwrap();
    // A processor may be away in the middle of a call for longer than a reader waits, with locks that others had after it.
    writer.block(0, 0, &records([1, 5])[..3]).unwrap();
    writer.block(1, 0, &records([2, 6, 7])).unwrap();
    writer.pass(8).unwrap();
    let (all, error) = read(&writer.finish().unwrap()).unwrap();
    assert!(error.is_none());
    let torn = all.iter().position(|recorded| recorded.item == Item::Torn).expect("it says so");
    assert_eq!((calls(&all[..torn]), calls(&all[torn..])), (vec![(1, 0), (2, 1)], vec![(5, 0), (6, 1), (7, 1)]));
}

#[test]
fn instances_are_known_when_their_marks_are_read() {
    let mut writer = RecordingWriter::new(Vec::new(), &header()).unwrap();
    let (mut place, mut ring) = (RingHeader::default(), [Record::default(); 8]);
    CallWriter::new(&mut place, &mut ring).mark(1, Mark::Begin, 1);
    CallWriter::new(&mut place, &mut ring).mark(2, Mark::Begin, 2);
    let fifo = instance("fifo");
    writer.instance(2, &fifo).unwrap();
    writer.block(0, 0, &ring[..2]).unwrap();
    writer.pass(3).unwrap();
    assert_eq!(names(&writer.finish().unwrap()), ["wfq", "wfq", "fifo"], "the header tells of all but the second");
}

#[test]
fn where_the_first_calls_are_told_of_no_instance_is_that_of_the_header() {
    let (mut place, mut ring) = (RingHeader::default(), [Record::default(); 8]);
    for number in [3, 4, 5] {
        CallWriter::new(&mut place, &mut ring).mark(number, Mark::Begin, number);
    }
    for (first, expected) in [(Some(instance("cfs")), "cfs"), (None, "unknown")] {
        let mut writer = RecordingWriter::new(Vec::new(), &header()).unwrap();
        writer.block(0, 7, &ring[..3]).unwrap();
        // What the marks are about is found out when they are written.
        writer.instance(4, &instance("fifo")).unwrap();
        writer.instance(5, &Instance::default()).unwrap();
        writer.before_marks(first.as_ref()).unwrap();
        writer.pass(6).unwrap();
        assert_eq!(names(&writer.finish().unwrap()), [expected, "unknown", "fifo", "unknown"]);
    }
}

fn instance(policy: &str) -> Instance {
    Instance { policy: policy.into(), params: String::new() }
}

/// The policy before the first mark of a recording, and those of its marks.
fn names(bytes: &[u8]) -> Vec<String> {
    let mut reader = RecordingReader::new(bytes).unwrap();
    let mut names = Vec::new();
    let name = |reader: &RecordingReader<&[u8]>, number| {
        reader.instance(number).map_or_else(|| "unknown".to_owned(), |instance| instance.policy.clone())
    };
    while let Some(recorded) = reader.next() {
        if names.is_empty() {
            names.push(name(&reader, BEFORE_MARKS));
        }
        match recorded.unwrap().item {
            Item::Entry(Entry::Mark(mark)) => names.push(name(&reader, mark.instance)),
            Item::Gap { .. } => {}
            other => panic!("{other:?} was not written"),
        }
    }
    names
}

#[test]
fn what_was_lost_is_a_gap_in_its_place() {
    let mut writer = RecordingWriter::new(Vec::new(), &header()).unwrap();
    let all = records([1, 2, 3, 4]);
    writer.block(0, 0, &all[..2]).unwrap();
    writer.block(2, 7, &records([3])).unwrap();
    // The second half of a call, too.
    writer.block(0, 5, &all[5..]).unwrap();
    writer.pass(30).unwrap();
    assert_eq!(writer.counts(), (7, 10));
    let (all, error) = read(&writer.finish().unwrap()).unwrap();
    assert!(error.is_none());
    let items: Vec<_> = all
        .iter()
        .map(|recorded| match recorded.item {
            Item::Entry(Entry::Call(_)) => (recorded.cpu, "call", 0),
            Item::Entry(Entry::Stray(records)) => (recorded.cpu, "stray", records),
            Item::Gap { lost } => (recorded.cpu, "gap", lost),
            _ => panic!("{recorded:?}"),
        })
        .collect();
    // A recording that begins with a gap says so first.
    let expected = [(2, "gap", 7), (0, "call", 0), (0, "gap", 3), (2, "call", 0), (0, "call", 0)];
    let without_strays: Vec<_> = items.into_iter().filter(|(_, what, _)| *what != "stray").collect();
    assert_eq!(without_strays, expected);
}

/// Two passes of two CPUs.
fn small() -> Vec<u8> {
    let mut writer = RecordingWriter::new(Vec::new(), &header()).unwrap();
    let (zero, one) = (records([1, 3]), records([2, 4]));
    writer.block(0, 0, &zero[..2]).unwrap();
    writer.block(1, 0, &one[..2]).unwrap();
    writer.pass(2).unwrap();
    writer.instance(2, &Instance::default()).unwrap();
    writer.block(0, 2, &zero[2..]).unwrap();
    writer.block(1, 2, &one[2..]).unwrap();
    writer.pass(5).unwrap();
    writer.finish().unwrap()
}

#[test]
fn every_flipped_bit_is_found_and_what_comes_before_is_told() {
    let good = small();
    let (all, error) = read(&good).unwrap();
    assert!(error.is_none() && calls(&all).len() == 4);
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let error = match read(&bad) {
            Err(error) => error,
            Ok((some, Some(error))) => {
                let told: Vec<_> = some.iter().filter(|recorded| recorded.item != Item::Torn).collect();
                assert!(told.iter().zip(&all).all(|(told, all)| *told == all), "bit {bit}: {told:?}");
                error
            }
            Ok((some, None)) => panic!("bit {bit} is flipped, and nobody notices: {some:?}"),
        };
        let message = error.to_string();
        assert!(message.contains("recording") && message.len() > 40, "bit {bit}: {message}");
    }
}

#[test]
fn a_recording_that_was_cut_off_tells_what_it_has_and_where_it_ends() {
    let good = small();
    let (all, _) = read(&good).unwrap();
    for len in 0..good.len() {
        match read(&good[..len]) {
            Err(RecordingError::Foreign) => assert_eq!(len, 0),
            Err(RecordingError::CutOff { at }) => assert_eq!(at, len as u64),
            Ok((some, Some(RecordingError::CutOff { at }))) => {
                assert_eq!(at, len as u64);
                let torn = some.iter().position(|recorded| recorded.item == Item::Torn).expect("it says so");
                assert_eq!(some[..torn], all[..torn], "what comes before is told in order");
            }
            other => panic!("{len}: {other:?}"),
        }
    }
}

#[test]
fn foreign_files_other_versions_and_what_follows_the_end_are_refused() {
    assert!(matches!(read(b"EKITRACE and so on"), Err(RecordingError::Foreign)));
    let mut newer = small();
    newer[8] += 1;
    let error = read(&newer).unwrap_err();
    assert!(matches!(error, RecordingError::Version { found } if found == RECORDING_VERSION + 1), "{error}");
    let mut longer = small();
    longer.push(0);
    let error = read(&longer).unwrap().1.unwrap();
    assert!(matches!(error, RecordingError::Damaged { what: "something follows its end", .. }), "{error}");
}

#[test]
fn headers_that_cannot_be_are_refused() {
    let read = |header: &Header| read(&RecordingWriter::new(Vec::new(), header).unwrap().finish().unwrap());
    assert!(read(&header()).is_ok());
    for wrong in [Header { max_tasks: u32::MAX, ..header() }, Header { topology: vec![1, 2, 3], ..header() }] {
        let error = read(&wrong).unwrap_err();
        assert!(matches!(error, RecordingError::Header { .. }), "{error}");
    }
}

#[test]
fn a_full_disk_is_said_and_the_file_is_good_up_to_there() {
    /// A disk with so much room.
    struct Disk(Vec<u8>, usize);
    impl Write for &mut Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let len = bytes.len().min(self.1 - self.0.len());
            if len == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.extend(&bytes[..len]);
            Ok(len)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut disk = Disk(Vec::new(), 2_000);
    let mut writer = RecordingWriter::new(&mut disk, &header()).unwrap();
    let (mut end, mut passes) = (0, 0);
    let error = loop {
        let records = records((passes * 10 + 1..).take(10));
        let written = writer.block(0, end, &records).and_then(|()| writer.pass(passes * 10 + 10));
        end += records.len() as u64;
        match written {
            Ok(()) => passes += 1,
            Err(error) => break error,
        }
    };
    let RecordingError::Write { at, ref source } = error else { panic!("{error}") };
    assert_eq!(source.kind(), io::ErrorKind::StorageFull);
    assert!(at < 2_000 && error.to_string().contains("what comes before can be used"), "{error}");
    assert!(writer.pass(1 << 40).is_err(), "nothing more is written");
    let (all, error) = read(&disk.0).unwrap();
    assert!(matches!(error, Some(RecordingError::CutOff { .. })), "{error:?}");
    assert!(passes > 3 && calls(&all).len() as u64 >= passes * 10, "{passes} passes");
}

proptest! {
    #[test]
    fn whatever_passes_there_are_calls_come_in_order_and_none_is_lost(
        steps in proptest::collection::vec(proptest::collection::vec((0_u32..3, 1_u64..100), 0..20), 1..6),
    ) {
        let mut writer = RecordingWriter::new(Vec::new(), &header()).unwrap();
        let (mut now_ns, mut ends, mut expected) = (0, [0; 3], Vec::new());
        for pass in steps {
            let mut times = [const { Vec::new() }; 3];
            for (cpu, ns) in pass {
                now_ns += ns;
                times[cpu as usize].push(now_ns);
                expected.push((now_ns, cpu));
            }
            for (cpu, times) in (0..).zip(times) {
                let records = records(times);
                let end = &mut ends[cpu as usize];
                writer.block(cpu, *end, &records).unwrap();
                *end += records.len() as u64;
            }
            writer.pass(now_ns).unwrap();
        }
        let (all, error) = read(&writer.finish().unwrap()).unwrap();
        prop_assert!(error.is_none());
        prop_assert_eq!(calls(&all), expected);
    }
}
