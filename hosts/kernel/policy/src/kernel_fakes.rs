//! What `ekiden.ko` and the C half of a module offer, and a policy, for tests in a process. A thread is CPU 0.

use core::{
    cell::{Cell, RefCell},
    ffi::c_void,
    ptr,
};
use std::{
    string::String,
    sync::{Mutex, MutexGuard, PoisonError},
    thread_local, vec,
    vec::Vec,
};

use ekiden::prelude::*;
use ekiden_kernel_rt::{CreateArgs, HostTable, PolicyTable, Wait};
use ekiden_lock::Word;

use crate::{Arena, HandoverState, here};

thread_local! {
    /// Calls of the host's functions that change something, in order, with their arguments.
    pub(crate) static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// What those return that return a number.
    pub(crate) static SAYS: Cell<u64> = const { Cell::new(0) };
    /// Where CPUs record, by what was told to the C half.
    pub(crate) static PLACES: RefCell<Vec<(u32, usize)>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn calls() -> Vec<String> {
    CALLS.take()
}

fn note(call: String) {
    CALLS.with_borrow_mut(|calls| calls.push(call));
}

#[unsafe(no_mangle)]
extern "C" fn ekiden_call_log_place(cpu: u32, place: *mut u8) {
    PLACES.with_borrow_mut(|places| places.push((cpu, place as usize)));
    if cpu == 0 {
        here::CALL_LOG.set(place);
    }
}
#[unsafe(no_mangle)]
extern "C" fn ekiden_forget_locks() {}
#[unsafe(no_mangle)]
extern "C" fn ekiden_peek(_to: *mut Word, _from: usize, _len: usize) -> bool {
    false
}
#[unsafe(no_mangle)]
extern "C" fn ekiden_wait_begin(_wait: &mut Wait) {}
#[unsafe(no_mangle)]
extern "C" fn ekiden_wait_look(_wait: &mut Wait) -> u32 {
    0
}
#[unsafe(no_mangle)]
extern "C" fn ekiden_wait_end(_wait: &Wait) {}

/// The text at an address.
unsafe fn text(bytes: *const u8, len: usize) -> String {
    // SAFETY: the caller has this many bytes there.
    String::from_utf8_lossy(unsafe { core::slice::from_raw_parts(bytes, len) }).into_owned()
}

unsafe extern "C" fn now_ns() -> u64 {
    9_000
}
unsafe extern "C" fn may_run(task: u64, cpu: u32) -> bool {
    task == SAYS.get() && cpu == 2
}
unsafe extern "C" fn fill(task: u64, words: *mut u64, len: usize) {
    // SAFETY: there is room for this many words.
    unsafe { core::slice::from_raw_parts_mut(words, len) }.fill(task);
}
unsafe extern "C" fn idle_cpus(words: *mut u64, len: usize) {
    // SAFETY: there is room for this many words.
    unsafe { core::slice::from_raw_parts_mut(words, len) }.fill(6);
}
unsafe extern "C" fn claim(task: u64, serial: u32, cpu: u32) -> u32 {
    note(std::format!("claim {task} {serial} {cpu}"));
    SAYS.get() as u32
}
unsafe extern "C" fn take_idle(task: u64, words: *const u64, len: usize) -> u32 {
    // SAFETY: there are this many words, if any.
    let words = (!words.is_null()).then(|| unsafe { core::slice::from_raw_parts(words, len) });
    note(std::format!("take_idle {task} {words:?}"));
    SAYS.get() as u32
}
unsafe extern "C" fn running(cpu: u32, weight: *mut u32, since_ns: *mut u64) -> u64 {
    // SAFETY: there is room for both.
    unsafe { (*weight, *since_ns) = (500 + cpu, 70) };
    SAYS.get()
}
unsafe extern "C" fn notify(_: *const HostTable, queue: u32, bytes: *const u8, len: usize) -> u32 {
    // SAFETY: there are this many bytes.
    note(std::format!("notify {queue} {}", unsafe { text(bytes, len) }));
    SAYS.get() as u32
}
unsafe extern "C" fn process(_task: u64) -> u32 {
    SAYS.get() as u32
}
unsafe extern "C" fn group(_task: u64) -> u64 {
    SAYS.get()
}
unsafe extern "C" fn reason(_: *const HostTable, bytes: *const u8, len: usize) {
    // SAFETY: there are this many bytes.
    note(std::format!("reason {}", unsafe { text(bytes, len) }));
}
unsafe extern "C" fn fault(_: *const HostTable) {
    note("fault".into());
}
unsafe extern "C" fn leave(_: *const HostTable) {
    note("leave".into());
}

pub(crate) static HOST_TABLE: HostTable = HostTable {
    now_ns,
    may_run,
    allowed_cpus: fill,
    idle_cpus,
    claim,
    take_idle,
    running,
    notify,
    process,
    group,
    reason,
    fault,
    leave,
};

/// First come, first served on each CPU, with a parameter, a figure, parameters of tasks, and a form in which it saves.
#[derive(Layout)]
pub(crate) struct Plain {
    queues: PerCpu<SpinLock<FifoQueue<Self>>>,
    picks: Counter,
    mark: u64,
}

#[policy(TaskSettings, SavedState)]
impl Scheduler for Plain {
    const NAME: &'static str = "plain";
    const PARAMS: &'static [Param] = &[Param { name: "mark", help: "a mark", default: 1, min: 0, max: 9 }];

    fn new(env: &Env) -> Self {
        let picks = env.counter("picks", "how often a task was picked");
        Self { queues: PerCpu::new(env, |_| SpinLock::default()), picks, mark: env.param("mark") }
    }

    fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
        self.queues[token.cpu()].lock().push_back(token);
    }

    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        let token = self.queues[cpu].lock().pop_front()?;
        self.picks.add(cx, 1);
        Some(token)
    }
}

