//! A policy in another module, behind its table.

use alloc::boxed::Box;
use core::any::Any;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use core::{ffi::c_void, mem::MaybeUninit};

use ekiden::abi::{Message, Reply};
use ekiden::{Calls, Policy};
use ekiden_kernel_rt::{CreateArgs, PolicyTable};

type Deliver = unsafe extern "C" fn(*mut MaybeUninit<Reply>, *mut c_void, *const Message, *const u8, usize) -> i64;

unsafe extern "C" {
    #[link_name = "ekiden_guarded"]
    /// Calls `deliver` with the other arguments, so that a policy that panics comes back from here with another number than 0.
    fn ekiden_guarded_call(
        reply: *mut MaybeUninit<Reply>,
        instance: *mut c_void,
        message: *const Message,
        payload: *const u8,
        payload_len: usize,
        deliver: Deliver,
    ) -> i64;
}

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

    /// An instance that has been made.
    ///
    /// # Safety
    ///
    /// `table` outlives the result, and `instance` comes from it and is used by nobody else.
    pub(crate) unsafe fn made(table: *const PolicyTable, instance: *mut c_void) -> Self {
        // SAFETY: the caller's promise.
        Self { table: unsafe { &*table }, instance }
    }
}

impl ForeignPolicy {
    /// The same for one of several: if it panics, the engine goes on without it. By itself, so that the call of one alone is no
    /// more than a jump.
    #[inline(never)]
    fn deliver_guarded(&self, message: &Message, payload: &[u8]) -> Reply {
        let mut reply = MaybeUninit::uninit();
        // SAFETY: the instance comes from this table, and references are good for it. This CPU is kept: engines are only
        // asked where it is.
        let left = unsafe {
            ekiden_guarded_call(
                &raw mut reply,
                self.instance,
                message,
                payload.as_ptr(),
                payload.len(),
                self.table.deliver_guarded,
            )
        };
        if left != 0 {
            return Reply::fallen();
        }
        // SAFETY: it has returned, so it has written its reply.
        unsafe { reply.assume_init() }
    }
}

/// Whether there are several policies, so that each call has a guard of its own. One alone has that of the engine: what is left
/// when it has panicked is the engine's to say, and there is nobody to go on. Changes while no event is under way.
static SEVERAL: AtomicBool = AtomicBool::new(false);

/// How many policies there are.
pub(crate) fn policies(number: usize) {
    SEVERAL.store(number > 1, Relaxed);
}

/// Has a foreign policy write down what a version with another layout is to go on with.
///
/// # Safety
///
/// `policy` is the engine's `ForeignPolicy`, and `room` has space for `len` bytes. This is `cpu`, with interrupts off.
pub(crate) unsafe fn save(policy: &dyn Policy, cpu: u32, room: *mut u8, len: usize) -> i64 {
    // SAFETY: the caller's promise; the instance comes from this table.
    unsafe {
        let policy = &*core::ptr::from_ref(policy).cast::<ForeignPolicy>();
        (policy.table.save)(policy.instance, cpu, room, len)
    }
}

/// Puts another instance in the place of a foreign policy: `made`, or one that gets the state of the old one if that is null.
///
/// # Safety
///
/// `policy` is the engine's `ForeignPolicy`, and nobody else uses it. `table` and what `args` names outlive the result. An
/// instance that was made is of this table; if none was, the old one's table is the same or has the same layout.
pub(crate) unsafe fn succeed(
    policy: Box<dyn Policy>,
    table: *const PolicyTable,
    args: *mut CreateArgs,
    made: *mut c_void,
) -> Box<dyn Policy> {
    // SAFETY: the caller's promise.
    let (mut policy, table) = unsafe { (Box::from_raw(Box::into_raw(policy).cast::<ForeignPolicy>()), &*table) };
    policy.instance = if made.is_null() {
        let mut baggage = MaybeUninit::zeroed();
        // SAFETY: the caller's promise; `give` fills in what `take` reads.
        unsafe {
            (policy.table.give)(policy.instance, baggage.as_mut_ptr());
            (table.take)(args, baggage.as_mut_ptr())
        }
    } else {
        made
    };
    policy.table = table;
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
        if SEVERAL.load(Relaxed) {
            return self.deliver_guarded(message, payload);
        }
        // SAFETY: the instance comes from this table, and references are good for it. One that panics does not come back here.
        unsafe { (self.table.deliver)(self.instance, message, payload.as_ptr(), payload.len()) }
    }
}
