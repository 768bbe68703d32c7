//! Turns a policy into the Rust half of a kernel module: `ekiden_kernel_policy::module!(MyPolicy);` is the whole
//! source of such a module.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

use alloc::{boxed::Box, format, sync::Arc};
use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::Relaxed};

use ekiden::{Env, Saved, Scheduler, TaskParams, Topology};
use ekiden_host::Policy as _;
pub use ekiden_host::abi::{ABI_VERSION, NAME_LEN};
use ekiden_host::hints::{Geometry, layout::RECORD_BYTES_MAX};
use ekiden_host::{Adapter, Figures, Handover};
use ekiden_host::{Patience, Since, Waits};
pub use ekiden_kernel_rt::{Arena, CreateArgs, HandoverState, HostTable, PolicyTable, Settings};
use ekiden_kernel_rt::{FAULT_TEXT_LEN, GO_ON, TOO_LONG, Text, Wait};
use ekiden_lock::{OfHost, Word};
use ekiden_recording::Mark;

mod call_log;
mod deliver;
mod figures;
#[cfg_attr(all(target_arch = "x86_64", not(test)), path = "here_x86_64.rs")]
#[cfg_attr(test, path = "here_fake.rs")]
mod here;
mod host;
#[cfg(test)]
mod kernel_fakes;
#[cfg(test)]
mod tests;

use host::Kernel;

/// Makes a policy the content of this object.
#[macro_export]
macro_rules! module {
    ($policy:ty) => {
        #[global_allocator]
        static ARENA: $crate::Arena = $crate::Arena::new();

        /// Found by the C half of the module.
        #[unsafe(no_mangle)]
        pub static ekiden_policy_table: $crate::PolicyTable = $crate::table::<$policy>(create, give, take, check);

        unsafe extern "C" fn create(args: *mut $crate::CreateArgs) -> *mut core::ffi::c_void {
            // SAFETY: `ekiden.ko` calls this with arguments that are good for the call, and once per arena.
            unsafe { $crate::create::<$policy>(args, &ARENA) }
        }

        unsafe extern "C" fn give(instance: *mut core::ffi::c_void, handover: *mut $crate::HandoverState) {
            // SAFETY: `ekiden.ko` calls this with an instance of ours that it forgets, and while no other call is under way.
            unsafe { $crate::give::<$policy>(instance, handover, &ARENA) }
        }

        unsafe extern "C" fn take(
            args: *mut $crate::CreateArgs,
            handover: *mut $crate::HandoverState,
        ) -> *mut core::ffi::c_void {
            // SAFETY: `ekiden.ko` calls this with what a policy of the same layout gave, and while no other call is under way.
            unsafe { $crate::take::<$policy>(args, handover, &ARENA) }
        }

        unsafe extern "C" fn check(args: *mut $crate::CreateArgs) -> bool {
            // SAFETY: `ekiden.ko` calls this with arguments that are good for the call.
            unsafe { $crate::check::<$policy>(args, &ARENA) }
        }

        #[cfg(target_os = "none")]
        #[panic_handler]
        fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
            $crate::leave(info)
        }
    };
}

/// Loop iterations for what is done once, perhaps for each of millions of tasks, when a policy comes or goes.
const MUCH_FUEL: i64 = 1 << 24;

/// Loop iterations for what describes a panic.
const TEXT_FUEL: i64 = 1 << 16;

/// What locks are poisoned and forgotten with.
// SAFETY: this is a host, and it is not public.
const OF_HOST: OfHost = unsafe { OfHost::new() };

/// Panics in `check_task_params` after which it is not asked any more, as each loses memory.
const CHECK_PANICS_MOST: u32 = 64;

unsafe extern "C" {
    /// Forgets which locks calls have, on all CPUs. None is under way.
    safe fn ekiden_forget_locks();
    /// Copies what is at an address that may be that of nothing; false if it is.
    fn ekiden_peek(to: *mut Word, from: usize, len: usize) -> bool;
}

