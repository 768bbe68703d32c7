//! The C tables through which `ekiden.ko` and a policy module know each other.

use core::{ffi::c_void, mem::MaybeUninit};

use ekiden_abi::{Message, NAME_LEN, RawParams, RawToken, Reply};
use ekiden_hints::Geometry;

use crate::arena::Blocks;

/// See [`PolicyTable::deliver`].
pub type Deliver = unsafe extern "C" fn(
    reply: &mut MaybeUninit<Reply>,
    instance: *mut c_void,
    message: *const Message,
    payload: *const u8,
    payload_len: usize,
);

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
    /// Delivers one call to an instance, which writes its reply.
    pub deliver: Deliver,
    /// Ends an instance; what it hands over is in `handover` then.
    pub give: unsafe extern "C" fn(instance: *mut c_void, handover: *mut HandoverState),
    /// Makes an instance from what one of the same layout gave, with arguments that have been looked at.
    pub take: unsafe extern "C" fn(args: *mut CreateArgs, handover: *mut HandoverState) -> *mut c_void,
    /// Whether an instance can be made of these arguments; if not, the reason is in `CreateArgs::error`. Memory for that is
    /// the arena in the arguments, or, if there is none, that of the instance that runs.
    pub check: unsafe extern "C" fn(args: *mut CreateArgs) -> bool,
    /// Stops recording calls (0), or starts with the mark of that number. No call is under way.
    pub call_log: unsafe extern "C" fn(call_log: *const CallLogArgs, what: u32),
    /// Has an instance write down what one of another layout or in another place is to go on with. The number of bytes; 0 if it has nothing to say,
    /// negative if there was no room.
    pub save: unsafe extern "C" fn(instance: *mut c_void, cpu: u32, room: *mut u8, len: usize) -> i64,
    /// Writes into a room of `len` bytes what the instance counts for people: its description for `NO_CPU`, and else the words of a CPU
    /// (`ekiden_host::Figures`). The number of bytes; negative if there was no room.
    pub figures: unsafe extern "C" fn(instance: *mut c_void, cpu: u32, room: *mut u64, len: usize) -> i64,
    /// Checks what is to be set for a task.
    pub settings: unsafe extern "C" fn(settings: *mut Settings) -> bool,
    /// The fingerprint of the state that it hands over; two of the same number may take over from each other. 0 for a state
    /// without one.
    pub layout: u64,
    /// The fingerprint of what it declares for tasks; 0 for nothing.
    pub params_declared: u64,
    /// The types of its hints and notices, without records.
    pub types: Geometry,
}

/// Parameters of a task as text, and what they mean. `struct ekiden_settings` in C.
#[repr(C)]
pub struct Settings {
    /// As text.
    pub text: *const u8,
    /// Its length in bytes.
    pub text_len: usize,
    /// Written if they are good.
    pub params: RawParams,
    /// Written if not: how much of `error` is used.
    pub error_len: u32,
    /// Room for the reason.
    pub error: [u8; 256],
}

/// Where calls are recorded. `struct ekiden_call_log` in C.
#[repr(C)]
pub struct CallLogArgs {
    /// For each CPU a page with its `ekiden_recording::RingHeader`, then its ring. Null for nowhere.
    pub base: *mut u8,
    /// Records of a ring, a power of two.
    pub records: usize,
    /// How many rings there are.
    pub cpus: u32,
    /// How often the processor's own counter counts in a millisecond, if it is good for times; else 0, and those are of the
    /// monotonic clock.
    pub ticks_khz: u32,
    /// The number of the instance, from 1.
    pub instance: u32,
}