#[policy]
impl TaskSettings for Plain {
    const TASK_PARAMS: &'static [Param] = &[Param { name: "rank", help: "a rank", default: 3, min: 0, max: 9 }];

    fn check_task_params(params: &TaskParams) -> Result<(), &'static str> {
        if params.get("rank") == 7 { Err("no rank is 7") } else { Ok(()) }
    }
}

impl SavedState for Plain {
    fn save(&self, to: &mut Saved<'_>) {
        to.push(b"plain");
        to.push(&self.mark.to_le_bytes());
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), &'static str> {
        let mark =
            saved.strip_prefix(b"plain").and_then(|mark| mark.try_into().ok()).ok_or("that is in another form")?;
        self.mark = u64::from_le_bytes(mark);
        Ok(())
    }
}

static ARENA: Arena = Arena::new();

unsafe extern "C" fn create(args: *mut CreateArgs) -> *mut c_void {
    // SAFETY: the tests' arguments are good for the call, and their memory is never freed.
    unsafe { crate::create::<Plain>(args, &ARENA) }
}
unsafe extern "C" fn give(instance: *mut c_void, handover: *mut HandoverState) {
    // SAFETY: the tests give away an instance of this table once.
    unsafe { crate::give::<Plain>(instance, handover, &ARENA) }
}
unsafe extern "C" fn take(args: *mut CreateArgs, handover: *mut HandoverState) -> *mut c_void {
    // SAFETY: the tests take what an instance of this table gave.
    unsafe { crate::take::<Plain>(args, handover, &ARENA) }
}
unsafe extern "C" fn check(args: *mut CreateArgs) -> bool {
    // SAFETY: the tests' arguments are good for the call.
    unsafe { crate::check::<Plain>(args, &ARENA) }
}

pub(crate) static TABLE: PolicyTable = crate::table::<Plain>(create, give, take, check);

/// A module has one instance at a time, so tests take turns. Static state begins anew.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    crate::HOST.store((&raw const HOST_TABLE).cast_mut(), crate::Relaxed);
    crate::begin_anew();
    turn
}

/// Arguments for a machine with this many CPUs. All that they name is leaked.
pub(crate) fn args(nr_cpus: u32, params: &'static [u8]) -> CreateArgs {
    let (arena, topology) = (vec![0_u8; 1 << 12].leak(), Topology::flat(nr_cpus).to_words().leak());
    CreateArgs {
        arena: arena.as_mut_ptr(),
        arena_len: arena.len(),
        topology: topology.as_ptr(),
        topology_len: topology.len(),
        params: params.as_ptr(),
        params_len: params.len(),
        saved: ptr::null(),
        saved_len: 0,
        max_tasks: 8,
        error_len: 0,
        host: &HOST_TABLE,
        error: [0; 256],
    }
}

/// An instance for such a machine.
pub(crate) fn instance(nr_cpus: u32) -> *mut c_void {
    // SAFETY: the arguments are good for the call.
    let instance = unsafe { (TABLE.create)(&mut args(nr_cpus, b"")) };
    assert_ne!(instance, ptr::null_mut());
    instance
}