/// The instance's way back to `ekiden.ko`. One per module: a module runs one instance at a time.
static HOST: AtomicPtr<HostTable> = AtomicPtr::new(ptr::null_mut());

/// How many words a set of this machine's CPUs has: what is not there costs nothing to ask for.
static MASK_WORDS: AtomicUsize = AtomicUsize::new(0);

/// The settings of a task that are being checked, one at a time, and where the call that does it was entered; 0 for none.
static CHECKED: AtomicPtr<Settings> = AtomicPtr::new(ptr::null_mut());
static CHECKED_FROM: AtomicUsize = AtomicUsize::new(0);
/// How often that has panicked.
static CHECK_PANICS: AtomicU32 = AtomicU32::new(0);

/// The table of a policy.
pub const fn table<S: Scheduler>(
    create: unsafe extern "C" fn(*mut CreateArgs) -> *mut c_void,
    give: unsafe extern "C" fn(*mut c_void, *mut HandoverState),
    take: unsafe extern "C" fn(*mut CreateArgs, *mut HandoverState) -> *mut c_void,
    check: unsafe extern "C" fn(*mut CreateArgs) -> bool,
) -> PolicyTable {
    let mut name = [0; NAME_LEN];
    let text = S::NAME.as_bytes();
    assert!(text.len() < NAME_LEN, "the policy's name is too long");
    let mut i = 0;
    while i < text.len() {
        name[i] = text[i];
        i += 1;
    }
    PolicyTable {
        abi_version: ABI_VERSION,
        size: size_of::<PolicyTable>() as u32,
        name,
        calls: S::CALLS.0,
        create,
        deliver: deliver::deliver::<S>,
        give,
        take,
        check,
        call_log: call_log::run,
        save: save::<S>,
        layout: match S::LAYOUT {
            // The size of what is passed on stands for what is in it.
            Some(layout) => layout.number() ^ size_of::<HandoverState>() as u64,
            None => 0,
        },
        figures: figures::write::<S>,
        settings: settings::<S>,
        params_declared: TaskParams::fingerprint::<S>(),
        types: types::<S>(),
    }
}

/// The types of what is said in queues.
const fn types<S: Scheduler>() -> Geometry {
    let types = Geometry::of_types::<S::Hint, S::Notice>();
    let most = if types.up.bytes > types.down.bytes { types.up.bytes } else { types.down.bytes };
    assert!(most <= RECORD_BYTES_MAX, "a hint or a notice is longer than a record of a queue can be: make it smaller");
    types
}

/// Makes an instance in a fresh arena.
///
/// # Safety
///
/// The pointers in `args` are good for the call, and the arena's memory until the next call.
pub unsafe fn create<S: Scheduler>(args: *mut CreateArgs, arena: &Arena) -> *mut c_void {
    // SAFETY: `ekiden.ko` makes the arguments for this call, and reads them when it has returned.
    let args = unsafe { &mut *args };
    here::refuel(MUCH_FUEL);
    HOST.store(args.host.cast_mut(), Relaxed);
    // SAFETY: what `args` names is good for the call; the last instance is gone with its arena.
    unsafe { arena.reset(args.arena, args.arena_len) };
    begin_anew();
    ekiden_host::forget_dropped(OF_HOST);
    // SAFETY: topology and parameters outlive this call, and what is made of them is a copy.
    match unsafe { env::<S>(args) } {
        Some(env) => {
            let mut instance = Box::new(Adapter::<S>::new(&env, Arc::new(Kernel)));
            // SAFETY: what `args` names is good for the call.
            let is_refused = match unsafe { saved(args) } {
                Some(saved) => {
                    here::refuel(MUCH_FUEL);
                    instance.restore(saved).map_err(|reason| args.refuse(reason)).is_err()
                }
                None => false,
            };
            has_no_lock();
            if is_refused { ptr::null_mut() } else { Box::into_raw(instance).cast() }
        }
        None => ptr::null_mut(),
    }
}

