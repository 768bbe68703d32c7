//! A policy in another module, behind its table.

use alloc::boxed::Box;
use core::any::Any;
use core::ffi::c_void;

use ekiden::abi::{Message, Reply};
use ekiden::{Calls, Policy};
use ekiden_kernel_rt::{CreateArgs, PolicyTable};

/// A policy in another module.
pub(crate) struct ForeignPolicy {
    table: &'static PolicyTable,
    instance: *mut c_void,
}

// SAFETY: the instance is an `Adapter`, which is Send and Sync; see `ekiden_kernel_policy::create`.
unsafe impl Send for ForeignPolicy {}
// SAFETY: as above.
unsafe impl Sync for ForeignPolicy {}

impl ForeignPolicy {
    /// Makes an instance of the policy, or `None` with a reason in `args`.
    ///
    /// # Safety
    ///
    /// `table` and what `args` names outlive the result.
    pub(crate) unsafe fn create(table: *const PolicyTable, args: *mut CreateArgs) -> Option<Self> {
        // SAFETY: the caller's promise.
        let table = unsafe { &*table };
        // SAFETY: the caller's promise.
        let instance = unsafe { (table.create)(args) };
        (!instance.is_null()).then_some(Self { table, instance })
    }
}

/// The successor of a foreign policy. The old one goes on if the new one cannot be made.
///
/// # Safety
///
/// `policy` is the engine's `ForeignPolicy`, and nobody else uses it.
pub(crate) unsafe fn hand_over(policy: Box<dyn Policy>, args: *mut CreateArgs) -> Box<dyn Policy> {
    // SAFETY: the caller's promise.
    let mut policy = unsafe { Box::from_raw(Box::into_raw(policy).cast::<ForeignPolicy>()) };
    // SAFETY: the caller's promise.
    let successor = unsafe { (policy.table.hand_over)(policy.instance, args) };
    if !successor.is_null() {
        policy.instance = successor;
    }
    policy
}

impl Policy for ForeignPolicy {
    fn calls(&self) -> Calls {
        Calls(self.table.calls)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    #[inline]
    fn deliver(&self, message: &Message, payload: &[u8]) -> Reply {
        // SAFETY: the instance comes from this table, and references are good for it.
        unsafe { (self.table.deliver)(self.instance, message, payload.as_ptr(), payload.len()) }
    }
}
