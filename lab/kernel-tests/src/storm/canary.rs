//! A thread that wants a CPU, and notes how long it had none.

use std::{
    hint::spin_loop,
    os::unix::net::UnixDatagram,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Result;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use super::{gone_or, set_class};

/// See `BEATS_PER_HINT` in `latency_probe.rs`: without the hint one who looks at the clock all the time kept an emulator's other CPUs waiting for
/// the lock of its CPU's timers for 21 s, one of them with its run queue locked, until RCU complained of a stall.
const LOOKS_PER_HINT: u64 = 256;

/// A thread that wants a CPU, and notes how long it had none.
pub(super) struct Canary {
    begin: Instant,
    notes: Arc<Notes>,
    thread: JoinHandle<()>,
}

/// For how long it waits.
pub(super) struct Waits {
    begin: Instant,
    notes: Arc<Notes>,
}

impl Waits {
    /// Nothing while it does not wait.
    pub(super) fn now(&self) -> Duration {
        self.begin.elapsed().saturating_sub(Duration::from_nanos(self.notes.since_ns.load(Relaxed)))
    }
}

/// The caller runs on one CPU from now on, before everything that policies run. Either may fail: where there is no such CPU it runs on any.
fn stay_on(cpu: u32) {
    let mut only = CpuSet::new();
    let _ = only.set(cpu as usize);
    gone_or(sched_setaffinity(Pid::from_raw(0), &only));
    let _ = set_class(0, libc::SCHED_FIFO, 2);
}

#[derive(Default)]
struct Notes {
    worst_ns: AtomicU64,
    /// When it wanted one, since it began.
    since_ns: AtomicU64,
}

impl Canary {
    /// On any CPU.
    pub(super) fn start(stop: &Arc<AtomicBool>, nap: Duration) -> Self {
        Self::run(stop, nap, || (), thread::sleep)
    }

    /// On one CPU while it is online, before everything that policies run: if this one waits, the CPU stands still.
    pub(super) fn on(cpu: u32, stop: &Arc<AtomicBool>) -> Self {
        Self::run(stop, Duration::from_millis(100), move || stay_on(cpu), thread::sleep)
    }

    /// On one CPU, woken by its timer wheel, which its tick and its softirqs have to serve, as are threads of the kernel's own.
    pub(super) fn of_wheel(cpu: u32, stop: &Arc<AtomicBool>) -> Result<Self> {
        let nap = Duration::from_millis(100);
        // Nothing ever comes.
        let (socket, other) = UnixDatagram::pair()?;
        socket.set_read_timeout(Some(nap))?;
        Ok(Self::run(
            stop,
            nap,
            move || stay_on(cpu),
            move |_| {
                let _ = (&other, socket.recv(&mut [0]));
            },
        ))
    }

    /// The step before each nap may fail.
    fn run(
        stop: &Arc<AtomicBool>,
        nap: Duration,
        before_nap: impl Fn() + Send + 'static,
        sleep: impl Fn(Duration) + Send + 'static,
    ) -> Self {
        let (begin, notes) = (Instant::now(), Arc::new(Notes::default()));
        let (noted, stop) = (notes.clone(), stop.clone());
        let thread = thread::spawn(move || {
            for look in (1_u64..).take_while(|_| !stop.load(Relaxed)) {
                before_nap();
                let since = begin.elapsed() + nap;
                noted.since_ns.store(since.as_nanos() as u64, Relaxed);
                if !nap.is_zero() {
                    sleep(nap);
                } else if look % LOOKS_PER_HINT == 0 {
                    spin_loop();
                }
                noted.worst_ns.fetch_max(begin.elapsed().saturating_sub(since).as_nanos() as u64, Relaxed);
            }
        });
        Self { begin, notes, thread }
    }

    /// Up to now, even if it still waits.
    pub(super) fn worst_ms(&self) -> u64 {
        Duration::from_nanos(self.notes.worst_ns.load(Relaxed)).max(self.waits().now()).as_millis() as u64
    }

    /// Since the last time that it was asked, up to now.
    pub(super) fn take_worst_ms(&self) -> u64 {
        Duration::from_nanos(self.notes.worst_ns.swap(0, Relaxed)).max(self.waits().now()).as_millis() as u64
    }

    pub(super) fn waits(&self) -> Waits {
        Waits { begin: self.begin, notes: self.notes.clone() }
    }

    pub(super) fn end(self) -> Result<()> {
        self.thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))
    }
}
