//! Records drained from a ring while its CPU writes are whole, in every order that memory allows (loom): the steps of
//! `CallWriter::turn` in `src/call_writer.rs`, and of `CallLog::drain` in `hosts/kernel/loader/src/call_log.rs`.

use loom::{
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
            fence,
        },
    },
    thread,
};

/// Records of a ring, and the words of each.
const RECORDS: u64 = 2;
const WORDS: usize = 2;

/// How many records a CPU may have begun that its count does not have yet.
const UNFINISHED: u64 = 1;

#[derive(Default)]
struct Ring {
    head: AtomicU64,
    records: [[AtomicU64; WORDS]; RECORDS as usize],
}

impl Ring {
    fn record(&self, number: u64) -> &[AtomicU64; WORDS] {
        &self.records[(number % RECORDS) as usize]
    }

    /// Every word of a record is its number, counted from 1.
    fn write(&self, number: u64, is_fenced: bool) {
        self.record(number).iter().for_each(|word| word.store(number + 1, Relaxed));
        self.head.store(number + 1, Release);
        if is_fenced {
            fence(Release);
        }
    }

    fn drain(&self) {
        let oldest = |head: u64| (head + UNFINISHED).saturating_sub(RECORDS);
        let head = self.head.load(Acquire);
        let first = oldest(head);
        let copy: Vec<_> =
            (first..head).map(|number| self.record(number).each_ref().map(|word| word.load(Relaxed))).collect();
        fence(Acquire);
        let whole = first.max(oldest(self.head.load(Acquire))).min(head);
        for number in whole..head {
            assert_eq!(copy[(number - first) as usize], [number + 1; WORDS], "record {number} of {head}");
        }
    }
}

/// While so many drain the ring; all but one have a thread of their own.
fn check(readers: usize, preemptions: Option<usize>, is_fenced: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        let ring = Arc::new(Ring::default());
        let others: Vec<_> = (1..readers)
            .map(|_| {
                let ring = ring.clone();
                thread::spawn(move || ring.drain())
            })
            .collect();
        let writer = thread::spawn({
            let ring = ring.clone();
            move || (0..4).for_each(|number| ring.write(number, is_fenced))
        });
        ring.drain();
        writer.join().unwrap();
        others.into_iter().for_each(|other| other.join().unwrap());
        ring.drain();
    });
}

#[test]
fn what_is_drained_is_whole() {
    check(1, None, true);
}

#[test]
fn what_two_drain_is_whole() {
    check(2, Some(2), true);
}

/// The model sees what it is there for.
#[test]
#[should_panic(expected = "record")]
fn without_the_fence_it_is_not() {
    check(1, None, false);
}
