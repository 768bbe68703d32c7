//! The functions of the C half that the engine's half calls, and a policy behind a table, for tests in a process.

use core::{cell::Cell, ffi::c_void, mem::MaybeUninit, ptr};
use std::{
    boxed::Box,
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    thread_local, vec,
};

use ekiden_host::abi::{
    ABI_VERSION, Call, Calls, Event, EventKind, Message, NAME_LEN, Outcome, RawToken, Reply, Status, TaskId,
    enqueue_flags,
};
use ekiden_host::hints::Geometry;
use ekiden_kernel_rt::{CallLogArgs, CreateArgs, Deliver, HandoverState, PolicyTable, Settings, Wait};

thread_local! {
    /// What the guard returns instead of calling the policy, if that is not 0.
    pub(crate) static GUARD_SAYS: Cell<i64> = const { Cell::new(0) };
    /// What a look says.
    pub(crate) static LOOK_SAYS: Cell<u32> = const { Cell::new(0) };
    /// The host's name of the task that was asked about last.
    pub(crate) static ASKED: Cell<usize> = const { Cell::new(0) };
    /// Whether making an instance fails.
    pub(crate) static REFUSES: Cell<bool> = const { Cell::new(false) };
}

#[unsafe(no_mangle)]
extern "C" fn ekiden_c_now_ns() -> u64 {
    1_000_000
}
#[unsafe(no_mangle)]
extern "C" fn ekiden_c_may_run(host_task: *const c_void, cpu: u32) -> bool {
    ASKED.set(host_task as usize);
    cpu % 2 == 0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ekiden_c_allowed_cpus(host_task: *const c_void, words: *mut u64, len: usize) {
    ASKED.set(host_task as usize);
    // SAFETY: the caller has room for this many words.
    unsafe { core::slice::from_raw_parts_mut(words, len) }.fill(0x5555_5555_5555_5555);
}
#[unsafe(no_mangle)]
extern "C" fn ekiden_c_policy_faulted(_policy_slot: u32) {}
#[unsafe(no_mangle)]
extern "C" fn ekiden_c_stop(_text: *const u8, _len: usize) -> ! {
    std::process::abort()
}
#[unsafe(no_mangle)]
extern "C" fn ekiden_c_refill_at(_at_ns: u64) {}
#[unsafe(no_mangle)]
extern "C" fn ekiden_c_interrupted(_host_task: *const c_void) -> u32 {
    0
}
#[unsafe(no_mangle)]
extern "C" fn ekiden_c_is_at_user(_host_task: *const c_void) -> bool {
    false
}
#[unsafe(no_mangle)]
extern "C" fn ekiden_c_is_in_read_section(_host_task: *const c_void) -> bool {
    false
}
#[unsafe(no_mangle)]
extern "C" fn ekiden_c_look_at_return() -> bool {
    false
}
#[unsafe(no_mangle)]
extern "C" fn ekiden_is_spent() -> bool {
    false
}
#[unsafe(no_mangle)]
extern "C" fn ekiden_wait_begin(wait: &mut Wait) {
    *wait = Wait([1, 0, 0, 0]);
}
#[unsafe(no_mangle)]
extern "C" fn ekiden_wait_look(wait: &mut Wait) -> u32 {
    wait.0[1] += 1;
    LOOK_SAYS.get()
}
#[unsafe(no_mangle)]
extern "C" fn ekiden_wait_end(_wait: &Wait) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ekiden_guarded_policy(
    reply: &mut MaybeUninit<Reply>,
    instance: *mut c_void,
    message: *const Message,
    payload: *const u8,
    payload_len: usize,
    deliver: Deliver,
) -> i64 {
    match GUARD_SAYS.get() {
        // SAFETY: the engine's half passes what `deliver` needs, which is all that is passed on here.
        0 => unsafe {
            deliver(reply, instance, message, payload, payload_len);
            0
        },
        // As after a panic: nothing was written.
        says => says,
    }
}

/// A policy that runs tasks in the order in which they came.
#[derive(Default)]
pub(crate) struct Instance(Mutex<VecDeque<RawToken>>);

unsafe extern "C" fn create(args: *mut CreateArgs) -> *mut c_void {
    if REFUSES.get() {
        // SAFETY: the arguments are good for the call.
        unsafe { &mut *args }.refuse("not today");
        return ptr::null_mut();
    }
    Box::into_raw(Box::<Instance>::default()).cast()
}

unsafe extern "C" fn deliver(
    reply: &mut MaybeUninit<Reply>,
    instance: *mut c_void,
    message: *const Message,
    _payload: *const u8,
    _payload_len: usize,
) {
    // SAFETY: `instance` comes from `create` and is never freed; the message is good for the call.
    let (instance, message) = unsafe { (&*instance.cast::<Instance>(), &*message) };
    let mut answer = Reply::default();
    let mut queue = instance.0.lock().unwrap();
    if message.token_serial != 0 {
        queue.push_back(message.token());
    }
    if message.call == Call::PickNextTask as u32 {
        let of_cpu = queue.iter().position(|token| token.cpu == message.cpu);
        answer.token = of_cpu.and_then(|at| queue.remove(at)).unwrap_or_default();
    }
    reply.write(answer);
}

unsafe extern "C" fn give(instance: *mut c_void, handover: *mut HandoverState) {
    // SAFETY: the handover is zeroed, and good for the call.
    unsafe { (*handover).state = instance };
}
unsafe extern "C" fn take(_args: *mut CreateArgs, handover: *mut HandoverState) -> *mut c_void {
    // SAFETY: `give` has filled it in.
    unsafe { (*handover).state }
}
unsafe extern "C" fn check(_args: *mut CreateArgs) -> bool {
    true
}
unsafe extern "C" fn call_log(_call_log: *const CallLogArgs, _what: u32) {}
unsafe extern "C" fn save(_instance: *mut c_void, cpu: u32, _room: *mut u8, len: usize) -> i64 {
    i64::from(cpu) * 1000 + len as i64
}
unsafe extern "C" fn figures(_instance: *mut c_void, cpu: u32, _room: *mut u64, len: usize) -> i64 {
    -i64::from(cpu) - len as i64
}
unsafe extern "C" fn settings(_settings: *mut Settings) -> bool {
    true
}

pub(crate) static TABLE: PolicyTable = PolicyTable {
    abi_version: ABI_VERSION,
    size: size_of::<PolicyTable>() as u32,
    name: [b'x'; NAME_LEN],
    calls: Calls::NONE.with(Call::PickNextTask).with(Call::TaskNew).with(Call::TaskWakeup).with(Call::TaskPreempt).0,
    create,
    deliver,
    give,
    take,
    check,
    call_log,
    save,
    figures,
    settings,
    layout: 0,
    params_declared: 7,
    types: Geometry {
        up: ekiden_host::hints::Side { fingerprint: 0, bytes: 0, records: 0 },
        down: ekiden_host::hints::Side { fingerprint: 0, bytes: 0, records: 0 },
    },
};

pub(crate) fn args(max_tasks: u32) -> CreateArgs {
    CreateArgs {
        arena: ptr::null_mut(),
        arena_len: 0,
        topology: ptr::null(),
        topology_len: 0,
        params: ptr::null(),
        params_len: 0,
        saved: ptr::null(),
        saved_len: 0,
        max_tasks,
        error_len: 0,
        host: ptr::null(),
        error: [0; 256],
    }
}

/// There is one engine at a time, so tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// No engine, until this is dropped.
pub(crate) fn without_engine() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An engine that runs until this is dropped.
pub(crate) struct Running {
    _turn: MutexGuard<'static, ()>,
}

impl Running {
    pub(crate) fn on(nr_cpus: u32, max_tasks: u32) -> Self {
        let turn = without_engine();
        let memory = vec![0_u8; 1 << 12].leak();
        // SAFETY: no other engine runs, by the turn; the memory is leaked, and the arguments are good for the call.
        let done = unsafe {
            crate::ekiden_rs_create(&TABLE, &mut args(max_tasks), memory.as_mut_ptr(), memory.len(), nr_cpus)
        };
        assert_eq!(done, 0);
        Self { _turn: turn }
    }

    pub(crate) fn deliver(&self, event: Event, payload: &[u8]) -> Outcome {
        let mut outcome = Outcome::default();
        // SAFETY: all three are good for the call.
        let done = unsafe { crate::ekiden_rs_deliver(&event, &mut outcome, payload.as_ptr(), payload.len()) };
        assert_eq!(done, 0);
        outcome
    }

    /// A task that is under our care, by the host's name for it.
    pub(crate) fn task(&self, host_task: u64) -> TaskId {
        let init = Event { args: [0, 100 + host_task], ..Event::new(EventKind::TaskInit, 0) };
        let outcome = self.deliver(init, &host_task.to_ne_bytes());
        assert_eq!(outcome.status, Status::Done as i32);
        self.deliver(Event { task: outcome.task, ..Event::new(EventKind::TaskEnable, 0) }, &[]);
        outcome.task
    }

    pub(crate) fn wake(&self, task: TaskId, cpu: u32) -> Outcome {
        self.deliver(Event { task, flags: enqueue_flags::WAKEUP, ..Event::new(EventKind::Enqueue, cpu) }, &[])
    }

    pub(crate) fn pick(&self, cpu: u32) -> Outcome {
        self.deliver(Event::new(EventKind::Pick, cpu), &[])
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        crate::ekiden_rs_forget();
    }
}
