//! User-level threads over activations: kernel threads that have a CPU each while the policy `arbiter` gives them one.
//!
//! Two levels, as in Arachne (OSDI 2018; papers/000, section 4.2.4). The policy shares CPUs out to applications; the application asks for as
//! many as it needs, and runs its own threads there, each a coroutine with a stack of 256 KiB, of which only pages that it touches take memory.
//! An activation that is asked for its CPU back ends the step of its thread, gives its run queue to the others and sleeps until it has a
//! CPU again. Without an arbiter the same activations are threads like any other.
//!
//! ```
//! use ekiden_two_level::{Config, Runtime, yield_now};
//!
//! let runtime = Runtime::alone(Config { min: 1, max: 2 })?;
//! // SAFETY: a number is all that is on the thread's stack when it yields.
//! let thread = unsafe { runtime.spawn(|| { yield_now(); 42 }) }?;
//! assert_eq!(thread.join().unwrap(), 42);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! A step ends where a thread yields, joins another or waits for a socket. Until then nothing takes it off its activation, so a thread that
//! computes for long, or sleeps in the kernel, holds up all that the activation could do, and its CPU is given back late.

mod activation;
mod arbiter;
mod control;
mod estimate;
mod join;
mod sleep;
mod sockets;
mod thread;

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicU32, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Instant,
};

use crossbeam_deque::{Injector, Worker};
use rustix::{
    event::{EventfdFlags, eventfd},
    fd::OwnedFd,
};

pub use arbiter::{Arbiter, Gone, Kernel};
pub use ekiden_policies::{Assignment, Becomes};
pub use join::JoinHandle;
pub use sockets::{Listener, Stream};

use activation::Activation;
use arbiter::Nothing;
use estimate::Estimator;
use sleep::Sleepers;
use sockets::Sockets;
use thread::{Left, Thread};

/// How many CPUs an application asks for.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How many at least, however little there is to do.
    pub min: usize,
    /// Never more: there are as many activations.
    pub max: usize,
}

/// What a runtime has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// There is an arbiter.
    pub is_arbitrated: bool,
    /// Activations that may run now.
    pub given: u32,
    /// How many CPUs it has asked for last.
    pub wanted: u32,
    /// Most that it was given at a time.
    pub most: u32,
    /// How often an activation was asked for its CPU.
    pub asked_back: u64,
    /// Threads that activations without a CPU gave to others.
    pub handed_over: u64,
    /// How often an activation took threads of another one.
    pub stolen: u64,
    /// Steps of threads.
    pub steps: u64,
}

/// What activations share.
struct Shared {
    activations: Vec<Activation>,
    /// Threads that are no activation's.
    injector: Injector<Thread>,
    sockets: Arc<Sockets>,
    sleepers: Sleepers,
    arbiter: Mutex<Box<dyn Arbiter>>,
    is_arbitrated: AtomicBool,
    is_ending: AtomicBool,
    wanted: AtomicU32,
    most: AtomicU32,
    asked_back: AtomicU64,
    handed_over: AtomicU64,
    stolen: AtomicU64,
    steps: AtomicU64,
    begin: Instant,
}

impl Shared {
    fn is_ending(&self) -> bool {
        self.is_ending.load(SeqCst)
    }

    fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    /// Threads that wait in run queues.
    fn threads(&self) -> usize {
        self.injector.len() + self.activations.iter().map(|it| it.queue.len()).sum::<usize>()
    }

    fn has_threads(&self) -> bool {
        !self.injector.is_empty() || self.activations.iter().any(|it| !it.queue.is_empty())
    }

    fn given(&self) -> usize {
        self.activations.iter().filter(|it| it.may_run.load(Relaxed)).count()
    }
}

/// Nothing that these locks guard is left half done by a panic.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Activations, and the user-level threads on them. When it is dropped, threads that have not ended are unwound where they left.
pub struct Runtime {
    shared: Arc<Shared>,
    kernel_threads: Vec<std::thread::JoinHandle<()>>,
    ends: OwnedFd,
}

impl Runtime {
    /// Starts activations that have CPUs of an arbiter.
    ///
    /// # Errors
    /// If the kernel refuses threads or descriptors.
    pub fn new(config: Config, arbiter: impl Arbiter + 'static) -> io::Result<Self> {
        Self::start(config, Box::new(arbiter), true)
    }

    /// Starts activations without an arbiter, for an application that has the machine to itself.
    ///
    /// # Errors
    /// If the kernel refuses threads or descriptors.
    pub fn alone(config: Config) -> io::Result<Self> {
        Self::start(config, Box::new(Nothing::new()?), false)
    }

    /// Starts activations under the policy of this name, or without it if it cannot be had: then it says why, on the standard error.
    ///
    /// # Errors
    /// If the kernel refuses threads or descriptors.
    pub fn under(policy: &str, priority: u32, config: Config) -> io::Result<Self> {
        match Kernel::open(policy, priority) {
            Ok(arbiter) => Self::new(config, arbiter),
            Err(error) => {
                eprintln!("no CPUs are asked for, activations run as any other threads: {error}");
                Self::alone(config)
            }
        }
    }

