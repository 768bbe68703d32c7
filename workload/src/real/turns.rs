//! How long a turn really is: two threads that want the same CPU all the time, each of which looks at the clock without
//! end, and at who looked last.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::{io, thread};

use crate::real::exec::{Cpus, ExecError, system};
use crate::real::process_group::now_ns;

/// Turns at the beginning that do not count.
const FIRST: usize = 50;

/// Between two looks of a thread that waits for the other one to begin.
const NOBODY: u32 = 0;

/// How long each turn was, in nanoseconds, from a thread's first look at the clock to its last before the other one's: without what
/// switching takes. Shorter than what was asked for is a turn into which an interrupt came.
///
/// # Errors
/// If there is no such CPU.
pub fn run(cpu: u32, turns: usize, most_ns: u64) -> Result<Vec<u64>, ExecError> {
    let cpus = Cpus::usable()?;
    if cpu >= cpus.count() {
        return Err(ExecError::TooFewCpus { needed: cpu + 1, have: cpus.count() });
    }
    cpus.confine(Some(&[cpu])).map_err(|errno| system("stay on a CPU")(errno.into()))?;
    let (last, ended) = (AtomicU32::new(NOBODY), AtomicU64::new(0));
    let until_ns = now_ns() + most_ns;
    let look = |me: u32| {
        let mut all = Vec::with_capacity(turns + FIRST);
        let (mut begin_ns, mut seen_ns) = (now_ns(), 0);
        while all.len() < turns + FIRST && seen_ns < until_ns && ended.load(Relaxed) == 0 {
            let ns = now_ns();
            if last.swap(me, Relaxed) != me {
                if seen_ns != 0 {
                    all.push(seen_ns - begin_ns);
                }
                begin_ns = ns;
            }
            seen_ns = ns;
        }
        ended.store(1, Relaxed);
        all
    };
    let panicked = |_| system("look at the clock")(io::Error::other("a thread panicked"));
    let (mut one, other) = thread::scope(|scope| {
        let other = scope.spawn(|| look(2));
        (look(1), other.join())
    });
    let other = other.map_err(panicked)?;
    one.drain(..FIRST.min(one.len()));
    one.extend(other.into_iter().skip(FIRST));
    Ok(one)
}
