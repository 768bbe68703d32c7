//! A policy whose calls are written down on the thread that makes them: the same for every host that is a program.

use ekiden_host::abi::{Message, Reply};
use ekiden_host::{Around, Policy};

use crate::{CallWriter, Mark};

/// Where the calls of a policy go, and what they are written down with.
pub trait Writes {
    /// The time, in nanoseconds of the host's clock.
    fn now_ns(&self) -> u64;

    /// The PID of the thread that runs where the call is made, or 0.
    fn thread(&self) -> u32;

    /// The number of the policy's instance, from 1.
    fn instance(&self) -> u64;

    /// Writes something, if this thread records.
    fn write(&self, act: impl FnOnce(&mut CallWriter<'_>));

    /// Called when a call that began at this time has been written down.
    fn call_written(&self, _now_ns: u64) {}
}

/// Writes each call down, [around](Around) it.
pub struct WritesDown<W>(pub W);

impl<W: Writes + Send + Sync + 'static> Around for WritesDown<W> {
    fn deliver(&self, policy: &dyn Policy, message: &Message, payload: &[u8]) -> Reply {
        let now_ns = self.0.now_ns();
        self.0.write(|call_writer| call_writer.begin(now_ns, self.0.thread(), message, payload));
        let unfinished = Unfinished { to: &self.0, now_ns };
        let reply = policy.deliver(message, payload);
        std::mem::forget(unfinished);
        self.0.write(|call_writer| call_writer.end(&reply));
        self.0.call_written(now_ns);
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
        self.to.write(|call_writer| call_writer.mark(self.now_ns, Mark::Fault, instance));
    }
}
