//! How long a thread that goes before all others takes from its wake-up to its first instruction, beside threads that use all the CPU time
//! that they can have (papers/004, section 4.2).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::mpsc::channel;
use std::time::Duration;
use std::{hint, io, thread};

use rustix::process::setpriority_process;
use rustix::thread::gettid;
use serde::Serialize;

use crate::random::Random;
use crate::real::exec::{Cpus, ExecError, system};
use crate::real::process_group::now_ns;
use crate::real::spin::keep_busy;

/// The nice value of the thread that is measured and of the one that wakes it up.
const NICE: i32 = -20;

/// Instructions of a competing thread between two hints, at which an emulator with one thread for all CPUs switches to the next CPU.
const INSTRUCTIONS_PER_HINT: u32 = 256;

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delegation {
    /// Threads that compete, of this process's nice value, on any CPU.
    pub tasks: u32,
    /// How often it is woken up.
    pub times: u32,
    /// How long it sleeps before, in nanoseconds; up to as much more is drawn.
    pub sleep_ns: u64,
}

/// When it was woken up, and when it ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Delegated {
    /// Threads that competed.
    pub tasks: u32,
    /// The thread that was measured.
    pub thread: u32,
    /// The waker's last look at the monotonic clock before each wake-up, in nanoseconds.
    pub woken_ns: Vec<u64>,
    /// What that clock said in the first instructions after it.
    pub began_ns: Vec<u64>,
}

/// Measures. The thread stays on the last CPU that this process may use, and is woken up from the first; the caller stays there.
///
/// # Errors
/// If threads cannot be started, kept on a CPU, or given their nice value.
pub fn run(load: Delegation) -> Result<Delegated, ExecError> {
    let cpus = Cpus::usable()?;
    let go_first = |cpu: u32| -> Result<(), ExecError> {
        cpus.confine(Some(&[cpu])).map_err(|errno| system("stay on a CPU")(errno.into()))?;
        setpriority_process(None, NICE).map_err(|errno| system("take nice value -20, which root may")(errno.into()))
    };
    let (over, round) = (AtomicBool::new(false), AtomicU32::new(0));
    let answered = AtomicU32::new(0);
    thread::scope(|scope| {
        let compete = || {
            while !over.load(Relaxed) {
                keep_busy(INSTRUCTIONS_PER_HINT);
                hint::spin_loop();
            }
        };
        let result = (|| {
            for number in 0..load.tasks {
                let thread = thread::Builder::new().name(format!("competitor-{number}"));
                thread.spawn_scoped(scope, compete).map_err(system("start a thread"))?;
            }
            // If that fails, no thread sleeps yet.
            go_first(0)?;
            let (says, said) = channel();
            let (go_first, cpus, round, answered) = (&go_first, &cpus, &round, &answered);
            let measured = scope.spawn(move || {
                let ready = go_first(cpus.count() - 1).map(|()| gettid().as_raw_nonzero().get() as u32);
                let well = ready.is_ok();
                let _ = says.send(ready);
                let mut began_ns = Vec::with_capacity(load.times as usize);
                while well && began_ns.len() < load.times as usize {
                    thread::park();
                    let ns = now_ns();
                    // It may wake up for nothing.
                    if round.load(Acquire) as usize > began_ns.len() {
                        began_ns.push(ns);
                        answered.store(began_ns.len() as u32, Release);
                    }
                }
                began_ns
            });
            let panicked = |_| system("wake a thread up")(io::Error::other("it panicked"));
            let thread = said.recv().map_err(|_| system("wake a thread up")(io::Error::other("it panicked")))??;
            let mut random = Random::new(1);
            let mut woken_ns = Vec::with_capacity(load.times as usize);
            for number in 1..=load.times {
                loop {
                    thread::sleep(Duration::from_nanos(load.sleep_ns + random.up_to(load.sleep_ns)));
                    if answered.load(Acquire) + 1 == number {
                        break;
                    }
                }
                woken_ns.push(now_ns());
                round.store(number, Release);
                measured.thread().unpark();
            }
            let began_ns = measured.join().map_err(panicked)?;
            Ok(Delegated { tasks: load.tasks, thread, woken_ns, began_ns })
        })();
        over.store(true, Relaxed);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wake_up_is_followed_by_a_beginning() {
        let load = Delegation { tasks: 2, times: 5, sleep_ns: 1_000_000 };
        let measured = match run(load) {
            // Not everyone may have that nice value.
            Err(ExecError::System { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => return,
            measured => measured.unwrap(),
        };
        assert_eq!((measured.woken_ns.len(), measured.began_ns.len()), (5, 5));
        let pairs = || measured.woken_ns.iter().zip(&measured.began_ns);
        assert!(pairs().all(|(woken, began)| woken < began), "{measured:?}");
        let next = measured.began_ns.iter().zip(&measured.woken_ns[1..]);
        assert!(next.into_iter().all(|(began, woken)| began < woken), "{measured:?}");
    }
}
