//! A group of processes that start together and are watched: a gate that holds them until all are ready, one wake-up
//! of the watcher when the last has ended, and a kill that reaches what they forked.
//!
//! While the process group runs, the watcher does nothing at all: it sleeps in one `poll` for a pipe whose other end every member
//! (and every descendant) holds open until it ends.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process, kill_process_group,
    set_parent_process_death_signal, setpgid, waitid,
};
use rustix::time::{ClockId, clock_gettime};

use crate::real::{proc, sys};

/// How long a killed process may take to be gone before it counts as lost.
const DYING_MAX: Duration = Duration::from_secs(5);

/// How long the members may take, before time 0, to set themselves up.
const SET_UP_MAX: Duration = Duration::from_secs(60);

pub(crate) struct ProcessGroup {
    pub(crate) members: Vec<Member>,
    ready_read: OwnedFd,
    ready_write: Option<OwnedFd>,
    gate_read: OwnedFd,
    gate_write: Option<OwnedFd>,
    life_read: OwnedFd,
    life_write: Option<OwnedFd>,
}

pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) pid: Pid,
    gone: bool,
}

/// A process that did not end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The task's name.
    pub name: String,
    /// What the kernel says it was doing.
    pub state: String,
    /// CPU time it had used.
    pub cpu_ns: u64,
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}`, {}, after {:.3} ms of CPU time", self.name, self.state, self.cpu_ns as f64 / 1e6)
    }
}

/// What a member waits at.
pub(crate) struct Gate<'a> {
    ready_write: &'a OwnedFd,
    gate_read: &'a OwnedFd,
}

impl Gate<'_> {
    /// Says that the member is set up, or could not be, and waits until the gate opens.
    pub(crate) fn wait(&self, set_up: bool) {
        // A failed write means that the watcher is gone; then no process is left to tell.
        let _ = write(self.ready_write, &[u8::from(set_up)]);
        while read(self.gate_read, &mut [0_u8; 1]) == Err(Errno::INTR) {}
    }
}

impl ProcessGroup {
    pub(crate) fn new() -> io::Result<Self> {
        // The first look at the clock sets up its fast path; members inherit that.
        now_ns();
        let (ready_read, ready_write) = pipe_with(PipeFlags::CLOEXEC)?;
        let (gate_read, gate_write) = pipe_with(PipeFlags::CLOEXEC)?;
        let (life_read, life_write) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok(ProcessGroup {
            members: Vec::new(),
            ready_read,
            ready_write: Some(ready_write),
            gate_read,
            gate_write: Some(gate_write),
            life_read,
            life_write: Some(life_write),
        })
    }

    /// Starts one member; `body` must pass the gate once.
    pub(crate) fn spawn(&mut self, name: String, body: impl FnOnce(&Gate) -> i32) -> io::Result<()> {
        let watcher = getpid();
        let pid = sys::spawn(|| {
            let bound = set_parent_process_death_signal(Some(Signal::KILL)).and_then(|()| setpgid(None, None));
            if bound.is_err() || getppid() != Some(watcher) {
                return 1;
            }
            // The gate opens when its last writer closes: members must not hold it.
            drop(self.gate_write.take());
            match &self.ready_write {
                Some(ready_write) => body(&Gate { ready_write, gate_read: &self.gate_read }),
                None => 1,
            }
        })?;
        self.members.push(Member { name, pid, gone: false });
        Ok(())
    }

    /// Waits until every member is set up. `Ok(false)`: one said that it could not be.
    pub(crate) fn ready(&mut self) -> io::Result<bool> {
        drop(self.ready_write.take());
        let until_ns = now_ns() + SET_UP_MAX.as_nanos() as u64;
        let (mut said, mut all_well) = (0, true);
        while said < self.members.len() {
            if !readable(&self.ready_read, until_ns)? {
                return Err(io::Error::other("a task did not get ready; is the machine overloaded?"));
            }
            let mut bytes = [0_u8; 256];
            let count = read(&self.ready_read, &mut bytes)?;
            // Every member either spoke or died, or this end of file would not have come.
            if count == 0 {
                return Ok(false);
            }
            all_well &= bytes[..count].iter().all(|byte| *byte == 1);
            said += count;
        }
        Ok(all_well)
    }

    /// Lets all members start.
    pub(crate) fn open_gate(&mut self) {
        drop(self.life_write.take());
        drop(self.gate_write.take());
    }

    /// Sleeps until the last member and its descendants have ended, or until `until_ns` of the monotonic clock;
    /// `false` if some still run then.
    pub(crate) fn wait(&self, until_ns: u64) -> io::Result<bool> {
        readable(&self.life_read, until_ns)
    }

    /// Which members have not ended, and why as far as the kernel can say.
    pub(crate) fn stuck(&self) -> Vec<Stuck> {
        let mut stuck = Vec::new();
        for member in self.members.iter().filter(|member| !member.gone) {
            let (state, cpu) = proc::state_and_cpu(member.pid).unwrap_or(('?', 0));
            let state = match state {
                'Z' | 'X' => continue,
                'R' => format!("runnable on CPU {cpu} and waiting to run or running"),
                'S' | 'D' => match proc::waiting_in(member.pid) {
                    Some(function) => format!("asleep in {function}"),
                    None => "asleep".to_string(),
                },
                other => format!("in state {other}"),
            };
            stuck.push(Stuck { name: member.name.clone(), state, cpu_ns: sys::cpu_ns_of(member.pid).unwrap_or(0) });
        }
        stuck
    }

    /// Kills every member and what it forked. They stay to be looked at until `reap`.
    pub(crate) fn kill(&self) {
        for member in self.members.iter().filter(|member| !member.gone) {
            // Either may have ended already, which is what is wanted.
            let _ = kill_process_group(member.pid, Signal::KILL);
            let _ = kill_process(member.pid, Signal::KILL);
        }
    }

    /// Waits until every member has ended, leaving each to be looked at; `false` if one does not end.
    pub(crate) fn ended(&self) -> bool {
        let until_ns = now_ns() + DYING_MAX.as_nanos() as u64;
        self.members.iter().filter(|member| !member.gone).all(|member| ended(member.pid, until_ns))
    }

    /// How a member ended, if it was not by exiting with status 0 or by our kill.
    pub(crate) fn bad_end(&self, member: &Member) -> Option<String> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::Pid(member.pid), options).ok()??;
        match (status.exit_status(), status.terminating_signal()) {
            (Some(0), _) | (_, Some(libc::SIGKILL)) => None,
            (Some(code), _) => Some(format!("exited with status {code}")),
            (_, Some(signal)) => Some(format!("was killed by signal {signal}")),
            _ => None,
        }
    }
}

impl Drop for ProcessGroup {
    /// Nothing of a process group outlives it, unless the scheduler under test has lost it.
    fn drop(&mut self) {
        self.kill();
        let until_ns = now_ns() + DYING_MAX.as_nanos() as u64;
        for member in &mut self.members {
            if ended(member.pid, until_ns) {
                let _ = waitid(WaitId::Pid(member.pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
            }
            member.gone = true;
        }
    }
}

/// The monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A point in time, or a length of it, as system calls take it.
pub(crate) fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Sleeps until the pipe has data or its last writer is gone; `false` at `until_ns`.
fn readable(pipe: &OwnedFd, until_ns: u64) -> io::Result<bool> {
    loop {
        let left_ns = until_ns.saturating_sub(now_ns());
        match poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timespec(left_ns))) {
            Ok(0) if left_ns == 0 => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits for a child's end without taking its status. By short naps: nothing is measured any more.
fn ended(pid: Pid, until_ns: u64) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    loop {
        match waitid(WaitId::Pid(pid), options) {
            Ok(None) if now_ns() < until_ns => std::thread::sleep(Duration::from_millis(1)),
            Ok(None) => return false,
            Ok(Some(_)) | Err(_) => return true,
        }
    }
}