/// What an instance hands over to its successor, which may be in another module. Only modules look into it.
#[repr(C)]
pub struct HandoverState {
    /// A box with the state.
    pub state: *mut c_void,
    /// An `Arc` of the topology.
    pub topology: *const c_void,
    /// A box with what it counts for people.
    pub figures: *mut c_void,
    /// The instance's number, which is in all of its tokens.
    pub instance: u16,
    /// How many of `dropped` there are.
    pub dropped_len: u32,
    /// Tokens that it has dropped and that were not taken from here yet.
    pub dropped: [RawToken; 64],
    /// All memory of the instance.
    pub blocks: Blocks,
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
    /// What an instance of another layout or in another place has saved for this one.
    pub saved: *const u8,
    /// Its length in bytes; 0 if the instance begins anew.
    pub saved_len: usize,
    /// Number of tasks that there can be at once.
    pub max_tasks: u32,
    /// Written: how much of `error` is used.
    pub error_len: u32,
    /// What the instance may ask and say.
    pub host: *const HostTable,
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
    /// Moves the task of a token, which waits, to a CPU; 0 if that is done, and otherwise the number of a reason.
    pub claim: unsafe extern "C" fn(task: u64, serial: u32, cpu: u32) -> u32,
    /// Takes an idle CPU for a task, of those in `words` or, if there are none, of all; one more than its number, 0 for none.
    pub take_idle: unsafe extern "C" fn(task: u64, words: *const u64, len: usize) -> u32,
    /// The task that runs on a CPU, 0 for none, its weight, and since when.
    pub running: unsafe extern "C" fn(cpu: u32, weight: *mut u32, since_ns: *mut u64) -> u64,
    /// Writes a notice into a queue; 0 if that is done, and otherwise the number of a reason.
    pub notify: unsafe extern "C" fn(host: *const HostTable, queue: u32, bytes: *const u8, len: usize) -> u32,
    /// The PID of the process that a task is a thread of; 0 if it is gone.
    pub process: unsafe extern "C" fn(task: u64) -> u32,
    /// The control group of a task: its number, and below that 32 bits of its weight.
    pub group: unsafe extern "C" fn(task: u64) -> u64,
    /// Keeps the reason for which the instance ends, unless there is one already.
    pub reason: unsafe extern "C" fn(host: *const HostTable, text: *const u8, len: usize),
    /// Ends the policy and leaves the call that is under way. It does not return, which is not in its type because
    /// objtool wants code after every call.
    pub fault: unsafe extern "C" fn(host: *const HostTable),
    /// Leaves the call that is under way, which is in no other's way. It does not return either.
    pub leave: unsafe extern "C" fn(host: *const HostTable),
}

impl CreateArgs {
    /// Notes why an instance cannot be made.
    pub fn refuse(&mut self, reason: &str) {
        self.error_len = note(reason.as_bytes(), &mut self.error);
    }
}

impl Settings {
    /// Notes why they cannot be set.
    pub fn refuse(&mut self, reason: &str) {
        self.refuse_bytes(reason.as_bytes());
    }

    /// Notes a reason that may be cut in the middle of a character.
    pub fn refuse_bytes(&mut self, reason: &[u8]) {
        self.error_len = note(reason, &mut self.error);
    }
}

/// Copies the part that there is room for, and returns its length in bytes.
fn note(reason: &[u8], room: &mut [u8]) -> u32 {
    let len = reason.len().min(room.len());
    room[..len].copy_from_slice(&reason[..len]);
    len as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        let params = RawParams::default();
        Settings { text: core::ptr::null(), text_len: 0, params, error_len: 7, error: [b'!'; 256] }
    }

    #[test]
    fn a_reason_is_noted_with_its_length_and_what_is_behind_it_stays() {
        let mut asked = settings();
        asked.refuse("too heavy");
        assert_eq!((asked.error_len, &asked.error[..10]), (9, &b"too heavy!"[..]));
        asked.refuse("");
        assert_eq!(asked.error_len, 0, "the last reason counts");
    }

    #[test]
    fn a_reason_is_cut_at_the_room_for_it() {
        let mut asked = settings();
        for (len, noted) in [(255, 255), (256, 256), (257, 256), (10_000, 256)] {
            asked.refuse(&"x".repeat(len));
            assert_eq!(asked.error_len, noted, "of {len} bytes");
        }
        let bytes = [[b'y'; 255].as_slice(), "ü".as_bytes()].concat();
        asked.refuse_bytes(&bytes);
        assert_eq!((asked.error_len, asked.error[255]), (256, 0xc3), "a cut may go through a character");
    }

    /// C has the same structs, and looks for what is written at these places.
    #[test]
    fn what_c_reads_and_writes_is_where_it_looks_for_it() {
        assert_eq!(core::mem::offset_of!(CreateArgs, max_tasks), 64);
        assert_eq!(core::mem::offset_of!(CreateArgs, error_len), 68);
        assert_eq!(core::mem::offset_of!(CreateArgs, error), 80);
        assert_eq!(core::mem::offset_of!(Settings, params), 16);
        assert_eq!(core::mem::offset_of!(PolicyTable, calls), 8 + NAME_LEN);
        assert_eq!(core::mem::size_of::<crate::Wait>(), 32);
    }
}
