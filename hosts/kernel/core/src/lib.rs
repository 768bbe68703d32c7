//! The Rust half of `ekiden.ko`: the engine, as the C half calls it. Each function here converts, calls, and converts
//! back.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod host;
#[cfg(test)]
mod kernel_fakes;
mod module_policy;
mod queues;
mod status;
#[cfg(test)]
mod tests;

use alloc::{boxed::Box, sync::Arc};
use core::ffi::c_void;
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicPtr, Ordering::*};

use ekiden::{CpuMask, Group, TaskId};
use ekiden_engine::{Checks, Engine, IdleCpus, NotChosen, POLICY_SLOTS, Scan, Share};
use ekiden_host::Host;
use ekiden_host::abi::{Event, Outcome, RawToken, Status};
use ekiden_host::{Patience, Since, Waits};
use ekiden_kernel_rt::{Arena, CreateArgs, GO_ON, PolicyTable, TOO_LONG, Wait};

use host::Kernel;
use module_policy::ModulePolicy;

#[cfg_attr(not(test), global_allocator)]
static ARENA: Arena = Arena::new();

/// The engine that runs, if one does.
static ENGINE: AtomicPtr<Engine<ModulePolicy>> = AtomicPtr::new(ptr::null_mut());

#[cfg(any(target_os = "none", all(clippy, not(test))))]
unsafe extern "C" {
    /// There are `len` bytes at `text`.
    fn ekiden_c_fault(text: *const u8, len: usize) -> !;
}

fn engine() -> Option<&'static Engine<ModulePolicy>> {
    // SAFETY: null, or an engine that lives until `ekiden_rs_forget`, which the C half calls only after the last event.
    unsafe { ENGINE.load(Acquire).as_ref() }
}

/// Makes an engine around a policy. Null in `ENGINE` and a reason in `policy_args` if the policy refuses.
///
/// # Safety
///
/// No engine runs; `table` and all that `policy_args` names outlive the engine; `arena` belongs to the engine alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_create(
    table: *const PolicyTable,
    policy_args: *mut CreateArgs,
    arena: *mut u8,
    arena_len: usize,
    nr_cpus: u32,
) -> i64 {
    // SAFETY: the arena belongs to the engine alone, and none runs.
    unsafe { ARENA.reset(arena, arena_len) };
    ekiden_host::wait_so(Waits { begin: || Since(Wait::begin().0), look, end: |since| Wait(since.0).end() });
    // SAFETY: table and what the arguments name outlive the engine, and so the policy that it has.
    let Some(policy) = (unsafe { ModulePolicy::create(table, policy_args) }) else { return -22 };
    // SAFETY: the policy has been made of the arguments, and they are still the caller's to read.
    let max_tasks = unsafe { (*policy_args).max_tasks };
    start(policy, nr_cpus, max_tasks);
    0
}

/// The engine waits for its own locks only.
fn look(since: &mut Since) -> Patience {
    let mut wait = Wait(since.0);
    let patience = match wait.look() {
        GO_ON => Patience::GoOn,
        TOO_LONG => Patience::TooLong,
        _ => panic!("the engine has panicked on another CPU"),
    };
    since.0 = wait.0;
    patience
}

/// By itself, because an engine is large and the policy that was made before has to do with the stack that is left.
#[inline(never)]
fn start(policy: ModulePolicy, nr_cpus: u32, max_tasks: u32) {
    let idle = Arc::new(IdleCpus::new(nr_cpus));
    let engine = Engine::new(policy, Arc::new(Kernel), idle, nr_cpus, max_tasks);
    ENGINE.store(Box::into_raw(Box::new(engine)), Release);
}

/// Forgets the engine. Its memory is the arena, which the C half frees.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_forget() {
    ENGINE.store(ptr::null_mut(), Release);
}

/// Another policy is going to come. True if a grace period has to pass before that.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_begin_several() -> bool {
    engine().is_some_and(Engine::begin_several)
}

/// An instance that has been made comes to those that run; its policy slot, or negative if there is no room. `ekiden_rs_has_come` follows after a
/// grace period.
///
/// # Safety
///
/// `table` outlives the engine's use of the instance, which comes from it and is not used elsewhere. After each instance that went
/// `ekiden_rs_has_left` was called, after its grace period.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_come(table: *const PolicyTable, made: *mut c_void) -> i64 {
    let Some(engine) = engine().filter(|_| !cfg!(feature = "fixed")) else { return -19 };
    // SAFETY: `made` comes from the table, which outlives the engine. It follows only those that left a grace period ago.
    let policy = unsafe { ModulePolicy::made(table, made) };
    engine.come(policy).map_or(-7, |policy_slot| policy_slot as i64)
}

