//! The memory of a queue of hints, into which a program writes anything at any time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ekiden_hints::{Consumer, Geometry, Producer, Side};

/// The bytes are what a program writes, ten for each write: where, and what. After each, the kernel's side takes
/// hints and writes a notice, and a program that has just come reads the header. Good is what leaves the header as it
/// was.
pub fn queues(bytes: &[u8]) -> bool {
    let side = |bytes, records| Side { fingerprint: 7, bytes, records };
    let geometry = Geometry { up: side(12, 8), down: side(20, 4) };
    let words: Vec<_> = (0..geometry.bytes() / 8).map(|_| AtomicU64::new(0)).collect();
    assert!(geometry.write(&words));
    let (up, down) = (geometry.up(&words).expect("it fits"), geometry.down(&words).expect("it fits"));
    let (mut hints, mut notices) = (Consumer::at(up, 0), Producer::at(down, 0));
    let mut room = [0; 512];
    for write in bytes.chunks(10) {
        let mut value = [0; 8];
        let (at, rest) = write.split_at(write.len().min(2));
        value[..rest.len()].copy_from_slice(rest);
        let at = at.iter().fold(0, |all, byte| all << 8 | usize::from(*byte));
        words[at % words.len()].store(u64::from_le_bytes(value), Relaxed);
        match hints.take(&mut room) {
            Ok(taken) => assert!(taken <= 8 * 12 && taken % 12 == 0, "{taken} bytes of a ring that has 96"),
            Err(_) => assert_eq!(hints.waiting(), Ok(0), "nonsense is passed over once"),
        }
        let before = notices.head();
        let is_written = notices.push(&[1; 20]).is_ok();
        assert_eq!(notices.head() - before, u64::from(is_written));
        // As a program does that goes by what is there.
        if let Ok(read) = Geometry::read(&words) {
            let down = read.down(&words).expect("what was read fits into the memory");
            let mut notice = vec![0; read.down.bytes as usize];
            let _ = Consumer::at(down, words[64].load(Relaxed)).pop(&mut notice);
        } else {
            // The kernel goes by what it keeps for itself.
            assert!(geometry.write(&words));
        }
    }
    Geometry::read(&words) == Ok(geometry)
}
