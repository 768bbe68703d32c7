//! A policy that says after each call that the agent gets on. The engine makes up to a hundred calls for one message,
//! and on a CPU without much of a processor they take as long together as one that does not end.

use std::any::Any;
use std::sync::Arc;

use ekiden::Calls;
use ekiden_host::abi::{Message, RawParams, Reply};
use ekiden_host::{Figures, Policy};

use crate::wire::Shared;

pub(crate) struct Beating {
    policy: Box<dyn Policy>,
    shared: Arc<Shared>,
}

impl Beating {
    pub(crate) fn new(policy: Box<dyn Policy>, shared: Arc<Shared>) -> Self {
        Self { policy, shared }
    }
}

impl Policy for Beating {
    fn calls(&self) -> Calls {
        self.policy.calls()
    }

    fn deliver(&self, message: &Message, payload: &[u8]) -> Reply {
        let reply = self.policy.deliver(message, payload);
        self.shared.beats();
        reply
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
}
