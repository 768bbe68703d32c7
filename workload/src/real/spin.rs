//! Fixed CPU work: a loop whose speed was measured once, so that "1 ms of work" is the same number of passes however many tasks
//! compete. What it goes through does nothing: an emulator whose clock counts instructions makes hundreds of those in the time that it
//! takes for one that stores something, and a guest's second of work takes a tenth of the host's time.

use std::hint::spin_loop;

use crate::real::sys;

use rustix::time::{ClockId, clock_gettime};

/// Work measured in time on an undisturbed CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spin {
    /// Passes of the loop that take one millisecond of CPU time.
    pub loops_per_ms: u64,
}

impl Spin {
    /// Measures the loop by the caller's own CPU time, the best of several short tries, in about 20 ms.
    ///
    /// CPU time and not wall time, so that competition does not make the loop look slow. Where CPUs share one budget
    /// of instructions (QEMU's icount), measure while the others are idle.
    pub fn calibrate() -> Spin {
        const TRIES: usize = 9;
        const TRY_NS: u64 = 1_500_000;
        let mut loops = 1_000;
        while timed(loops) < TRY_NS {
            loops *= 2;
        }
        let best_ns = (0..TRIES).map(|_| timed(loops)).min().unwrap_or(1).max(1);
        Spin { loops_per_ms: (u128::from(loops) * 1_000_000 / u128::from(best_ns)).max(1) as u64 }
    }

    /// Does the work of `ns` nanoseconds.
    pub fn work(self, ns: u64) {
        spin((u128::from(ns) * u128::from(self.loops_per_ms) / 1_000_000) as u64);
    }
}

/// Passes between two hints. Emulators that run all CPUs in turn on one thread go on to the next CPU then; without
/// that, one CPU has milliseconds and another nothing. For a processor it is nothing, so rarely.
const LOOPS_PER_HINT: u64 = 1_024;

/// Passes of which an emulator makes one piece. Each is as long as the four or five instructions of a loop that adds.
const LOOPS_AT_ONCE: u64 = 8;

fn spin(loops: u64) {
    for block in 1..=loops / LOOPS_AT_ONCE {
        sys::do_nothing();
        if block % (LOOPS_PER_HINT / LOOPS_AT_ONCE) == 0 {
            spin_loop();
        }
    }
    (0..loops % LOOPS_AT_ONCE).for_each(|pass| _ = std::hint::black_box(pass));
}

/// Keeps a CPU busy for this many instructions, or up to 31 more.
pub fn keep_busy(instructions: u32) {
    (0..instructions.div_ceil(sys::NOTHING)).for_each(|_| sys::do_nothing());
}

fn timed(loops: u64) -> u64 {
    let before = clock_gettime(ClockId::ThreadCPUTime);
    spin(loops);
    let after = clock_gettime(ClockId::ThreadCPUTime);
    ((after.tv_sec - before.tv_sec) * 1_000_000_000 + (after.tv_nsec - before.tv_nsec)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other processes may slow down all tries of one loop, and none of another.
    #[test]
    fn ten_times_the_work_takes_about_ten_times_as_long() {
        let measured = |_| {
            let loops = Spin::calibrate().loops_per_ms;
            let best = |loops| (0..5).map(|_| timed(loops)).min().unwrap();
            (best(loops), best(10 * loops))
        };
        let holds = |(one_ns, ten_ns): &(u64, u64)| {
            (500_000..2_000_000).contains(one_ns) && (5..20).contains(&(ten_ns / one_ns.max(&1)))
        };
        let mut seen = Vec::new();
        let once = (0..10).map(measured).any(|times| {
            seen.push(times);
            holds(&times)
        });
        assert!(once, "nanoseconds that 1 and 10 ms of work took, time after time: {seen:?}");
    }
}
