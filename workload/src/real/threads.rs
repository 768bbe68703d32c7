//! A program that starts threads, each of which uses its CPU for a certain time and ends.
//!
//! What a thread uses is CPU time as the kernel counts it, and not work as [`crate::real::spin`] has it: on emulated CPUs that take turns
//! on one of the host's, all work together takes the same time on two CPUs and on sixteen, but CPU time does not.

use std::{io, thread};

use rustix::time::{ClockId, clock_gettime};

use crate::real::{process_group::now_ns, spin::Spin};

/// What the threads are called, with a number after it. Short enough to be told in one record of a trace.
pub const NAME: &str = "hog-";

/// Work between two looks at the clock.
const LOOK: Spin = Spin { loops_per_ms: 4_096 };

/// Starts `count` threads that use `cpu_ns` nanoseconds each, and returns how long that took until the last had ended.
///
/// # Errors
/// If a thread cannot be started.
pub fn run(count: u32, cpu_ns: u64) -> io::Result<u64> {
    let begin_ns = now_ns();
    let hog = move || use_cpu(cpu_ns);
    let start = |number| thread::Builder::new().name(format!("{NAME}{number}")).spawn(hog);
    let hogs: Vec<_> = (0..count).map(start).collect::<io::Result<_>>()?;
    hogs.into_iter().for_each(|hog| hog.join().expect("using a CPU does not panic"));
    Ok(now_ns() - begin_ns)
}

/// Has the caller use its CPU for `cpu_ns` nanoseconds more.
pub(crate) fn use_cpu(cpu_ns: u64) {
    let until_ns = own_cpu_ns() + cpu_ns;
    while own_cpu_ns() < until_ns {
        LOOK.work(1_000_000);
    }
}

/// CPU time of the calling thread, in nanoseconds.
pub(crate) fn own_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_use_their_time_side_by_side_or_one_after_the_other() {
        let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
        let took_ns = run(4, 2_000_000).unwrap();
        assert!(took_ns >= 8_000_000 / cpus.min(4), "{took_ns} ns on {cpus} CPUs");
    }
}
