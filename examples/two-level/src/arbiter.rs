//! What gives CPUs to activations: the policy `arbiter`, by its queues, or nothing.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use ekiden_policies::{Ask, Assignment, Becomes, Request};
use ekiden_user::{HintQueue, Inherit, NotSent, Policy, Thread, choose};
use rustix::event::{EventfdFlags, eventfd};

/// Notices that there is room for: each activation may have some that were not read yet.
const RECORDS: u32 = 256;

/// The arbiter has ended. Activations then run as other threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// Gives CPUs to the activations of an application. Its descriptor is readable when there is a notice, or when it has gone.
pub trait Arbiter: AsFd + Send {
    /// A kernel thread, by its id, is an activation from now on.
    ///
    /// # Errors
    /// If the arbiter has gone.
    fn enroll(&mut self, thread: u32) -> Result<(), Gone>;

    /// The application wants this many CPUs.
    ///
    /// # Errors
    /// If the arbiter has gone.
    fn want(&mut self, cpus: u32) -> Result<(), Gone>;

    /// Takes the oldest notice, if there is one. It does not wait.
    fn receive(&mut self) -> Option<Assignment>;

    /// Whether it has gone.
    fn is_gone(&self) -> bool;
}

/// The policy `arbiter`, which runs in the kernel.
pub struct Kernel {
    queue: HintQueue<Request, Assignment>,
    priority: u32,
}

impl Kernel {
    /// Opens a queue to the policy of this name, and chooses it for the calling thread and those that it starts from now on.
    ///
    /// # Errors
    /// If it does not run, is not open to the caller, or takes other hints.
    pub fn open(policy: &str, priority: u32) -> ekiden_user::Result<Self> {
        choose(Thread::Current, Policy::Named(policy), Inherit::Yes)?;
        Ok(Self { queue: HintQueue::with_records(Policy::Named(policy), RECORDS, RECORDS)?, priority })
    }

    fn ask(&mut self, ask: Ask, thread: u32, cpus: u32) -> Result<(), Gone> {
        let request = Request { ask, thread, cpus, priority: self.priority };
        if self.queue.send(&request) == Err(NotSent::Full) {
            // The ring has the policy hear the queued requests, which makes room.
            self.queue.ring().map_err(|_| Gone)?;
            self.queue.send(&request).map_err(|_| Gone)?;
        }
        self.queue.ring().map_err(|_| Gone)
    }
}

impl AsFd for Kernel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl Arbiter for Kernel {
    fn enroll(&mut self, thread: u32) -> Result<(), Gone> {
        self.ask(Ask::Enroll, thread, 0)
    }

    fn want(&mut self, cpus: u32) -> Result<(), Gone> {
        self.ask(Ask::Cpus, 0, cpus)
    }

    fn receive(&mut self) -> Option<Assignment> {
        self.queue.receive()
    }

    fn is_gone(&self) -> bool {
        self.queue.state() != ekiden_user::hints::State::Open
    }
}

/// No arbiter: as many activations run as are wanted, on whatever CPUs the kernel has for them.
pub(crate) struct Nothing {
    threads: Vec<u32>,
    wanted: usize,
    runs: usize,
    notices: VecDeque<Assignment>,
    never: OwnedFd,
}

impl Nothing {
    pub(crate) fn new() -> io::Result<Self> {
        let never = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self { threads: Vec::new(), wanted: 0, runs: 0, notices: VecDeque::new(), never })
    }

    fn grant(&mut self) {
        let note = |becomes, thread| Assignment { becomes, cpu: u32::MAX, thread };
        let runs = self.wanted.min(self.threads.len());
        self.notices.extend(self.threads[self.runs.min(runs)..runs].iter().map(|it| note(Becomes::Given, *it)));
        self.notices.extend(self.threads[runs..self.runs.max(runs)].iter().map(|it| note(Becomes::Taken, *it)));
        self.runs = runs;
    }
}

impl AsFd for Nothing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.never.as_fd()
    }
}

impl Arbiter for Nothing {
    fn enroll(&mut self, thread: u32) -> Result<(), Gone> {
        if !self.threads.contains(&thread) {
            self.threads.push(thread);
            self.grant();
        }
        Ok(())
    }

    fn want(&mut self, cpus: u32) -> Result<(), Gone> {
        self.wanted = cpus as usize;
        self.grant();
        Ok(())
    }

    fn receive(&mut self) -> Option<Assignment> {
        self.notices.pop_front()
    }

    fn is_gone(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_arbiter_as_many_run_as_are_wanted() {
        let mut it = Nothing::new().unwrap();
        let said = |it: &mut Nothing| -> Vec<(Becomes, u32)> {
            std::iter::from_fn(|| it.receive()).map(|notice| (notice.becomes, notice.thread)).collect()
        };
        it.want(2).unwrap();
        (7..10).for_each(|thread| it.enroll(thread).unwrap());
        assert_eq!(said(&mut it), [(Becomes::Given, 7), (Becomes::Given, 8)]);
        it.want(3).unwrap();
        assert_eq!(said(&mut it), [(Becomes::Given, 9)]);
        it.want(1).unwrap();
        assert_eq!(said(&mut it), [(Becomes::Taken, 8), (Becomes::Taken, 9)]);
    }
}
