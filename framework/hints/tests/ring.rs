//! Rings, and what either side may do to them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ekiden_hints::layout::{HEADER_BYTES, at};
use ekiden_hints::{Consumer, Geometry, HeaderError, Nonsense, NotWritten, Plain, Producer, Side, State};
use proptest::prelude::*;

fn geometry() -> Geometry {
    Geometry {
        up: Side { fingerprint: <[u32; 3]>::SHAPE.fingerprint(), bytes: 12, records: 4 },
        down: Side { fingerprint: u8::SHAPE.fingerprint(), bytes: 1, records: 2 },
    }
}

fn memory(geometry: Geometry) -> Vec<AtomicU64> {
    let words: Vec<_> = (0..geometry.bytes() / 8).map(|_| AtomicU64::new(0)).collect();
    assert!(geometry.write(&words));
    words
}

#[test]
fn what_is_written_is_read_in_its_order() {
    let (geometry, words) = (geometry(), memory(geometry()));
    let mut up = Producer::at(geometry.up(&words).unwrap(), 0);
    let mut policy = Consumer::at(geometry.up(&words).unwrap(), 0);
    let mut room = [0; 12];
    for round in 0..10_u8 {
        assert_eq!(policy.pop(&mut room), Ok(false));
        up.push(&[round; 12]).unwrap();
        up.push(&[round + 100; 12]).unwrap();
        assert_eq!((policy.pop(&mut room), room), (Ok(true), [round; 12]));
        assert_eq!((policy.pop(&mut room), room), (Ok(true), [round + 100; 12]));
    }
}

#[test]
fn both_rings_are_apart() {
    let (geometry, words) = (geometry(), memory(geometry()));
    let mut up = Producer::at(geometry.up(&words).unwrap(), 0);
    let mut down = Producer::at(geometry.down(&words).unwrap(), 0);
    (0..4).for_each(|_| up.push(&[0xff; 12]).unwrap());
    (1..3).for_each(|value| down.push(&[value]).unwrap());
    let mut program = Consumer::at(geometry.down(&words).unwrap(), 0);
    let mut room = [0];
    assert_eq!((program.pop(&mut room), room), (Ok(true), [1]));
    assert_eq!((program.pop(&mut room), room), (Ok(true), [2]));
    let mut room = [0; 100];
    let mut policy = Consumer::at(geometry.up(&words).unwrap(), 0);
    assert_eq!(policy.take(&mut room), Ok(48));
    assert_eq!((room[47], room[48]), (0xff, 0));
    assert_eq!(Geometry::read(&words), Ok(geometry));
}

#[test]
fn a_ring_that_is_full_is_told_and_counted() {
    let (geometry, words) = (geometry(), memory(geometry()));
    let mut up = Producer::at(geometry.up(&words).unwrap(), 0);
    let written = (0..7).filter(|_| up.push(&[7; 12]).is_ok()).count();
    assert_eq!((written, up.times_full(), up.head()), (4, 3, 4));
    assert_eq!(up.push(&[7; 11]), Err(NotWritten::Length));
    let mut room = [0; 12];
    assert_eq!(Consumer::at(geometry.up(&words).unwrap(), 0).pop(&mut room), Ok(true));
    assert_eq!((up.push(&[8; 12]), up.push(&[9; 12])), (Ok(()), Err(NotWritten::Full)));
}

#[test]
fn a_head_that_cannot_be_is_passed_over_once() {
    let (geometry, words) = (geometry(), memory(geometry()));
    let mut policy = Consumer::at(geometry.up(&words).unwrap(), 0);
    let mut room = [0; 12];
    words[at::UP_HEAD].store(5, Relaxed);
    assert_eq!(policy.pop(&mut room), Err(Nonsense));
    assert_eq!((policy.pop(&mut room), words[at::NONSENSE].load(Relaxed)), (Ok(false), 1));
    // From there on it is a ring like any other.
    let mut up = Producer::at(geometry.up(&words).unwrap(), 5);
    up.push(&[3; 12]).unwrap();
    assert_eq!((policy.pop(&mut room), room), (Ok(true), [3; 12]));
    words[at::UP_HEAD].store(0, Relaxed);
    assert_eq!((policy.pop(&mut room), policy.tail()), (Err(Nonsense), 0));
}

#[test]
fn a_tail_that_cannot_be_is_no_room() {
    let (geometry, words) = (geometry(), memory(geometry()));
    let mut up = Producer::at(geometry.up(&words).unwrap(), 0);
    for tail in [1, u64::MAX, 1 << 40] {
        words[at::UP_TAIL].store(tail, Relaxed);
        let is_all_read = tail == u64::MAX;
        // One that is one too few is only a ring with less room.
        assert_eq!(up.push(&[1; 12]).is_ok(), is_all_read, "{tail}");
    }
}

