//! The loads whose time is published: pipe ping-pong and messaging, as plain loops of system calls without an
//! interpreter in between. Nothing in the timed part allocates or prints.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, set_parent_process_death_signal, waitid};

use crate::real::exec::{Class, Cpus, ExecError, check_one_thread, raise_open_files, system};
use crate::real::proc;
use crate::real::process_group::{ProcessGroup, now_ns};
use crate::real::sys::{self, AheadOfOthers, Shared};

/// A time that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// How long the timed part took.
    pub ns: u64,
    /// The sched_ext scheduler in charge before and after; absent: the kernel's own.
    pub scheduler: Option<String>,
}

/// How a load is measured.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The class of all its tasks.
    pub class: Class,
    /// Wall time after which it is killed and reported as unfinished.
    pub watchdog: Duration,
}

/// A byte goes to and fro between two processes.
#[derive(Clone, Debug)]
pub struct Pipe {
    /// Round trips that are timed. A tenth as many run before.
    pub round_trips: u64,
    /// The CPU of each side, in the numbering of [`crate::spec`]; absent: wherever the scheduler puts them.
    pub cpus: Option<[u32; 2]>,
    /// The control group of each side, as a directory; absent: that of this process.
    pub cgroups: Option<[PathBuf; 2]>,
}

/// As hackbench and `perf bench sched messaging`: in each group every sender writes `loops` messages to every receiver.
#[derive(Clone, Copy, Debug)]
pub struct Messaging {
    /// Groups, independent of each other.
    pub groups: u32,
    /// Senders, and as many receivers, in each group.
    pub pairs: u32,
    /// Messages from each sender to each receiver.
    pub loops: u64,
    /// Threads of one process instead of processes.
    pub threads: bool,
}

/// Bytes of one message, as hackbench has it.
const MESSAGE: usize = 100;

type Ends = (OwnedFd, OwnedFd);

/// Times `pipe.round_trips` round trips.
///
/// # Errors
/// As [`crate::real::exec::execute`].
pub fn pipe(pipe: Pipe, setting: Setting) -> Result<Measured, ExecError> {
    let cpus = Cpus::usable()?;
    let needed = pipe.cpus.map_or(1, |cpus| cpus[0].max(cpus[1]).saturating_add(1));
    if needed > cpus.count() {
        return Err(ExecError::TooFewCpus { needed, have: cpus.count() });
    }
    let side = |number: usize| -> io::Result<()> {
        if let Some(groups) = &pipe.cgroups {
            fs::write(groups[number].join("cgroup.procs"), "0")?;
        }
        match pipe.cpus {
            Some(chosen) => Ok(cpus.confine(Some(&[chosen[number]]))?),
            None => Ok(()),
        }
    };
    measure("pipe", setting, || {
        let (to, fro) = (new_pipe()?, new_pipe()?);
        let total = pipe.round_trips / 10 + pipe.round_trips;
        let pong = worker(|| {
            side(1)?;
            for _ in 0..total {
                receive(&to)?;
                send(&fro)?;
            }
            Ok(())
        })?;
        side(0)?;
        let round_trips = |count| -> Result<(), Errno> {
            for _ in 0..count {
                send(&to)?;
                receive(&fro)?;
            }
            Ok(())
        };
        round_trips(pipe.round_trips / 10)?;
        let begin_ns = now_ns();
        round_trips(pipe.round_trips)?;
        let end_ns = now_ns();
        finished(pong)?;
        Ok(end_ns - begin_ns)
    })
}

#[inline(always)]
fn send(pipe: &Ends) -> Result<(), Errno> {
    write(&pipe.1, &[0]).map(drop)
}

#[inline(always)]
fn receive(pipe: &Ends) -> Result<(), Errno> {
    match read(&pipe.0, &mut [0_u8; 1])? {
        1 => Ok(()),
        _ => Err(Errno::PIPE),
    }
}

