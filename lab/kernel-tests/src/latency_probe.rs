//! Threads that note all the time that they run, so that nothing which keeps them from it goes unseen.

use std::{
    hint::spin_loop,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicI32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ekiden_workload::real::spin::keep_busy;
use nix::{
    sched::{CpuSet, sched_setaffinity, sched_yield},
    time::{ClockId, clock_gettime},
    unistd::{Pid, gettid},
};

use crate::load::class_of;

/// How long they rest, if they do.
const REST: Duration = Duration::from_millis(2);
/// Emulators that run all CPUs in turn on one thread go on to the next one at this hint. Without it, a turn ends where the kernel programs
/// its timer, with a lock held: a CPU that spins for that lock looks at it only then, for seconds, and all who wait for that CPU with it.
const BEATS_PER_HINT: usize = 32;
/// In between a thread that keeps a CPU busy does this many instructions of nothing, which an emulator is quick with.
const INSTRUCTIONS_PER_BEAT: u32 = 1_000;
/// The hint comes more often where a beat takes as long as a system call.
const YIELDS_PER_HINT: usize = 16;
/// What a thread does that no policy has.
const CPU: &str = "real time";

/// What one thread notes.
struct Track {
    what: &'static str,
    tid: AtomicI32,
    beats: AtomicU64,
    last_ns: AtomicU64,
    gap: Mutex<Gap>,
}

/// The longest time that a thread did not run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gap {
    /// What the thread does.
    pub(crate) who: &'static str,
    pub(crate) ms: f64,
    /// When it was over, in milliseconds of the kernel's clock.
    pub(crate) until_ms: f64,
}

