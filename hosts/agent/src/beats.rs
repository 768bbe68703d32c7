//! Tells the kernel after each call of the policy that the agent gets on. The engine makes up to 64 pairs of calls for one message
//! (`PICK_ATTEMPTS`), and on a CPU from which a hypervisor takes the processor they take as long together as one call that does not end.

use std::sync::Arc;

use ekiden_host::abi::{Message, Reply};
use ekiden_host::{Around, Policy};

use crate::wire::Shared;

/// Changes the number at which the watch in `hosts/kernel/bpf/agent_watch.h` looks.
pub(crate) struct Beats(pub(crate) Arc<Shared>);

impl Around for Beats {
    fn deliver(&self, policy: &dyn Policy, message: &Message, payload: &[u8]) -> Reply {
        let reply = policy.deliver(message, payload);
        self.0.beats();
        reply
    }
}