#[test]
fn nothing_to_say_has_no_ring() {
    let geometry = Geometry { up: Side { bytes: 0, records: 1, fingerprint: 5 }, ..geometry() };
    let words = memory(geometry);
    assert_eq!(Producer::at(geometry.up(&words).unwrap(), 0).push(&[]), Err(NotWritten::Length));
    let mut policy = Consumer::at(geometry.up(&words).unwrap(), 0);
    assert_eq!((policy.pop(&mut []), policy.take(&mut [0; 8])), (Ok(false), Ok(0)));
    words[at::UP_HEAD].store(1, Relaxed);
    assert_eq!((policy.pop(&mut []), policy.pop(&mut [])), (Err(Nonsense), Ok(false)));
}

#[test]
fn what_is_no_queue_is_refused_with_the_reason() {
    let words = memory(geometry());
    assert_eq!(Geometry::read(&words[..10]), Err(HeaderError::NoQueue));
    assert_eq!(Geometry::read(&words[..HEADER_BYTES / 8]), Err(HeaderError::Sizes));
    words[at::UP + 1].store(1 << 40, Relaxed);
    assert_eq!(Geometry::read(&words), Err(HeaderError::Sizes));
    words[at::VERSION].store(9, Relaxed);
    assert_eq!(Geometry::read(&words), Err(HeaderError::Version(9)));
    words[at::MAGIC].store(9, Relaxed);
    assert!(Geometry::read(&words).unwrap_err().to_string().contains("no queue"));
    assert_eq!([1, 2, 3, 4, 0, 77].map(State::from_number)[4..], [State::Closed, State::Closed]);
}

#[test]
fn types_of_another_look_have_another_fingerprint() {
    let all = [
        u32::SHAPE,
        i32::SHAPE,
        u64::SHAPE,
        <()>::SHAPE,
        <[u32; 2]>::SHAPE,
        <[u32; 3]>::SHAPE,
        <[i32; 3]>::SHAPE,
        bool::SHAPE,
    ];
    for (i, shape) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|other| other.fingerprint() != shape.fingerprint()), "{shape}");
    }
    assert_eq!(<[u32; 3]>::SHAPE.to_string(), "[u32; 3]");
}

proptest! {
    /// Whatever the other side writes where it may, each side stays within the memory, and a reader ends.
    #[test]
    fn nonsense_of_the_other_side_harms_nothing(
        writes in prop::collection::vec((0_usize..80, any::<u64>(), any::<bool>()), 1..60)
    ) {
        let (geometry, words) = (geometry(), memory(geometry()));
        let mut policy = Consumer::at(geometry.up(&words).unwrap(), 0);
        let mut down = Producer::at(geometry.down(&words).unwrap(), 0);
        let mut room = [0; 4096];
        for (at, value, small) in writes {
            words[at].store(if small { value % 8 } else { value }, Relaxed);
            match policy.take(&mut room) {
                Ok(taken) => prop_assert!(taken <= 48 && taken % 12 == 0),
                Err(Nonsense) => prop_assert_eq!(policy.waiting(), Ok(0)),
            }
            let before = down.head();
            let is_written = down.push(&[1]).is_ok();
            prop_assert_eq!(down.head() - before, u64::from(is_written));
            let _ = Geometry::read(&words);
        }
    }

    /// A reader gets exactly the records that were written, whichever side is faster.
    #[test]
    fn nothing_is_lost_or_made_up(steps in prop::collection::vec(any::<bool>(), 0..200)) {
        let (geometry, words) = (geometry(), memory(geometry()));
        let mut up = Producer::at(geometry.up(&words).unwrap(), 0);
        let mut policy = Consumer::at(geometry.up(&words).unwrap(), 0);
        let (mut expected, mut next) = (std::collections::VecDeque::new(), 0_u8);
        for writes in steps {
            let mut room = [0; 12];
            if writes {
                next = next.wrapping_add(1);
                let is_full = expected.len() == 4;
                prop_assert_eq!(up.push(&[next; 12]).is_err(), is_full);
                if !is_full { expected.push_back(next) }
            } else {
                let there = expected.pop_front();
                prop_assert_eq!(policy.pop(&mut room), Ok(there.is_some()));
                prop_assert_eq!(room, [there.unwrap_or(0); 12]);
            }
        }
    }
}
