//! Records read from a ring are whole, in every order that memory allows (loom).

use std::sync::atomic::Ordering;

use ekiden_hints::{Consumer, Geometry, Producer, Side, Word};
use loom::sync::{Arc, atomic::AtomicU64};
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

#[test]
fn a_record_that_is_read_is_whole() {
    loom::model(|| {
        let used = |at: usize| (512..514).contains(&at) || [16, 32].contains(&at);
        let cell = |at| if used(at) { Cell::Shared(AtomicU64::new(0)) } else { Cell::Unused };
        let words: Arc<Vec<Cell>> = Arc::new((0..GEOMETRY.bytes() / 8).map(cell).collect());
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
