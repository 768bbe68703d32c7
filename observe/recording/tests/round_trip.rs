//! A reader returns what was written down.

use ekiden_abi::{Call, Kicks, Message, NO_CPU, NoteName, Noted, RawToken, Reply, TaskId};
use ekiden_recording::{CallWriter, Calls, Entry, Mark, Record, RecordedCall, RecordedMark, RingHeader};
use proptest::prelude::*;

fn message() -> impl Strategy<Value = Message> {
    (0_u32..27, any::<(u32, u64, u32, u32, u64)>(), any::<(u32, i32, u32, u32, u64)>()).prop_map(|(call, a, b)| {
        Message {
            call,
            cpu: a.0,
            task: TaskId::from_bits(a.1),
            token_cpu: a.2,
            token_serial: a.3,
            runtime_ns: a.4,
            weight: b.0,
            nice: b.1,
            pid: b.2,
            flags: b.3,
            arg: b.4,
        }
    })
}

fn reply() -> impl Strategy<Value = Reply> {
    let token = prop_oneof![
        Just(RawToken::NONE),
        (any::<u64>(), any::<u32>(), 1..u32::MAX).prop_map(|(task, cpu, serial)| RawToken {
            task: TaskId::from_bits(task),
            cpu,
            serial
        })
    ];
    let task = prop_oneof![Just(TaskId::NONE), (1..u64::MAX).prop_map(|bits| TaskId::from_bits(bits | 1 << 32))];
    let number = || prop_oneof![Just(0), any::<u64>()];
    let cpu = prop_oneof![Just(NO_CPU), any::<u32>()];
    (token, task, number(), number(), number(), cpu).prop_map(|(token, task, slice_ns, timer_ns, kicks, cpu)| Reply {
        token,
        dropped: RawToken::NONE,
        task,
        slice_ns,
        timer_ns,
        kicks: Kicks::from_bits(kicks),
        cpu,
        reserved: 0,
    })
}

/// The entries that a ring holds.
fn read(place: &RingHeader, ring: &[Record]) -> Vec<Entry> {
    let head = place.head.load(std::sync::atomic::Ordering::Acquire);
    let mut calls = Calls::default();
    let first = head.saturating_sub(ring.len() as u64);
    let records = (first..head).map(|at| &ring[at as usize % ring.len()]);
    let mut entries: Vec<Entry> = records.flat_map(|record| calls.push(record)).collect();
    entries.extend(calls.finish());
    entries
}

proptest! {
    #[test]
    fn calls_come_back_as_they_were(
        calls in proptest::collection::vec((0_u64..1 << 56, 0_u32..1 << 22, message(), proptest::collection::vec(any::<u64>(), 0..30), proptest::collection::vec((any::<[u64; 4]>(), any::<u64>(), 0_usize..30), 0..4), reply()), 0..20),
    ) {
        let (mut place, mut ring) = (RingHeader::default(), vec![Record::default(); 512]);
        let mut expected = Vec::new();
        for (time_ns, thread, message, notes, noted, reply) in calls {
            let mut call_writer = CallWriter::new(&mut place, &mut ring);
            call_writer.begin(time_ns, thread, &message, &[]);
            // Notes for people come anywhere among what is learnt.
            let mut to_note = noted.clone();
            to_note.sort_by_key(|(.., after)| *after);
            let noted: Vec<Noted> =
                to_note.iter().map(|(name, value, _)| Noted { name: NoteName(*name), value: *value }).collect();
            let mut next = 0;
            for place in 0..30 {
                while to_note.get(next).is_some_and(|(.., after)| *after == place) {
                    call_writer.noted(&noted[next]);
                    next += 1;
                }
                notes.get(place).into_iter().for_each(|note| call_writer.note(*note));
            }
            call_writer.end(&reply);
            // A call of hints has a payload, an empty one here.
            let has_payload = ekiden_abi::Calls::WITH_PAYLOAD.has_number(message.call);
            let notes = has_payload.then_some(0).into_iter().chain(notes).collect();
            expected.push(Entry::Call(RecordedCall { time_ns, thread, message, notes, noted, reply: Some(reply) }));
        }
        prop_assert_eq!(read(&place, &ring), expected);
    }

    #[test]
    fn any_records_are_survived(records in proptest::collection::vec(any::<[u64; 8]>(), 0..50), kinds in proptest::collection::vec(0_u64..8, 50)) {
        let mut calls = Calls::default();
        for (record, kind) in records.iter().zip(kinds) {
            let mut words = *record;
            words[0] = words[0] & !0xff | kind;
            calls.push(&Record(words)).count();
        }
        calls.finish();
    }
}

#[test]
fn a_payload_comes_before_what_the_call_learns() {
    let (mut place, mut ring) = (RingHeader::default(), vec![Record::default(); 16]);
    let message = Message::about_cpu(Call::ParseHint, 3);
    let mut call_writer = CallWriter::new(&mut place, &mut ring);
    call_writer.begin(7, 1, &message, b"nine byte");
    call_writer.note(5);
    call_writer.end(&Reply::default());
    let [Entry::Call(call)] = &read(&place, &ring)[..] else { panic!("one call was written") };
    assert_eq!(call.notes, [9, u64::from_le_bytes(*b"nine byt"), u64::from(b'e'), 5]);
}

#[test]
fn a_call_that_faults_has_no_end_but_what_it_learnt() {
    let (mut place, mut ring) = (RingHeader::default(), vec![Record::default(); 16]);
    let message = Message::about_cpu(Call::PickNextTask, 1);
    let mut call_writer = CallWriter::new(&mut place, &mut ring);
    call_writer.note(1);
    call_writer.noted(&Noted::default());
    call_writer.end(&Reply::default());
    call_writer.begin(7, 1, &message, &[]);
    let noted = Noted { name: NoteName::new("last_words").unwrap(), value: 9 };
    call_writer.note(42);
    call_writer.noted(&noted);
    call_writer.mark(8, Mark::Fault, 2);
    let call = RecordedCall { time_ns: 7, thread: 1, message, notes: vec![42], noted: vec![noted], reply: None };
    let mark = RecordedMark { time_ns: 8, mark: Mark::Fault, instance: 2 };
    assert_eq!(read(&place, &ring), [Entry::Call(call), Entry::Mark(mark)], "what is outside of a call is not written");
}

#[test]
fn a_ring_that_was_overrun_begins_with_strays() {
    let (mut place, mut ring) = (RingHeader::default(), vec![Record::default(); 4]);
    for time_ns in 0..3 {
        let mut call_writer = CallWriter::new(&mut place, &mut ring);
        call_writer.begin(time_ns, 0, &Message::about_cpu(Call::Timer, 0), &[]);
        (0..8).for_each(|note| call_writer.note(note));
        call_writer.end(&Reply { cpu: NO_CPU, ..Reply::default() });
    }
    let entries = read(&place, &ring);
    assert_eq!(entries[0], Entry::Stray(1), "{entries:?}");
    assert!(matches!(&entries[1], Entry::Call(call) if call.time_ns == 2 && call.notes == [0, 1, 2, 3, 4, 5, 6, 7]));
}