/// What another instance has saved for this one.
///
/// # Safety
///
/// What `args` names is good for as long as the result is used.
unsafe fn saved<'a>(args: &CreateArgs) -> Option<&'a [u8]> {
    // SAFETY: `ekiden.ko` keeps that many bytes there until `create` has returned.
    (args.saved_len > 0).then(|| unsafe { slice::from_raw_parts(args.saved, args.saved_len) })
}

/// Forgets the locks of what was here before.
fn begin_anew() {
    wait_as_the_host_does();
    ekiden_host::forget_locks(OF_HOST);
    ekiden_forget_locks();
    CHECK_PANICS.store(0, Relaxed);
}

/// Ends an instance. What it hands over stays where it is, in the arena.
///
/// # Safety
///
/// `instance` comes from [`create`] or [`take`], no call is under way, and it is not used again. `handover` is good for the
/// call.
pub unsafe fn give<S: Scheduler>(instance: *mut c_void, handover: *mut HandoverState, arena: &Arena) {
    // SAFETY: `instance` is a box that was given away, and is not used again; the handover is good for the call.
    let (old, handover) = unsafe { (Box::from_raw(instance.cast::<Adapter<S>>()), &mut *handover) };
    here::refuel(MUCH_FUEL);
    let left = old.give();
    has_no_lock();
    handover.dropped_len = 0;
    while let Some(token) = left.take_dropped() {
        handover.dropped[handover.dropped_len as usize] = token;
        handover.dropped_len += 1;
    }
    handover.instance = left.instance;
    handover.state = Box::into_raw(Box::new(left.state)).cast();
    handover.topology = Arc::into_raw(left.topology).cast();
    handover.figures = Box::into_raw(Box::new(left.figures)).cast();
    // The last: nothing is allocated here from now on.
    handover.blocks = arena.blocks();
}

/// Makes an instance from what another one gave, in that one's arena.
///
/// # Safety
///
/// `handover` comes from [`give`], of this module or of one whose table has the same layout; `args` were [checked](check). No
/// call is under way.
pub unsafe fn take<S: Scheduler>(args: *mut CreateArgs, handover: *mut HandoverState, arena: &Arena) -> *mut c_void {
    // SAFETY: `args` were checked, `handover` was given by the old instance; no other call has them.
    let (args, handover) = unsafe { (&mut *args, &*handover) };
    here::refuel(MUCH_FUEL);
    HOST.store(args.host.cast_mut(), Relaxed);
    // SAFETY: the giver has stopped using it.
    unsafe { arena.adopt(handover.blocks) };
    begin_anew();
    // SAFETY: all were made by `give`, where the types had the same layout, and the arena is the same.
    let (state, topology, figures) = unsafe {
        (
            *Box::from_raw(handover.state.cast::<S::State>()),
            Arc::from_raw(handover.topology.cast::<Topology>()),
            *Box::from_raw(handover.figures.cast::<Figures>()),
        )
    };
    // SAFETY: the parameters are as long as `args` says.
    let params = unsafe { slice::from_raw_parts(args.params, args.params_len) };
    let env = core::str::from_utf8(params)
        .ok()
        .and_then(|params| Env::new(topology.clone(), args.max_tasks, S::PARAMS, params).ok())
        .expect("the parameters were looked at before");
    let dropped = &handover.dropped[..handover.dropped_len as usize];
    let left = Handover { state, topology, instance: handover.instance, figures };
    let instance = Box::new(Adapter::<S>::take(left, &env, Arc::new(Kernel), dropped));
    has_no_lock();
    Box::into_raw(instance).cast()
}