/// All CPUs ask the policy that has come.
///
/// # Safety
///
/// `outcome` is good for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_has_come(policy_slot: u64, is_default: u64, outcome: *mut Outcome) -> i64 {
    if let Some(engine) = engine() {
        // SAFETY: the outcome is on the stack of the C function that calls this.
        engine.has_come(policy_slot as usize, is_default != 0, unsafe { &mut *outcome });
    }
    0
}

/// An instance goes: no event that begins from here on calls it. Its tasks have to be introduced to others; `ekiden_rs_has_left` follows after a grace
/// period.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_leave(policy_slot: u64) -> i64 {
    let Some(engine) = engine().filter(|_| !cfg!(feature = "fixed")) else { return -19 };
    engine.leave(policy_slot as usize);
    0
}

/// No event calls the instance any more. When tasks have been introduced once more its memory can go.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_has_left(policy_slot: u64) -> i64 {
    if let Some(engine) = engine() {
        engine.has_left(policy_slot as usize);
    }
    0
}

/// Asks policies in another order. Nothing else changes what is published until a grace period later, and `ekiden_rs_all_see`.
///
/// # Safety
///
/// There are `len` policy slots at `order`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_reorder(order: *const u8, len: usize) -> i64 {
    let Some(engine) = engine().filter(|_| len <= POLICY_SLOTS) else { return -22 };
    let mut policy_slots = [0; POLICY_SLOTS];
    // SAFETY: C has copied `len` policy slots into a request that has room for all of them.
    let order = unsafe { slice::from_raw_parts(order, len) };
    policy_slots.iter_mut().zip(order).for_each(|(to, policy_slot)| *to = usize::from(*policy_slot));
    if engine.reorder(&policy_slots[..len]) { 0 } else { -22 }
}

/// As C has it: see `hosts/kernel/include/ekiden_control.h`.
#[repr(C)]
pub struct ShareRequest {
    cpus: u64,
    cpus_len: u32,
    policy_slot: u32,
    weight: u32,
    flags: u32,
}

/// Gives a policy CPUs and a weight. Nothing else changes what is published until a grace period later, and `ekiden_rs_all_see`.
///
/// # Safety
///
/// There are `request.cpus_len` words at `cpus`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_share(request: *const ShareRequest, cpus: *const u64) -> i64 {
    let Some(engine) = engine().filter(|_| !cfg!(feature = "fixed")) else { return -19 };
    // SAFETY: a copy that C has made of what user space wrote, so it does not change meanwhile.
    let request = unsafe { &*request };
    let cpus = match request.cpus_len {
        0 => CpuMask::new(),
        // SAFETY: C has copied as many words as the request says, which it has compared with its limit.
        len => CpuMask::from_words(unsafe { slice::from_raw_parts(cpus, len as usize) }),
    };
    let share = Share { is_strict: request.flags & 1 != 0, weight: request.weight };
    if engine.share(request.policy_slot as usize, &cpus, share) { 0 } else { -22 }
}

/// All events see what was published. They look for work anew, as the outcome says.
///
/// # Safety
///
/// `outcome` is good for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_all_see(outcome: *mut Outcome) -> i64 {
    if let Some(engine) = engine() {
        // SAFETY: the outcome is the caller's, which carries it out when this has returned.
        engine.all_see(unsafe { &mut *outcome });
    }
    0
}

/// Chooses the policy of a task by its policy slot counted from 1; 0 is for the default one. 0 if that is done.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_choose(task: u64, policy_slot: u64, inherits: u64, by_root: u64) -> i64 {
    let policy_slot = (policy_slot as usize).checked_sub(1);
    match engine().map(|engine| engine.choose(TaskId::from_bits(task), policy_slot, inherits != 0, by_root != 0)) {
        Some(Ok(())) => 0,
        Some(Err(NotChosen::NoTask)) => -3,
        Some(Err(NotChosen::NoPolicy)) | None => -2,
        Some(Err(NotChosen::ByRoot)) => -13,
    }
}

/// The policy slots in the order in which their policies are asked, a byte each from the lowest on, counted from 1.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_order() -> u64 {
    engine().map_or(0, |engine| engine.order().rev().fold(0, |all, policy_slot| all << 8 | (policy_slot as u64 + 1)))
}

/// The policy slot of the policy that gets the tasks for which no policy was chosen.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_default() -> u64 {
    engine().map_or(0, |engine| engine.default_policy_slot() as u64)
}

/// Whether there is a policy in a policy slot that is called.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_is_alive(policy_slot: u64) -> bool {
    engine().is_some_and(|engine| engine.is_alive(policy_slot as usize))
}

