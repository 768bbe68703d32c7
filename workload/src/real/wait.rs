//! Locks, barriers and conditions between processes: futexes in memory that all tasks of a load share.

use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};

use crate::real::sys::{self, Shared};
use crate::spec::{WaitMode, Workload};

/// The lock is free.
const FREE: u32 = 0;
/// A task has the lock.
const TAKEN: u32 = 1;
/// A task has the lock, and others may sleep for it.
const WANTED: u32 = 2;

/// How often one that spins looks before it looks at its CPU time.
const LOOKS: u32 = 64;

/// Everything that the tasks of a load wait for.
pub(crate) struct Waits {
    locks: Shared<AtomicU32>,
    /// How many tasks have come to each barrier.
    arrived: Shared<AtomicU32>,
    /// How often all have come to each barrier.
    rounds: Shared<AtomicU32>,
    /// How often each condition was signalled.
    signals: Shared<AtomicU32>,
    /// Idle servers of each device.
    servers: Shared<AtomicU32>,
}

impl Waits {
    pub(crate) fn new(load: &Workload) -> io::Result<Self> {
        let words = |count: u32| Shared::new(count as usize);
        let servers = Shared::<AtomicU32>::new(load.devices.len())?;
        servers.iter().zip(&load.devices).for_each(|(free, device)| free.store(device.servers, Relaxed));
        Ok(Self {
            servers,
            locks: words(load.locks())?,
            arrived: words(load.barriers())?,
            rounds: words(load.barriers())?,
            signals: words(load.conditions())?,
        })
    }

    /// Takes a lock. After Drepper, *Futexes Are Tricky*: a task that has slept marks the lock as wanted, since there may be
    /// others who sleep.
    pub(crate) fn lock(&self, number: u32, mode: WaitMode) -> Result<(), Errno> {
        let lock = &self.locks[number as usize];
        let take = || lock.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_ok();
        if take() || spin(mode, || lock.load(Relaxed) == FREE && take()) {
            return Ok(());
        }
        while lock.swap(WANTED, Acquire) != FREE {
            sleep(lock, WANTED)?;
        }
        Ok(())
    }

    pub(crate) fn unlock(&self, number: u32) -> Result<(), Errno> {
        let lock = &self.locks[number as usize];
        if lock.swap(FREE, Release) == WANTED {
            futex::wake(lock, Flags::empty(), 1)?;
        }
        Ok(())
    }

    pub(crate) fn barrier(&self, number: u32, parties: u32, mode: WaitMode) -> Result<(), Errno> {
        let (arrived, rounds) = (&self.arrived[number as usize], &self.rounds[number as usize]);
        let round = rounds.load(Acquire);
        if arrived.fetch_add(1, Acquire) + 1 >= parties {
            // No task comes again before the round is over.
            arrived.store(0, Relaxed);
            rounds.fetch_add(1, Release);
            futex::wake(rounds, Flags::empty(), i32::MAX as u32)?;
            return Ok(());
        }
        let over = || rounds.load(Acquire) != round;
        if !spin(mode, over) {
            while !over() {
                sleep(rounds, round)?;
            }
        }
        Ok(())
    }

    /// As `pthread_cond_wait`: now and then it returns without a signal.
    pub(crate) fn wait_for(&self, condition: u32, lock: Option<u32>) -> Result<(), Errno> {
        let signals = &self.signals[condition as usize];
        let before = signals.load(Acquire);
        if let Some(lock) = lock {
            self.unlock(lock)?;
        }
        while signals.load(Acquire) == before {
            sleep(signals, before)?;
        }
        lock.map_or(Ok(()), |lock| self.lock(lock, WaitMode::Block))
    }

    pub(crate) fn signal(&self, condition: u32, most: u32) -> Result<(), Errno> {
        let signals = &self.signals[condition as usize];
        signals.fetch_add(1, Release);
        futex::wake(signals, Flags::empty(), most).map(drop)
    }

    /// Waits for a server of the device.
    pub(crate) fn take_server(&self, device: u32) -> Result<(), Errno> {
        let free = &self.servers[device as usize];
        while free.fetch_update(Acquire, Relaxed, |free| free.checked_sub(1)).is_err() {
            sleep(free, 0)?;
        }
        Ok(())
    }

    /// Gives it back.
    pub(crate) fn free_server(&self, device: u32) -> Result<(), Errno> {
        let free = &self.servers[device as usize];
        free.fetch_add(1, Release);
        futex::wake(free, Flags::empty(), 1).map(drop)
    }
}

/// Spins until `done`; `false` if it is time to sleep before.
fn spin(mode: WaitMode, done: impl Fn() -> bool) -> bool {
    let spin_ns = match mode {
        WaitMode::Block => return false,
        WaitMode::Spin => u64::MAX,
        WaitMode::SpinThenBlock { spin_ns } => spin_ns,
    };
    let until_ns = sys::own_cpu_ns().saturating_add(spin_ns);
    loop {
        if (0..LOOKS).any(|_| done()) {
            return true;
        }
        if spin_ns != u64::MAX && sys::own_cpu_ns() >= until_ns {
            return false;
        }
    }
}

/// Sleeps while the word has this value, or until a wake-up for this word.
fn sleep(word: &AtomicU32, value: u32) -> Result<(), Errno> {
    match futex::wait(word, Flags::empty(), value, None) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}
