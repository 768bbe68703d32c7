//! Tells the kernel in the middle of a message that the agent gets on. The engine makes up to 64 pairs of calls for one message
//! (`PICK_ATTEMPTS`), and a policy may ask in one call whether each task that waits in its queue may run here: on a CPU from which a hypervisor
//! takes the processor, either takes as long as a call that does not end.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ekiden_host::abi::{Message, Reply};
use ekiden_host::{Around, Policy};

use crate::wire::Shared;

/// Changes the number at which the watch in `hosts/kernel/bpf/agent_watch.h` looks.
pub(crate) struct Beats {
    shared: Arc<Shared>,
    max_tasks: u32,
    /// How often the policy has asked about a task in the call under way.
    asked: AtomicU32,
}

impl Beats {
    pub(crate) fn new(shared: Arc<Shared>, max_tasks: u32) -> Self {
        Self { shared, max_tasks, asked: AtomicU32::new(0) }
    }

    /// The policy asks about a task. It gets on by that once for each task that there may be: a call that asks without end does not end either.
    pub(crate) fn asks(&self) {
        let asked = self.asked.load(Relaxed);
        if asked < self.max_tasks {
            self.asked.store(asked + 1, Relaxed);
            self.shared.beats();
        }
    }
}

impl fmt::Debug for Beats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beats").field("asked", &self.asked).finish_non_exhaustive()
    }
}

/// Each call that ends counts.
pub(crate) struct EachCall(pub(crate) Arc<Beats>);

impl Around for EachCall {
    fn deliver(&self, policy: &dyn Policy, message: &Message, payload: &[u8]) -> Reply {
        let beats = &self.0;
        beats.asked.store(0, Relaxed);
        let reply = policy.deliver(message, payload);
        beats.shared.beats();
        reply
    }
}
