//! The C tables through which `ekiden.ko` and a policy module know each other.

use core::ffi::c_void;

use ekiden_abi::{Message, NAME_LEN, Reply};

/// What a policy module offers. `struct ekiden_policy_table` in C.
#[repr(C)]
pub struct PolicyTable {
    /// [`ekiden_abi::ABI_VERSION`] that the module was built with.
    pub abi_version: u32,
    /// Size of this table, a second check of the same kind.
    pub size: u32,
    /// The policy's name, padded with zeros.
    pub name: [u8; NAME_LEN],
    /// The calls that it implements ([`ekiden_abi::Calls`]).
    pub calls: u64,
    /// Makes an instance; null when it cannot, with the reason in `CreateArgs::error`.
    pub create: unsafe extern "C" fn(args: *mut CreateArgs) -> *mut c_void,
    /// Delivers one call to an instance.
    pub deliver: unsafe extern "C" fn(
        instance: *mut c_void,
        message: *const Message,
        payload: *const u8,
        payload_len: usize,
    ) -> Reply,
    /// Starts or stops recording calls; they are recorded from the beginning if there is a tape.
    pub record: unsafe extern "C" fn(on: bool),
    /// Ends an instance and makes its successor from what it hands over; null when that fails.
    pub hand_over: unsafe extern "C" fn(instance: *mut c_void, args: *mut CreateArgs) -> *mut c_void,
}

/// What an instance is made from. `struct ekiden_create` in C.
#[repr(C)]
pub struct CreateArgs {
    /// The arena of the instance.
    pub arena: *mut u8,
    /// Its size in bytes.
    pub arena_len: usize,
    /// The topology, as `Topology::to_words` gives it.
    pub topology: *const u32,
    /// Its length in words.
    pub topology_len: usize,
    /// Parameters as text.
    pub params: *const u8,
    /// Their length in bytes.
    pub params_len: usize,
    /// Number of tasks that there can be at once.
    pub max_tasks: u32,
    /// Written: how much of `error` is used.
    pub error_len: u32,
    /// What the instance may ask and say.
    pub host: *const HostTable,
    /// Where calls are recorded: for each CPU a page with its `ekiden_recording::Place`, then its ring. Null if
    /// they are not.
    pub tape: *mut u8,
    /// Records of a ring, a power of two.
    pub tape_records: usize,
    /// Rings that there are.
    pub tape_cpus: u32,
    /// The number of the instance, from 1.
    pub instance: u32,
    /// How often the processor's own counter counts in a millisecond, if it is good for the times of recorded calls; else
    /// 0, and those are of the monotonic clock.
    pub ticks_khz: u32,
    /// Room for the reason of a refusal.
    pub error: [u8; 256],
}

/// What `ekiden.ko` offers to a policy module. `struct ekiden_host_table` in C.
#[repr(C)]
pub struct HostTable {
    /// The monotonic clock, in nanoseconds.
    pub now_ns: unsafe extern "C" fn() -> u64,
    /// Whether a task may run on a CPU.
    pub may_run: unsafe extern "C" fn(task: u64, cpu: u32) -> bool,
    /// Fills `words` with the CPUs that a task may run on.
    pub allowed_cpus: unsafe extern "C" fn(task: u64, words: *mut u64, len: usize),
    /// Fills `words` with the idle CPUs.
    pub idle_cpus: unsafe extern "C" fn(words: *mut u64, len: usize),
    /// Ends the policy and leaves the call that is under way. It does not return, which is not in its type because
    /// objtool wants code after every call.
    pub fault: unsafe extern "C" fn(text: *const u8, len: usize),
}

impl CreateArgs {
    /// Notes why an instance cannot be made.
    pub fn refuse(&mut self, reason: &str) {
        let len = reason.len().min(self.error.len());
        self.error[..len].copy_from_slice(&reason.as_bytes()[..len]);
        self.error_len = len as u32;
    }
}