/// For each CPU one thread that keeps it busy, one that rests, and one that stays there and is woken up from elsewhere; one that
/// gives way; and one more that rests. Besides one for each CPU that no policy has, which wakes up another one's: before it goes
/// nothing that policies have, so what keeps it from running is not that they chose others.
pub(crate) struct LatencyProbe {
    tracks: Vec<Arc<Track>>,
    over: Arc<AtomicBool>,
    /// While it is not, those that keep CPUs busy rest too: it would take an emulator long to get anything else done.
    counts: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Track {
    fn beat(&self) {
        let now_ns = now_ns();
        let ms = now_ns.saturating_sub(self.last_ns.swap(now_ns, Relaxed)) as f64 / 1e6;
        let mut gap = self.gap.lock().unwrap_or_else(PoisonError::into_inner);
        if ms > gap.ms {
            *gap = Gap { who: self.what, ms, until_ms: now_ns as f64 / 1e6 };
        }
        drop(gap);
        self.beats.fetch_add(1, Release);
    }

    fn gap(&self) -> Gap {
        *self.gap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LatencyProbe {
    /// Starts them.
    pub(crate) fn start(cpus: usize) -> Result<Self> {
        let flag = || Arc::new(AtomicBool::new(false));
        let mut probe = Self { tracks: Vec::new(), over: flag(), counts: flag(), threads: Vec::new() };
        for _ in 0..cpus {
            let counts = probe.counts.clone();
            probe.add("spin", move |beat| {
                if counts.load(Relaxed) {
                    for _ in 0..BEATS_PER_HINT {
                        beat();
                        keep_busy(INSTRUCTIONS_PER_BEAT);
                    }
                    spin_loop();
                } else {
                    rest(beat);
                }
            })?;
            probe.add("rest", rest)?;
        }
        for cpu in 0..cpus {
            let tid = probe.add("woken", |beat| {
                thread::park();
                beat();
            })?;
            sched_setaffinity(Pid::from_raw(tid), &only(cpu)?).context("cannot keep a thread on a CPU")?;
            let woken = probe.threads.last().map(|thread| thread.thread().clone());
            let tid = probe.add(CPU, move |beat| {
                rest(beat);
                woken.iter().for_each(thread::Thread::unpark);
            })?;
            // Wakes it up from elsewhere, if there is another CPU.
            sched_setaffinity(Pid::from_raw(tid), &only((cpu + 1) % cpus)?).context("cannot keep a thread on a CPU")?;
            class_of(tid, libc::SCHED_FIFO)?;
        }
        let counts = probe.counts.clone();
        probe.add("yield", move |beat| {
            if counts.load(Relaxed) {
                for _ in 0..YIELDS_PER_HINT {
                    beat();
                    // It cannot fail.
                    let _ = sched_yield();
                }
                spin_loop();
            } else {
                rest(beat);
            }
        })?;
        probe.add("others'", rest)?;
        probe.all_run()?;
        Ok(probe)
    }

    /// Adds a thread that does something again and again, and returns its id.
    fn add(&mut self, what: &'static str, step: impl Fn(&dyn Fn()) + Send + 'static) -> Result<i32> {
        let (over, zero) = (self.over.clone(), || AtomicU64::new(0));
        let gap = Mutex::default();
        let track = Arc::new(Track { what, tid: AtomicI32::new(0), beats: zero(), last_ns: zero(), gap });
        let own = track.clone();
        self.threads.push(thread::Builder::new().name(what.into()).spawn(move || {
            own.last_ns.store(now_ns(), Relaxed);
            own.tid.store(gettid().as_raw(), Release);
            while !over.load(Relaxed) {
                step(&|| own.beat());
            }
        })?);
        while track.tid.load(Acquire) == 0 {
            thread::sleep(REST);
        }
        let tid = track.tid.load(Acquire);
        self.tracks.push(track);
        Ok(tid)
    }

    /// The thread that another policy may have.
    pub(crate) fn of_others(&self) -> i32 {
        self.tracks.last().map_or(0, |track| track.tid.load(Acquire))
    }

    /// From here on gaps count, and there is something to do for all CPUs.
    ///
    /// # Errors
    /// If one of them does not run even so.
    pub(crate) fn begin(&self) -> Result<()> {
        self.counts.store(true, Relaxed);
        thread::sleep(20 * REST);
        self.all_run()?;
        for track in &self.tracks {
            *track.gap.lock().unwrap_or_else(PoisonError::into_inner) = Gap::default();
        }
        Ok(())
    }

    /// Puts all that can be anywhere on one CPU, and lets them go again: the others take what waits there.
    ///
    /// # Errors
    /// If a thread cannot be put anywhere.
    pub(crate) fn crowd(&self) -> Result<()> {
        let (first, mut all) = (only(0)?, CpuSet::new());
        (0..thread::available_parallelism()?.get()).try_for_each(|cpu| all.set(cpu))?;
        for cpus in [first, all] {
            for track in self.tracks.iter().filter(|track| matches!(track.what, "spin" | "yield")) {
                sched_setaffinity(Pid::from_raw(track.tid.load(Acquire)), &cpus).context("cannot move a thread")?;
            }
            thread::sleep(REST);
        }
        Ok(())
    }

    /// They have time until the next one.
    pub(crate) fn end(&self) {
        self.counts.store(false, Relaxed);
    }

    /// The longest time that one of them did not run, of those that are over.
    pub(crate) fn gap(&self) -> Gap {
        self.longest(|track| track.what != CPU)
    }

    /// The longest gap of threads that no policy has: for so long a CPU itself stood still.
    pub(crate) fn cpu_gap(&self) -> Gap {
        self.longest(|track| track.what == CPU)
    }

    fn longest(&self, of: impl Fn(&Track) -> bool) -> Gap {
        let gaps = self.tracks.iter().filter(|track| of(track)).map(|track| track.gap());
        gaps.max_by(|one, other| one.ms.total_cmp(&other.ms)).unwrap_or_default()
    }

    /// Waits until each of them has run once more, and returns how long that took.
    ///
    /// # Errors
    /// A thread does not run for five seconds.
    pub(crate) fn all_run(&self) -> Result<f64> {
        let beats = |track: &Arc<Track>| track.beats.load(Acquire);
        let (before, start) = (self.tracks.iter().map(beats).collect::<Vec<_>>(), Instant::now());
        for (track, before) in self.tracks.iter().zip(before) {
            let (mut seen, mut since) = (before, start);
            // Twice: the first time may have begun before.
            while seen < before + 2 {
                if beats(track) > seen {
                    (seen, since) = (beats(track), Instant::now());
                    continue;
                }
                if since.elapsed() > Duration::from_secs(5) {
                    let tid = track.tid.load(Acquire);
                    let of = |file: &str| {
                        std::fs::read_to_string(format!("/proc/self/task/{tid}/{file}")).unwrap_or_default()
                    };
                    bail!("a task ({}) does not run any more: {}{}", track.what, of("sched"), of("status"));
                }
                thread::sleep(REST / 4);
            }
        }
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }
}

impl Drop for LatencyProbe {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn only(cpu: usize) -> Result<CpuSet> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu)?;
    Ok(cpus)
}

fn rest(beat: &dyn Fn()) {
    thread::sleep(REST);
    beat();
}

/// The clock that the kernel's own messages go by, nearly.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    now.as_nanos() as u64
}