/// Whether any policy is left.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_any_alive() -> bool {
    engine().is_some_and(|engine| !engine.is_over())
}

/// Chooses what is done about the policy in a policy slot when a task of its changes its state in an unexpected way. 0 if that is
/// done.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_check(policy_slot: u64, checks: u64) -> i64 {
    let checks = Checks::from_number(checks as u32);
    let done = engine().zip(checks).is_some_and(|(engine, checks)| engine.check(policy_slot as usize, checks));
    if done { 0 } else { -22 }
}

/// The policy in a policy slot has panicked outside of a call.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_faulted(policy_slot: u64) -> i64 {
    if let Some(engine) = engine() {
        engine.has_faulted(policy_slot as usize);
    }
    0
}

/// Whether the policy of a task chooses CPUs itself.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_chooses_cpu(task: u64) -> bool {
    engine().is_some_and(|engine| engine.chooses_cpu(TaskId::from_bits(task)))
}

/// The calls that any of the policies implements.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_calls() -> u64 {
    engine().map_or(0, |engine| engine.calls().0)
}

/// Lets another instance take over from the one in a policy slot: `made`, which knows no task, or one of `table` that gets the state of
/// the old one if that is null.
///
/// # Safety
///
/// No event is under way on any CPU, and none comes until this returns. `outcome` is good for the call; for the rest see
/// [`ModulePolicy::succeed`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_swap(
    policy_slot: u64,
    table: *const PolicyTable,
    policy_args: *mut CreateArgs,
    made: *mut c_void,
    outcome: *mut Outcome,
) -> i64 {
    let engine = ENGINE.load(Acquire);
    if engine.is_null() || cfg!(feature = "fixed") {
        return -19;
    }
    // SAFETY: no event is under way on any CPU, so this is the only reference; the outcome is good for the call.
    let (engine, outcome, policy_slot) = unsafe { (&mut *engine, &mut *outcome, policy_slot as usize) };
    engine.replace_policy(policy_slot, |policy| {
        // SAFETY: what `succeed` asks for is what the caller was asked for.
        unsafe { policy.succeed(table, policy_args, made) }
    });
    if !made.is_null() {
        engine.start_over(policy_slot, outcome);
    }
    0
}

/// Has the policy write down what a version with another layout is to go on with. The number of bytes; 0 for nothing, negative
/// if there was no room.
///
/// # Safety
///
/// `room` has space for `len` bytes. This is `cpu`, with interrupts off.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_save(policy_slot: u64, cpu: u32, room: *mut u8, len: usize) -> i64 {
    let policy = engine().and_then(|engine| engine.policy(policy_slot as usize));
    // SAFETY: room and CPU are passed on with what the caller vouches for; the instance stays, as policies are replaced one at a time.
    policy.map_or(0, |policy| unsafe { policy.save(cpu, room, len) })
}

/// What the policy counts for people: which figures for `NO_CPU`, and else the words of a CPU. The number of bytes; 0 for no policy,
/// negative if there was no room.
///
/// # Safety
///
/// `room` has space for `len` bytes, and the instance is not replaced meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_figures(policy_slot: u64, cpu: u32, room: *mut u64, len: usize) -> i64 {
    let policy = engine().and_then(|engine| engine.policy(policy_slot as usize));
    // SAFETY: the room is passed on with its length, and the caller keeps the instance from being replaced.
    policy.map_or(0, |policy| unsafe { policy.figures_of(cpu, room, len) })
}

/// How many entries of the task table are gone through with interrupts off.
const INTRODUCED_AT_ONCE: u32 = 32;
/// How many entries are looked at with interrupts off if no policy is called.
const LOOKED_AT_AT_ONCE: u32 = 256;

/// Tells policies of tasks that are not attached to theirs, from entry `first` on. Returns the entry to go on with; 0 when they have
/// heard of all.
///
/// # Safety
///
/// `outcome` is good for the call, which is in an RCU read section.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_introduce(first: u64, outcome: *mut Outcome) -> i64 {
    // SAFETY: one outcome for each step of a scan, which no other call has before the step is over.
    let outcome = unsafe { &mut *outcome };
    let next = engine().and_then(|engine| engine.introduce(first as u32, INTRODUCED_AT_ONCE, outcome));
    i64::from(next.unwrap_or(0))
}

