//! What queues of hints cost: a program that writes hints, one that holds queues open, and one that floods its own beside
//! another program that works. Hints are those of [`locality`], which say that the thread itself is in a set.
//!
//! [`locality`]: ../../../policies/src/locality.rs

use std::hint::spin_loop;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ekiden_user::hints::{Geometry, Side};
use ekiden_user::{BytesQueue, Policy, Result, types};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use rustix::thread::gettid;

use crate::real::exec::{Cpus, ExecError, check_one_thread, system};
use crate::real::process_group::now_ns;
use crate::real::spin::Spin;
use crate::real::sys::{self, Shared};

/// Hints that are written between two looks at the clock.
const SENT: u64 = 200;

/// How often each is measured.
const TIMES: usize = 101;

/// Hints that are heard at a time; there is room for as many answers.
const HEARD: u64 = 33;

/// Nanoseconds of the monotonic clock, or instructions where it counts these: medians.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// To write a hint, in the program, without a ring.
    pub send: f64,
    /// To ring, as far as that does not depend on how many hints there are.
    pub ring: f64,
    /// For each hint that a ring has the policy hear: to copy it, the policy's call, and its answer.
    pub heard: f64,
}

/// A queue to a policy, with room for this many hints and notices.
fn open(policy: &str, hints: u32, notices: u32) -> Result<BytesQueue> {
    let types = types(Policy::Named(policy))?;
    let side = |side: Side, records| Side { records, ..side };
    BytesQueue::open(Policy::Named(policy), Geometry { up: side(types.up, hints), down: side(types.down, notices) })
}

/// That the caller is in set 1, cut or filled up to what the policy takes.
fn hint(queue: &BytesQueue) -> Vec<u8> {
    let words = [1, gettid().as_raw_nonzero().get() as u32, 1];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
    bytes.resize(queue.geometry().up.bytes as usize, 0);
    bytes
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures what a hint costs.
///
/// # Errors
/// If the policy does not run, or takes no hints.
pub fn costs(policy: &str) -> Result<Costs> {
    let mut queue = open(policy, 4_096, 64)?;
    let hint = hint(&queue);
    let mut notice = vec![0; queue.geometry().down.bytes as usize];
    let mut hear = |queue: &mut BytesQueue| {
        // What it says while it does not run is nothing new.
        let _ = queue.ring();
        while queue.receive(&mut notice) {}
    };
    let clock = median((0..TIMES).map(|_| timed(|| {})).collect());
    let mut send = Vec::new();
    for _ in 0..TIMES {
        let took = timed(|| {
            for _ in 0..SENT {
                let _ = queue.send(&hint);
            }
        });
        send.push((took - clock) / SENT as f64);
        hear(&mut queue);
        hear(&mut queue);
    }
    let mut ring_with = |hints: u64| {
        let mut took = Vec::new();
        for _ in 0..TIMES {
            for _ in 0..hints {
                let _ = queue.send(&hint);
            }
            took.push(timed(|| _ = queue.ring()) - clock);
            hear(&mut queue);
        }
        median(took)
    };
    let (one, many) = (ring_with(1), ring_with(HEARD));
    let heard = (many - one) / (HEARD - 1) as f64;
    Ok(Costs { send: median(send), ring: one - heard, heard })
}

fn timed(work: impl FnOnce()) -> f64 {
    let begin_ns = now_ns();
    work();
    (now_ns() - begin_ns) as f64
}

/// Opens this many queues, in which nothing is ever said. They are there until they are dropped.
///
/// # Errors
/// If the policy does not run, takes no hints, or there would be too many.
pub fn hold(policy: &str, count: u32) -> Result<Vec<BytesQueue>> {
    (0..count).map(|_| open(policy, 64, 64)).collect()
}

/// What a process does beside one that works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// It works, too.
    Work,
    /// It writes hints and rings, without end.
    Flood,
}

/// Counts of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Pieces of work that the other process did.
    pub work: u64,
    /// Hints that were written.
    pub written: u64,
    /// Hints that the policy has heard.
    pub heard: u64,
}

/// Bytes, so to speak, of work: about ten microseconds.
const PIECE_NS: u64 = 10_000;

/// Runs both for so long, on these CPUs.
///
/// # Errors
/// If the policy does not run or takes no hints, or there is no such CPU.
pub fn flood(policy: &str, beside: Beside, cpus: [u32; 2], ns: u64) -> std::result::Result<Kept, ExecError> {
    let usable = Cpus::usable()?;
    let needed = cpus[0].max(cpus[1]) + 1;
    if needed > usable.count() {
        return Err(ExecError::TooFewCpus { needed, have: usable.count() });
    }
    check_one_thread()?;
    let work = Shared::<AtomicU64>::new(1).map_err(system("share memory with the load"))?;
    // A fixed speed, so that a piece is equal work in both runs.
    let piece = Spin { loops_per_ms: 200_000 };
    let until_ns = now_ns() + ns;
    let worker = sys::spawn(|| {
        if usable.confine(Some(&cpus[..1])).is_err() {
            return 1;
        }
        while now_ns() < until_ns {
            piece.work(PIECE_NS);
            work[0].fetch_add(1, Relaxed);
        }
        0
    })
    .map_err(system("start a process"))?;
    usable.confine(Some(&cpus[1..])).map_err(|errno| system("stay on a CPU")(errno.into()))?;
    let mut kept = Kept::default();
    match beside {
        Beside::Work => {
            while now_ns() < until_ns {
                piece.work(PIECE_NS);
            }
        }
        Beside::Flood => {
            let mut queue = open(policy, 64, 64)?;
            let hint = hint(&queue);
            while now_ns() < until_ns {
                while queue.send(&hint).is_ok() {
                    kept.written += 1;
                }
                let _ = queue.ring();
                // An emulator whose CPUs take turns switches to the next one here; otherwise it would be the emulator that is flooded.
                spin_loop();
            }
            kept.heard = queue.counts().taken;
        }
    }
    let ended = waitid(WaitId::Pid(worker), WaitIdOptions::EXITED).map_err(io::Error::from);
    ended.map_err(system("wait for a process"))?;
    kept.work = work[0].load(Relaxed);
    Ok(kept)
}