/// # Safety
///
/// `instance` comes from [`create`] or [`take`], and `room` has space for `len` bytes. This is `cpu`, with interrupts off.
unsafe extern "C" fn save<S: Scheduler>(instance: *mut c_void, cpu: u32, room: *mut u8, len: usize) -> i64 {
    // SAFETY: `instance` comes from `create`, is only shared, and Sync; the room is as long as it says.
    let (adapter, room) = unsafe { (&*instance.cast::<Adapter<S>>(), slice::from_raw_parts_mut(room, len)) };
    here::refuel(MUCH_FUEL);
    let mut saved = Saved::new(room);
    call_log::pause(cpu, || adapter.save(&mut saved));
    has_no_lock();
    saved.written().map_or(-1, |len| len as i64)
}

/// Whether an instance could be made of these arguments.
///
/// # Safety
///
/// The pointers in `args` are good for the call. If they name an arena, no instance of this module runs.
pub unsafe fn check<S: Scheduler>(args: *mut CreateArgs, arena: &Arena) -> bool {
    // SAFETY: a reason is written into arguments that only this check has.
    let args = unsafe { &mut *args };
    if !args.arena.is_null() {
        HOST.store(args.host.cast_mut(), Relaxed);
        // SAFETY: no instance runs in this arena, and nothing made here outlives this call.
        unsafe { arena.reset(args.arena, args.arena_len) };
        begin_anew();
        ekiden_host::forget_dropped(OF_HOST);
    }
    // SAFETY: what `args` names besides the arena is good for the call, also where there is no arena.
    unsafe { env::<S>(args) }.is_some()
}

/// # Safety
///
/// `settings` and its pointer are good for the call, with interrupts off, and one at a time. An instance of this module runs.
unsafe extern "C" fn settings<S: Scheduler>(settings: *mut Settings) -> bool {
    let at = settings;
    // SAFETY: the request is good for the call, and only this call writes to it.
    let settings = unsafe { &mut *settings };
    if CHECK_PANICS.load(Relaxed) >= CHECK_PANICS_MOST {
        settings.refuse("check_task_params has panicked too often, and is not asked any more");
        return false;
    }
    // SAFETY: the text is as long as the request says.
    let text = core::str::from_utf8(unsafe { slice::from_raw_parts(settings.text, settings.text_len) });
    let text = text.map_err(|_| "the parameters are not UTF-8".into());
    CHECKED.store(at, Relaxed);
    CHECKED_FROM.store(here::guard(), Relaxed);
    let parsed = text.and_then(TaskParams::parse::<S>);
    CHECKED_FROM.store(0, Relaxed);
    has_no_lock();
    match parsed {
        Ok(params) => settings.params = params.to_raw::<S>(),
        Err(reason) => {
            settings.refuse(&reason);
            return false;
        }
    }
    true
}

/// # Safety
///
/// The pointers in `args` are good for the call.
unsafe fn env<S: Scheduler>(args: &mut CreateArgs) -> Option<Env> {
    // SAFETY: topology and parameters are as long as `args` says.
    let (words, params) = unsafe {
        (slice::from_raw_parts(args.topology, args.topology_len), slice::from_raw_parts(args.params, args.params_len))
    };
    let topology = match Topology::from_words(words) {
        Ok(topology) => {
            MASK_WORDS.store(topology.nr_cpus().div_ceil(u64::BITS) as usize, Relaxed);
            topology
        }
        Err(error) => {
            args.refuse(&format!("the topology is broken: {error}"));
            return None;
        }
    };
    let Ok(params) = core::str::from_utf8(params) else {
        args.refuse("the parameters are not UTF-8");
        return None;
    };
    match Env::new(topology, args.max_tasks, S::PARAMS, params) {
        Ok(env) => Some(env),
        Err(error) => {
            args.refuse(&format!("{error}"));
            None
        }
    }
}

/// A call that ends has let go of all locks that it took; otherwise its policy is at fault here.
#[inline]
fn has_no_lock() {
    if ekiden_lock::held() != 0 {
        ended_with_lock();
    }
}

