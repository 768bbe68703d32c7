//! A policy whose calls are written down on the thread that makes them: the same for every host that is a program.

use std::any::Any;
use std::boxed::Box;
use std::string::String;

use ekiden::Calls;
use ekiden_host::abi::{Message, RawParams, Reply};
use ekiden_host::{Figures, Policy};

use crate::{Mark, Pen};

/// Where the calls of a policy go, and what they are written down with.
pub trait Writes {
    /// The time, in nanoseconds of the host's clock.
    fn now_ns(&self) -> u64;

    /// The PID of the thread that runs where the call is made, or 0.
    fn thread(&self) -> u32;

    /// The number of the policy's instance, from 1.
    fn instance(&self) -> u64;

    /// Writes something, if this thread records.
    fn write(&self, act: impl FnOnce(&mut Pen<'_>));

    /// A call that began at this time is written down.
    fn settle(&self, _now_ns: u64) {}
}

/// See the head of this file.
pub struct RecordedPolicy<W> {
    policy: Box<dyn Policy>,
    to: W,
}

impl<W: Writes> RecordedPolicy<W> {
    /// Each call of `policy` is written down from here on.
    pub fn new(policy: Box<dyn Policy>, to: W) -> Self {
        Self { policy, to }
    }
}

impl<W: Writes + Send + Sync + 'static> Policy for RecordedPolicy<W> {
    fn calls(&self) -> Calls {
        self.policy.calls()
    }

    fn task_params(&self, settings: &str) -> Result<RawParams, String> {
        self.policy.task_params(settings)
    }

    fn params_declared(&self) -> u64 {
        self.policy.params_declared()
    }

    fn figures(&self) -> Figures {
        self.policy.figures()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.policy.into_any()
    }

    fn deliver(&self, message: &Message, payload: &[u8]) -> Reply {
        let now_ns = self.to.now_ns();
        self.to.write(|pen| pen.begin(now_ns, self.to.thread(), message, payload));
        let unfinished = Unfinished { to: &self.to, now_ns };
        let reply = self.policy.deliver(message, payload);
        std::mem::forget(unfinished);
        self.to.write(|pen| pen.end(&reply));
        self.to.settle(now_ns);
        reply
    }
}

/// A call that does not end, if it is dropped: the policy has panicked.
struct Unfinished<'a, W: Writes> {
    to: &'a W,
    now_ns: u64,
}

impl<W: Writes> Drop for Unfinished<'_, W> {
    fn drop(&mut self) {
        let instance = self.to.instance();
        self.to.write(|pen| pen.mark(self.now_ns, Mark::Fault, instance));
    }
}