/// Takes out policies of which a task has waited in `most` scans over the task table, this one being `number` and some time apart
/// from the last. Looks at some entries from `first` on, and returns the entry to go on with; 0 at the end.
///
/// # Safety
///
/// `outcome` is good for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_find_starved(
    number: u64,
    most: u64,
    apart_ms: u64,
    first: u64,
    outcome: *mut Outcome,
) -> i64 {
    // SAFETY: the outcome is good for the call. There is one scan at a time, and it takes one step at a time.
    let outcome = unsafe { &mut *outcome };
    let scan = Scan { number: number as u32, most: most as u32, apart_ms: apart_ms as u32, hears_ticks: true };
    let next = engine().and_then(|engine| engine.find_starved(scan, first as u32, LOOKED_AT_AT_ONCE, outcome));
    i64::from(next.unwrap_or(0))
}

/// Handles one event.
///
/// # Safety
///
/// `event` and `outcome` are good for the call, `payload` for `payload_len` bytes; it is an address in any case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_deliver(
    event: *const Event,
    outcome: *mut Outcome,
    payload: *const u8,
    payload_len: usize,
) -> i64 {
    // SAFETY: event, outcome and payload are good for the call, the payload for its length.
    let (event, outcome, payload) = unsafe { (&*event, &mut *outcome, slice::from_raw_parts(payload, payload_len)) };
    let Some(engine) = engine() else {
        outcome.status = Status::Fault as i32;
        return 0;
    };
    engine.deliver(event, payload, outcome);
    0
}

/// Stops calling policies, because the engine has panicked.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_silence() {
    if let Some(engine) = engine() {
        engine.silence();
    }
}

/// Number of tasks that the engine knows.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_task_count() -> u64 {
    engine().map_or(0, |engine| u64::from(engine.tasks().len()))
}

/// Bytes of the engine's arena in use.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_arena_used() -> u64 {
    ARENA.used() as u64
}

/// The task behind an id, for the C half's answers to a policy; null if it is gone.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_host_task(task: u64) -> *const c_void {
    let task = TaskId::from_bits(task);
    engine().and_then(|engine| engine.tasks().host_task(task)).map_or(ptr::null(), |host_task| host_task as _)
}

/// Fills `words` with the idle CPUs.
///
/// # Safety
///
/// `words` has room for `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_idle_cpus(words: *mut u64, len: usize) {
    let mut cpus = CpuMask::new();
    Kernel.idle_cpus(&mut cpus);
    // SAFETY: `words` has room for `len`, which only this call writes to.
    let words = unsafe { slice::from_raw_parts_mut(words, len) };
    for (index, word) in words.iter_mut().enumerate() {
        *word = cpus.as_words().get(index).copied().unwrap_or(0);
    }
}

/// Moves a task that waits to a CPU, for its token; 0 if that is done, and otherwise the number of a reason.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_claim(task: u64, serial: u32, cpu: u32) -> u32 {
    let Some(engine) = engine() else { return ekiden::RefusalReason::Gone as u32 };
    let token = RawToken { task: TaskId::from_bits(task), serial, cpu };
    engine.claim(token, cpu).map_or_else(|reason| reason as u32, |()| 0)
}

/// Takes an idle CPU for a task: one more than its number, 0 for none.
///
/// # Safety
///
/// There are as many words as is said; `among` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_take_idle(
    task: u64,
    allowed: *const u64,
    allowed_len: usize,
    among: *const u64,
    among_len: usize,
) -> u32 {
    let Some(engine) = engine() else { return 0 };
    // SAFETY: C's own set of a task's CPUs, of `allowed_len` words; it is never null.
    let allowed = unsafe { slice::from_raw_parts(allowed, allowed_len) };
    // SAFETY: a policy's set, not null, with the length that came with it.
    let among = (!among.is_null()).then(|| unsafe { slice::from_raw_parts(among, among_len) });
    let task = TaskId::from_bits(task);
    let found = engine.idle().take(task, Some(allowed), among, |cpu| Kernel.may_run(task, cpu));
    found.map_or(0, |cpu| cpu + 1)
}

/// The weight of a task if it runs on a CPU; 0 if it does not.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_weight_of_running(task: u64, cpu: u32) -> u32 {
    engine().and_then(|engine| engine.weight_of_running(TaskId::from_bits(task), cpu)).unwrap_or(0)
}

/// The control group of a task: its number, and below that 32 bits of its weight.
#[unsafe(no_mangle)]
pub extern "C" fn ekiden_rs_group(task: u64) -> u64 {
    let group = engine().map_or(Group::ROOT, |engine| engine.group_of(TaskId::from_bits(task)));
    u64::from(group.id) << 32 | u64::from(group.weight)
}

#[cfg(any(target_os = "none", all(clippy, not(test))))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let text = ekiden_kernel_rt::describe_panic(info);
    // SAFETY: the text is copied before the call is left for the guard that entered it, with which this stack is gone.
    unsafe { ekiden_c_fault(text.as_bytes().as_ptr(), text.as_bytes().len()) }
}