/// Times the load from the moment all workers are released to the end of the last.
///
/// # Errors
/// As [`crate::real::exec::execute`].
pub fn messaging(load: Messaging, setting: Setting) -> Result<Measured, ExecError> {
    raise_open_files();
    measure("messaging", setting, || {
        let Messaging { groups, pairs, loops, threads } = load;
        let pipes: Vec<Ends> = (0..groups * pairs).map(|_| new_pipe()).collect::<Result<_, _>>()?;
        let (ready, gate) = (new_pipe()?, new_pipe()?);
        let (ready, gate_read) = (&ready, &gate.0);
        let wait_at_gate = || -> io::Result<()> {
            send(ready)?;
            // Ends when the gate's last writer closes.
            read(gate_read, &mut [0_u8; 1])?;
            Ok(())
        };
        let sender = |group: &[Ends]| -> io::Result<()> {
            wait_at_gate()?;
            for _ in 0..loops {
                group.iter().try_for_each(|pipe| write(&pipe.1, &[0_u8; MESSAGE]).map(drop))?;
            }
            Ok(())
        };
        let receiver = |pipe: &Ends| -> io::Result<()> {
            wait_at_gate()?;
            let mut left = MESSAGE as u64 * loops * u64::from(pairs);
            let mut message = [0_u8; MESSAGE];
            while left > 0 {
                left = left.saturating_sub(read(&pipe.0, &mut message)? as u64);
            }
            Ok(())
        };
        let all_ready = || (0..2 * groups * pairs).try_for_each(|_| receive(ready));
        let groups = pipes.chunks(pairs.max(1) as usize);

        if threads {
            return std::thread::scope(|scope| {
                let mut workers = Vec::with_capacity(2 * pipes.len());
                for group in groups {
                    for pipe in group {
                        let thread = || std::thread::Builder::new().stack_size(64 * 1024);
                        workers.push(thread().spawn_scoped(scope, || receiver(pipe))?);
                        workers.push(thread().spawn_scoped(scope, || sender(group))?);
                    }
                }
                all_ready()?;
                let begin_ns = now_ns();
                drop(gate.1);
                for worker in workers {
                    worker.join().map_err(|_| io::Error::other("a worker panicked"))??;
                }
                Ok(now_ns() - begin_ns)
            });
        }
        let mut gate_write = Some(gate.1);
        let mut workers = Vec::with_capacity(2 * pipes.len());
        for group in groups {
            for pipe in group {
                workers.push(worker(|| {
                    drop(gate_write.take());
                    receiver(pipe)
                })?);
                workers.push(worker(|| {
                    drop(gate_write.take());
                    sender(group)
                })?);
            }
        }
        all_ready()?;
        let begin_ns = now_ns();
        drop(gate_write);
        workers.into_iter().try_for_each(finished)?;
        Ok(now_ns() - begin_ns)
    })
}

/// Runs `body` in a process of its own under a watchdog, and returns the time that it returns.
fn measure(name: &str, setting: Setting, body: impl FnOnce() -> io::Result<u64>) -> Result<Measured, ExecError> {
    const NS: usize = 0;
    const ERRNO: usize = 1;
    check_one_thread()?;
    let result = Shared::<AtomicU64>::new(2).map_err(system("share memory with the load"))?;
    let note = |error: io::Error| result[ERRNO].store(error.raw_os_error().unwrap_or(libc::EIO) as u64, Relaxed);
    let mut process_group = ProcessGroup::new().map_err(system("make pipes"))?;
    process_group
        .spawn(name.to_string(), |gate| {
            let entered = match setting.class {
                Class::Ext => sys::enter_ext_class(),
                Class::Inherited => Ok(()),
            };
            if let Err(error) = entered {
                note(error);
                gate.wait(false);
                return 0;
            }
            gate.wait(true);
            match body() {
                Ok(ns) => result[NS].store(ns, Relaxed),
                Err(error) => note(error),
            }
            0
        })
        .map_err(system("start the load"))?;

    let ready = process_group.ready().map_err(system("set up the load"))?;
    let error = || match result[ERRNO].load(Relaxed) {
        0 => None,
        errno => Some(io::Error::from_raw_os_error(errno as i32)),
    };
    if !ready {
        return Err(match error() {
            Some(error) if error.raw_os_error() == Some(libc::EINVAL) => ExecError::NoExtClass,
            Some(source) => ExecError::System { doing: "enter class SCHED_EXT", source },
            None => ExecError::Died { task: name.to_string(), how: "ended".to_string() },
        });
    }
    let scheduler = proc::sched_ext_scheduler();
    let ahead = AheadOfOthers::enter();
    process_group.open_gate();
    let over = process_group.wait(now_ns() + setting.watchdog.as_nanos() as u64).map_err(system("watch the load"))?;
    let stuck = if over { Vec::new() } else { process_group.stuck() };
    process_group.kill();
    let gone = process_group.ended();
    drop(ahead);

    if let Some(source) = error() {
        return Err(ExecError::System { doing: "run the load", source });
    }
    if !over {
        return Err(ExecError::Unfinished { after_ms: setting.watchdog.as_millis() as u64, stuck });
    }
    if !gone {
        return Err(ExecError::Lost { stuck: process_group.stuck() });
    }
    if let Some(how) = process_group.members.iter().find_map(|member| process_group.bad_end(member)) {
        return Err(ExecError::Died { task: name.to_string(), how });
    }
    let after = proc::sched_ext_scheduler();
    match scheduler == after {
        true => Ok(Measured { ns: result[NS].load(Relaxed), scheduler }),
        false => Err(ExecError::SchedulerChanged { before: scheduler, after }),
    }
}

/// A process that does `body` and dies with its parent.
fn worker(body: impl FnOnce() -> io::Result<()>) -> io::Result<Pid> {
    sys::spawn(|| {
        let bound = set_parent_process_death_signal(Some(Signal::KILL));
        i32::from(bound.map_err(io::Error::from).and_then(|()| body()).is_err())
    })
}

/// Waits for the end of a worker, which must be a good one.
fn finished(worker: Pid) -> io::Result<()> {
    match waitid(WaitId::Pid(worker), WaitIdOptions::EXITED)?.and_then(|status| status.exit_status()) {
        Some(0) => Ok(()),
        _ => Err(io::Error::other("a worker failed")),
    }
}

fn new_pipe() -> Result<Ends, Errno> {
    pipe_with(PipeFlags::CLOEXEC)
}