    fn start(config: Config, arbiter: Box<dyn Arbiter>, is_arbitrated: bool) -> io::Result<Self> {
        let Config { min, max } = config;
        assert!(0 < min && min <= max, "{config:?}");
        let queues: Vec<Worker<Thread>> = (0..max).map(|_| Worker::new_fifo()).collect();
        let shared = Arc::new(Shared {
            activations: queues.iter().map(|queue| Activation::new(queue.stealer())).collect(),
            injector: Injector::new(),
            sockets: Arc::new(Sockets::new()?),
            sleepers: Sleepers::default(),
            arbiter: Mutex::new(arbiter),
            is_arbitrated: AtomicBool::new(is_arbitrated),
            is_ending: AtomicBool::new(false),
            wanted: AtomicU32::new(min as u32),
            most: AtomicU32::new(0),
            asked_back: AtomicU64::new(0),
            handed_over: AtomicU64::new(0),
            stolen: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            begin: Instant::now(),
        });
        let ends = eventfd(0, EventfdFlags::CLOEXEC)?;
        let watched = control::watch(&shared, &ends)?;
        let mut runtime = Self { shared: shared.clone(), kernel_threads: Vec::new(), ends };
        shared.tell(|arbiter| arbiter.want(min as u32));
        for (me, queue) in queues.into_iter().enumerate() {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("activation-{me}"));
            runtime.kernel_threads.push(thread.spawn(move || activation::run(&shared, me, queue))?);
        }
        let thread = std::thread::Builder::new().name("two-level".into());
        let control = move || control::run(&shared, &watched, Estimator::new(min, max));
        runtime.kernel_threads.push(thread.spawn(control)?);
        Ok(runtime)
    }

    /// Starts a user-level thread.
    ///
    /// # Safety
    /// A thread that yields, joins or waits for a socket may continue on another kernel thread. Whatever is on its stack then is
    /// `Send`, and has nothing of a thread-local variable: no `Rc`, no guard of a lock. It does none of the three while it unwinds.
    ///
    /// # Errors
    /// If there is no memory for its stack.
    pub unsafe fn spawn<T: Send + 'static>(
        &self,
        does: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        // SAFETY: the caller promises the same of what `does` has on its stack; that of `noted` is `Send`.
        let (thread, handle) = unsafe { new_thread(does) }?;
        self.shared.injector.push(thread);
        self.shared.sleepers.wake_one(&self.shared.sockets);
        Ok(handle)
    }

    /// The counts up to now.
    pub fn status(&self) -> Status {
        status_of(&self.shared)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.is_ending.store(true, SeqCst);
        // It cannot fail before 2^64 of them.
        let _ = rustix::io::write(&self.ends, &1_u64.to_ne_bytes());
        (0..shared.activations.len()).for_each(|which| shared.sleepers.wake(which, &shared.sockets));
        self.kernel_threads.iter().for_each(|thread| thread.thread().unpark());
        for thread in self.kernel_threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
        drop(shared.sockets.abandon());
        while shared.injector.steal().success().is_some() {}
    }
}

/// # Safety
/// As [`Runtime::spawn`].
unsafe fn new_thread<T: Send + 'static>(
    does: impl FnOnce() -> T + Send + 'static,
) -> io::Result<(Thread, JoinHandle<T>)> {
    let (does, handle) = join::noted(does);
    // SAFETY: the caller promises it of `does`, and around that there is only what has to be `Send`.
    Ok((unsafe { Thread::new(does) }?, handle))
}

fn status_of(shared: &Shared) -> Status {
    Status {
        is_arbitrated: shared.is_arbitrated.load(Relaxed),
        given: shared.given() as u32,
        wanted: shared.wanted.load(Relaxed),
        most: shared.most.load(Relaxed),
        asked_back: shared.asked_back.load(Relaxed),
        handed_over: shared.handed_over.load(Relaxed),
        stolen: shared.stolen.load(Relaxed),
        steps: shared.steps.load(Relaxed),
    }
}

/// What the runtime of the calling user-level thread has counted; `None` elsewhere.
pub fn status() -> Option<Status> {
    activation::shared().map(|shared| status_of(&shared))
}

/// Starts a user-level thread from another one, in the same runtime.
///
/// # Safety
/// As [`Runtime::spawn`].
///
/// # Errors
/// If there is no memory for its stack, or the caller is no user-level thread.
pub unsafe fn spawn<T: Send + 'static>(does: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    if !thread::is_user_level() {
        return Err(io::Error::other("only a user-level thread starts another one so; others call Runtime::spawn"));
    }
    // SAFETY: the caller promises the same of what `does` has on its stack.
    let (thread, handle) = unsafe { new_thread(does) }?;
    activation::ready(thread);
    Ok(handle)
}

/// Lets other user-level threads run that wait for this activation. In any other thread, those of the kernel.
pub fn yield_now() {
    if thread::is_user_level() {
        thread::leave(Left::Yields);
    } else {
        std::thread::yield_now();
    }
}
