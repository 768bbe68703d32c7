//! A policy in another module, behind its table.

use alloc::boxed::Box;
use core::any::Any;
use core::ffi::c_void;
use core::mem::{self, MaybeUninit};
use core::ptr;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ekiden::Calls;
use ekiden_host::Policy;
use ekiden_host::abi::{Message, Reply};
use ekiden_kernel_rt::{CreateArgs, Deliver, PolicyTable};

unsafe extern "C" {
    #[link_name = "ekiden_guarded_policy"]
    /// Calls `deliver` with the other arguments, so that a policy that panics comes back from here with another number than 0.
    fn ekiden_guarded_call(
        reply: &mut MaybeUninit<Reply>,
        instance: *mut c_void,
        message: *const Message,
        payload: *const u8,
        payload_len: usize,
        deliver: Deliver,
    ) -> i64;
}

/// A policy in another module. Its instance is an `Adapter`, which is Send and Sync: calls on several CPUs share it. Another one may take its
/// place while CPUs look at that.
pub(crate) struct ModulePolicy {
    /// A [`Deliver`], which belongs to the instance, or is [`answers_nothing`] and looks at none.
    deliver: AtomicPtr<()>,
    instance: AtomicPtr<c_void>,
    /// A [`PolicyTable`]. Only looked at while the policy is there.
    table: AtomicPtr<PolicyTable>,
}

/// Answers for a policy that has left.
unsafe extern "C" fn answers_nothing(
    reply: &mut MaybeUninit<Reply>,
    _instance: *mut c_void,
    _message: *const Message,
    _payload: *const u8,
    _payload_len: usize,
) {
    reply.write(Reply::default());
}

impl ModulePolicy {
    fn of(table: &'static PolicyTable, instance: *mut c_void) -> Self {
        Self {
            deliver: AtomicPtr::new(table.deliver as *mut ()),
            instance: AtomicPtr::new(instance),
            table: AtomicPtr::new(ptr::from_ref(table).cast_mut()),
        }
    }

    fn table(&self) -> &PolicyTable {
        // SAFETY: from `of`, where it is a reference.
        unsafe { &*self.table.load(Acquire) }
    }

    /// Makes an instance of the policy, or `None` with a reason in `args`.
    ///
    /// # Safety
    ///
    /// `table` and what `args` names outlive the result.
    pub(crate) unsafe fn create(table: *const PolicyTable, args: *mut CreateArgs) -> Option<Self> {
        // SAFETY: the module of the table is held until the result is gone.
        let table = unsafe { &*table };
        // SAFETY: a module's own function, with arguments that it may keep pointers of: what they name outlives the instance.
        let instance = unsafe { (table.create)(args) };
        (!instance.is_null()).then(|| Self::of(table, instance))
    }

    /// An instance that has been made.
    ///
    /// # Safety
    ///
    /// `table` outlives the result, and `instance` comes from it and is used by nothing else. If the result [follows](Policy::follow) another one, no
    /// call is under way that began before that one has left. What has left is still there for calls that are under way then.
    pub(crate) unsafe fn made(table: *const PolicyTable, instance: *mut c_void) -> Self {
        // SAFETY: the module that has made the instance is held as long as that is there.
        Self::of(unsafe { &*table }, instance)
    }

    /// Has the policy write down what a version with another layout is to go on with.
    ///
    /// # Safety
    ///
    /// `room` has space for `len` bytes. This is `cpu`, with interrupts off.
    pub(crate) unsafe fn save(&self, cpu: u32, room: *mut u8, len: usize) -> i64 {
        // SAFETY: the instance comes from this table; the caller vouches for the room, and for its CPU, on which no call can begin.
        unsafe { (self.table().save)(self.instance.load(Relaxed), cpu, room, len) }
    }

    /// What the policy counts for people: see [`PolicyTable::figures`].
    ///
    /// # Safety
    ///
    /// `room` has space for `len` bytes.
    pub(crate) unsafe fn figures_of(&self, cpu: u32, room: *mut u64, len: usize) -> i64 {
        // SAFETY: the instance comes from this table, and only shares what it counts; the caller vouches for the room.
        unsafe { (self.table().figures)(self.instance.load(Relaxed), cpu, room, len) }
    }

    /// The successor of this instance: `made`, or one that gets its state if that is null.
    ///
    /// # Safety
    ///
    /// `table` and what `args` names outlive the result. An instance that was made is of this table; if none was, the old one's
    /// table is the same or has the same layout.
    pub(crate) unsafe fn succeed(self, table: *const PolicyTable, args: *mut CreateArgs, made: *mut c_void) -> Self {
        // SAFETY: the successor's module is held until the result is gone; that of `self` may go then.
        let table = unsafe { &*table };
        if !made.is_null() {
            return Self::of(table, made);
        }
        let mut handover = MaybeUninit::zeroed();
        // SAFETY: the instance comes from a table of the same layout and is not used again; `give` fills in what `take` reads.
        let instance = unsafe {
            (self.table().give)(self.instance.load(Relaxed), handover.as_mut_ptr());
            (table.take)(args, handover.as_mut_ptr())
        };
        Self::of(table, instance)
    }
}

impl Policy for ModulePolicy {
    fn calls(&self) -> Calls {
        Calls(self.table().calls)
    }

    fn params_declared(&self) -> u64 {
        self.table().params_declared
    }

    fn leave(&self) {
        self.deliver.store(answers_nothing as *mut (), Release);
    }

    fn follow(&self, next: Self) -> Result<(), Self> {
        let Self { deliver, instance, table } = next;
        self.table.store(table.into_inner(), Relaxed);
        self.instance.store(instance.into_inner(), Relaxed);
        // A call that finds it there finds its instance, too; calls that have found the one before are over.
        self.deliver.store(deliver.into_inner(), Release);
        Ok(())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn deliver(&self, message: &Message, payload: &[u8]) -> Reply {
        *self.deliver_to(message, payload, &mut MaybeUninit::uninit(), false)
    }

    /// With a guard and what is left of the event's fuel, so that the engine loses only a policy that panics; if there is no other, with the engine's guard only, as
    /// what is left then is the engine's to say.
    #[inline]
    fn deliver_to<'a>(
        &self,
        message: &Message,
        payload: &[u8],
        reply: &'a mut MaybeUninit<Reply>,
        alone: bool,
    ) -> &'a mut Reply {
        let (bytes, len) = (payload.as_ptr(), payload.len());
        // SAFETY: a `Deliver` was put there, in `of`, `leave` or `follow`.
        let deliver = unsafe { mem::transmute::<*mut (), Deliver>(self.deliver.load(Acquire)) };
        let instance = self.instance.load(Relaxed);
        if alone {
            // SAFETY: references are good for `deliver`, which gets its own instance. If it panics it does not come back here.
            unsafe { deliver(reply, instance, message, bytes, len) };
        } else {
            // SAFETY: as without the guard, which passes all of it on. It needs its CPU kept: engines are only asked where that is so.
            let left = unsafe { ekiden_guarded_call(reply, instance, message, bytes, len, deliver) };
            if left != 0 {
                return reply.write(Reply::faulted());
            }
        }
        // SAFETY: it has returned, so it has written its reply.
        unsafe { reply.assume_init_mut() }
    }
}
