//! How long a thread waits when another one has woken it up: message threads that each wake up their workers and wait for
//! their answers, as schbench has them, by futexes that say nothing of who sleeps next (papers/000, table 6).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::mpsc::channel;
use std::thread::{self, Thread};
use std::time::Duration;
use std::{io, iter};

use ekiden_user::hints::{Geometry, Side};
use ekiden_user::{BytesQueue, Policy, types};
use rustix::thread::gettid;

use crate::random::Random;
use crate::real::exec::{ExecError, system};
use crate::real::process_group::now_ns;
use crate::real::spin::Spin;

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wakeups<'a> {
    /// Message threads.
    pub messages: u32,
    /// Workers of each.
    pub workers: u32,
    /// How often a message thread wakes up its workers. A tenth as often before that, which does not count.
    pub rounds: u32,
    /// What each does when it has woken up, in nanoseconds of work.
    pub work_ns: u64,
    /// How long a message thread sleeps at least when it has all answers, in nanoseconds; up to a quarter more is drawn, as schbench does.
    pub sleep_ns: u64,
    /// How fast that is, if it was measured.
    pub spin: Option<Spin>,
    /// The policy that is told which threads belong together: a message thread and its workers.
    pub told: Option<&'a str>,
}

/// A worker's end of what passes between it and its message thread.
#[derive(Default)]
struct Place {
    /// When it was woken up, and how often.
    woken_ns: AtomicU64,
    rounds: AtomicU32,
}

/// How long each wake-up of a worker took, in nanoseconds, until it ran.
///
/// # Errors
/// If the policy that is to be told does not run, or a thread cannot be started.
pub fn run(load: &Wakeups<'_>) -> Result<Vec<u64>, ExecError> {
    let spin = load.spin.unwrap_or_else(Spin::calibrate);
    let mut queue = load.told.map(open).transpose()?;
    let places: Vec<Vec<Place>> =
        iter::repeat_with(|| iter::repeat_with(Place::default).take(load.workers as usize).collect())
            .take(load.messages as usize)
            .collect();
    let answers: Vec<AtomicU32> = (0..load.messages).map(|_| AtomicU32::new(0)).collect();
    let panicked = |_| system("wake threads up")(io::Error::other("a thread panicked"));
    let (first, all) = (load.rounds / 10, load.rounds / 10 + load.rounds);
    thread::scope(|scope| {
        let (ids, id) = channel();
        let mut waits = Vec::new();
        let mut messages = Vec::new();
        for (set, (places, answers)) in (1..).zip(places.iter().zip(&answers)) {
            // Workers and their message thread have to know each other first.
            let (gives, takes) = channel::<Vec<Thread>>();
            let message_ids = ids.clone();
            let message = scope.spawn(move || {
                let mut random = Random::stream(1, set.into());
                let _ = message_ids.send((set, gettid().as_raw_nonzero().get() as u32));
                let Ok(workers) = takes.recv() else { return };
                for round in 1..=all {
                    for (place, worker) in places.iter().zip(&workers) {
                        place.woken_ns.store(now_ns(), Relaxed);
                        place.rounds.store(round, Release);
                        worker.unpark();
                    }
                    while answers.load(Acquire) < round * places.len() as u32 {
                        thread::park();
                    }
                    spin.work(load.work_ns);
                    if load.sleep_ns > 0 {
                        thread::sleep(Duration::from_nanos(load.sleep_ns + random.up_to(load.sleep_ns / 4)));
                    }
                }
            });
            let mut workers = Vec::new();
            for place in places {
                let (ids, message) = (ids.clone(), message.thread().clone());
                let worker = scope.spawn(move || {
                    let _ = ids.send((set, gettid().as_raw_nonzero().get() as u32));
                    let mut waits = Vec::with_capacity(load.rounds as usize);
                    for round in 1..=all {
                        while place.rounds.load(Acquire) < round {
                            thread::park();
                        }
                        let waited_ns = now_ns() - place.woken_ns.load(Relaxed);
                        if round > first {
                            waits.push(waited_ns);
                        }
                        spin.work(load.work_ns);
                        answers.fetch_add(1, Release);
                        message.unpark();
                    }
                    waits
                });
                workers.push(worker.thread().clone());
                waits.push(worker);
            }
            messages.push((gives, workers));
        }
        for (set, thread) in id.iter().take((load.messages * (load.workers + 1)) as usize) {
            if let Some(queue) = &mut queue {
                say(queue, thread, set);
            }
        }
        messages.into_iter().for_each(|(gives, workers)| _ = gives.send(workers));
        let waits = waits.into_iter().map(thread::ScopedJoinHandle::join).collect::<Result<Vec<_>, _>>();
        Ok(waits.map_err(panicked)?.concat())
    })
}

fn open(policy: &str) -> ekiden_user::Result<BytesQueue> {
    let types = types(Policy::Named(policy))?;
    let side = |side: Side| Side { records: 64, ..side };
    BytesQueue::open(Policy::Named(policy), Geometry { up: side(types.up), down: side(types.down) })
}

/// That a thread is in a set, as `locality` reads it; and waits until the policy has heard it.
fn say(queue: &mut BytesQueue, thread: u32, set: u32) {
    let words = [1, thread, set];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
    bytes.resize(queue.geometry().up.bytes as usize, 0);
    // A policy that is gone, or does not listen, changes what is measured and nothing else.
    let _ = queue.send(&bytes);
    let _ = queue.ring();
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn every_wake_up_counts_but_the_first_tenth_and_message_threads_sleep_in_between() {
        let load = Wakeups {
            messages: 2,
            workers: 3,
            rounds: 20,
            work_ns: 0,
            sleep_ns: 1_000_000,
            spin: Some(Spin { loops_per_ms: 1 }),
            told: None,
        };
        let begin = Instant::now();
        assert_eq!(run(&load).unwrap().len(), 2 * 3 * 20);
        assert!(begin.elapsed() >= Duration::from_millis(22), "{:?}", begin.elapsed());
    }
}