/// The policy is at fault where that is certain, and not where others wait for the lock.
#[cold]
#[inline(never)]
fn ended_with_lock() {
    use core::fmt::Write;
    here::refuel(MUCH_FUEL);
    let (mut word, held) = (Word::default(), ekiden_lock::held());
    // SAFETY: a `Word` is plain data and takes any bytes; an address that is of nothing is found out there, and not read here.
    let is_there = unsafe { ekiden_peek(&mut word, held, size_of::<Word>()) };
    // If there are several, this is the address of nothing.
    let is_ours = is_there && ekiden_host::is_of_this_call(word.holder);
    // SAFETY: this call has a lock there.
    let place = if is_ours { unsafe { word.location() } } else { None };
    let mut text = Text::<FAULT_TEXT_LEN>::new();
    // A text that does not fit is cut; writing to it never fails.
    let _ = match place {
        Some(place) => write!(text, "a call ended with a lock that was taken at {}:{}", place.file(), place.line()),
        None => {
            write!(text, "a call ended with a lock; where it was taken is known of one lock, while calls are recorded")
        }
    };
    leave_with(text.as_bytes());
}

/// Says why the policy panicked and leaves the call. No destructor runs and locks stay taken: the instance's arena is
/// thrown away as a whole.
pub fn leave(info: &core::panic::PanicInfo<'_>) -> ! {
    // What formats the text may be the policy's own. Should it take too long, that is the reason: see `ekiden_spent`.
    here::refuel(TEXT_FUEL);
    let text = ekiden_kernel_rt::describe_panic(info);
    // It is about to end, and has to come through.
    here::refuel(i64::MAX);
    leave_with(text.as_bytes());
    loop {
        core::hint::spin_loop();
    }
}

/// Called where fuel or stack are used up, by code that is put into the policy when its module is made
/// (hosts/kernel/fuel/src/lib.rs). It does not return, as `fault`.
///
/// # Safety
///
/// `text` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_spent(text: *const c_char) {
    // It is about to end, and has to come through.
    here::refuel(i64::MAX);
    // SAFETY: it is a C string, which the module contains.
    leave_with(unsafe { CStr::from_ptr(text) }.to_bytes());
}

/// Does not return. Needs little stack: there may be none left but what is kept for this.
fn leave_with(text: &[u8]) {
    let host = HOST.load(Relaxed);
    // The check of a task's parameters changes nothing that calls look at but by way of locks. If it has none, its end is not
    // that of the policy.
    if CHECKED_FROM.load(Relaxed) == here::guard() && ekiden_lock::held() == 0 {
        CHECKED_FROM.store(0, Relaxed);
        CHECK_PANICS.fetch_add(1, Relaxed);
        // SAFETY: this is the call that looks at them; it is left here and looks no more.
        unsafe { (*CHECKED.load(Relaxed)).refuse_bytes(text) };
        // SAFETY: this is the check that `leave` is for; it has no lock, and nothing on this stack is needed any more.
        unsafe { ((*host).leave)(host) }
    }
    // A call that sees that the locks are poisoned ends as a consequence, and says nothing.
    // SAFETY: the text is copied, as far as there is room. The table outlives every instance.
    ekiden_host::poison_locks(OF_HOST, || unsafe { ((*host).reason)(host, text.as_ptr(), text.len()) });
    call_log::mark_here(Mark::Fault);
    // SAFETY: the table outlives every instance; `fault` leaves this call for the guard that entered it.
    unsafe { ((*host).fault)(host) }
}

/// The framework's way of waiting, by `ekiden.ko`.
fn wait_as_the_host_does() {
    ekiden_host::wait_so(Waits {
        begin: || Since(Wait::begin().0),
        look: |since| {
            let mut wait = Wait(since.0);
            let patience = match wait.look() {
                GO_ON => Patience::GoOn,
                TOO_LONG => Patience::TooLong,
                _ => Patience::Over,
            };
            since.0 = wait.0;
            patience
        },
        end: |since| Wait(since.0).end(),
    });
}
