//! What a host does around each call of a policy, whatever the policy is.

use alloc::boxed::Box;
use alloc::string::String;
use core::any::Any;

use crate::Calls;
use crate::Saved;
use crate::adapter::Policy;
use crate::figures::Figures;
use ekiden_abi::{Message, RawParams, Reply};

/// Something that is done around each call: it is written down, watched, or counted.
pub trait Around: Send + Sync + 'static {
    /// The calls that are worth delivering, where these are the policy's.
    fn calls(&self, of_policy: Calls) -> Calls {
        of_policy
    }

    /// Has `policy` answer the call.
    fn deliver(&self, policy: &dyn Policy, message: &Message, payload: &[u8]) -> Reply;
}

/// A policy with something around its calls.
pub struct Surrounded<A> {
    policy: Box<dyn Policy>,
    around: A,
}

impl<A: Around> Surrounded<A> {
    /// From here on, `around` is done around each call of `policy`.
    pub fn new(policy: Box<dyn Policy>, around: A) -> Self {
        Self { policy, around }
    }
}

impl<A: Around> Policy for Surrounded<A> {
    fn calls(&self) -> Calls {
        self.around.calls(self.policy.calls())
    }

    fn deliver(&self, message: &Message, payload: &[u8]) -> Reply {
        self.around.deliver(&*self.policy, message, payload)
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

    fn save(&self, to: &mut Saved<'_>) {
        self.policy.save(to);
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), &'static str> {
        self.policy.restore(saved)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.policy.into_any()
    }
}
