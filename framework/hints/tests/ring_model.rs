//! Records read from a ring are whole, in every order that memory allows (loom).

use std::sync::atomic::Ordering;

use ekiden_hints::{Consumer, Geometry, Producer, Side, Word};
use loom::sync::{Arc, Mutex, atomic::AtomicU64};
use loom::thread;

/// A word of the model; those that are not looked at are not worth its time.
enum Cell {
    Shared(AtomicU64),
    Unused,
}

impl Word for Cell {
    fn load(&self, order: Ordering) -> u64 {
        match self {
            Self::Shared(word) => word.load(order),
            Self::Unused => 0,
        }
    }

    fn store(&self, value: u64, order: Ordering) {
        if let Self::Shared(word) = self {
            word.store(value, order);
        }
    }
}

const GEOMETRY: Geometry = Geometry {
    up: Side { fingerprint: 1, bytes: 16, records: 1 },
    down: Side { fingerprint: 1, bytes: 0, records: 1 },
};

fn memory() -> Arc<Vec<Cell>> {
    let used = |at: usize| (512..514).contains(&at) || [16, 32].contains(&at);
    let cell = |at| if used(at) { Cell::Shared(AtomicU64::new(0)) } else { Cell::Unused };
    Arc::new((0..GEOMETRY.bytes() / 8).map(cell).collect())
}

#[test]
fn a_record_that_is_read_is_whole() {
    loom::model(|| {
        let words = memory();
        let writer = thread::spawn({
            let words = words.clone();
            move || {
                let mut up = Producer::at(GEOMETRY.up(&words[..]).unwrap(), 0);
                (1..4_u8).filter(|value| up.push(&[*value; 16]).is_ok()).last()
            }
        });
        let mut policy = Consumer::at(GEOMETRY.up(&words[..]).unwrap(), 0);
        let mut last = 0;
        for _ in 0..2 {
            let mut room = [0; 16];
            if policy.pop(&mut room).unwrap() {
                assert!(room.iter().all(|byte| *byte == room[0]) && room[0] > last, "{room:?} after {last}");
                last = room[0];
            }
        }
        writer.join().unwrap();
    });
}

/// A side has one writer at a time: in the kernel CPUs have a lock for it, and hand on what they have written there (`ekiden_c_notify` in
/// `hosts/kernel/module/queues.c`).
#[test]
fn a_record_of_one_of_two_cpus_that_write_is_whole() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let (words, head) = (memory(), Arc::new(Mutex::new(0)));
        let writers = [1_u8, 2].map(|value| {
            let (words, head) = (words.clone(), head.clone());
            thread::spawn(move || {
                let mut head = head.lock().unwrap();
                let mut up = Producer::at(GEOMETRY.up(&words[..]).unwrap(), *head);
                let is_written = up.push(&[value; 16]).is_ok();
                *head = up.head();
                is_written
            })
        });
        let mut policy = Consumer::at(GEOMETRY.up(&words[..]).unwrap(), 0);
        let (mut read, mut room) = (0, [0; 16]);
        let mut pop = || {
            if policy.pop(&mut room).unwrap() {
                assert!(room.iter().all(|byte| *byte == room[0]) && room[0] > 0, "{room:?}");
                read += 1;
            }
        };
        pop();
        let written = writers.map(|writer| writer.join().unwrap()).into_iter().filter(|is_written| *is_written);
        let written = written.count();
        pop();
        assert_eq!(read, written, "what was written is read once");
    });
}
