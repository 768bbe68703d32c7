//! An activation: a kernel thread that runs user-level threads while it has a CPU.

use std::{
    cell::RefCell,
    hint::spin_loop,
    rc::Rc,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicBool, AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release, SeqCst},
        },
    },
    time::{Duration, Instant},
};

use crossbeam_deque::{Steal, Stealer, Worker};
use rustix::thread::gettid;

use crate::{
    Shared,
    sockets::Sockets,
    thread::{Left, Step, Thread},
};

/// How long an activation looks for something to do before it sleeps, and its CPU is lent to others: about what it costs to come back from
/// a deep idle state.
const PATIENCE: Duration = Duration::from_micros(100);

/// Steps after which an activation looks at what all share, however many threads are its own.
const STEPS_OF_ITS_OWN: u64 = 32;

/// An arbiter in the kernel sees a thread that was enrolled when it next wakes up.
const SOON: Duration = Duration::from_millis(1);

/// How often an activation wakes up that the arbiter may not have seen: a hint may be heard later than that, while another one is.
const SHOWS_ITSELF: Duration = Duration::from_millis(100);

/// What others see of an activation.
pub(crate) struct Activation {
    pub(crate) queue: Stealer<Thread>,
    pub(crate) kernel_thread: OnceLock<std::thread::Thread>,
    pub(crate) tid: AtomicU32,
    /// It has a CPU that was not asked back.
    pub(crate) may_run: AtomicBool,
    /// It has had one.
    is_known: AtomicBool,
    idle_ns: AtomicU64,
    /// Since when it has had nothing to do, or 0.
    idle_since_ns: AtomicU64,
}

impl Activation {
    pub(crate) fn new(queue: Stealer<Thread>) -> Self {
        Self {
            queue,
            kernel_thread: OnceLock::new(),
            tid: AtomicU32::new(0),
            may_run: AtomicBool::new(false),
            is_known: AtomicBool::new(false),
            idle_ns: AtomicU64::new(0),
            idle_since_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.idle_since_ns.load(Relaxed) != 0
    }

    /// How long it had nothing to do, until now.
    pub(crate) fn idle_ns(&self, now_ns: u64) -> u64 {
        let since_ns = self.idle_since_ns.load(Relaxed);
        let now = if since_ns == 0 { 0 } else { now_ns.saturating_sub(since_ns) };
        self.idle_ns.load(Relaxed) + now
    }

    fn note_idle(&self, is_idle: bool, now_ns: impl FnOnce() -> u64) {
        if is_idle == self.is_idle() {
            return;
        }
        let now_ns = now_ns().max(1);
        if is_idle {
            self.idle_since_ns.store(now_ns, Relaxed);
        } else {
            let since_ns = self.idle_since_ns.swap(0, Relaxed);
            self.idle_ns.fetch_add(now_ns.saturating_sub(since_ns), Relaxed);
        }
    }
}

/// What an activation has for itself.
struct Own {
    shared: Arc<Shared>,
    queue: Worker<Thread>,
}

thread_local! {
    static OWN: RefCell<Option<Rc<Own>>> = const { RefCell::new(None) };
}

/// That of the kernel thread that the caller is on now. Not inlined, as a user-level thread that leaves comes back on another one.
#[inline(never)]
fn with_own<T>(what: impl FnOnce(&Own) -> T) -> Option<T> {
    let own = OWN.with_borrow(Clone::clone)?;
    Some(what(&own))
}

/// What all activations of the caller's runtime share.
pub(crate) fn shared() -> Option<Arc<Shared>> {
    with_own(|own| own.shared.clone())
}

pub(crate) fn sockets() -> Arc<Sockets> {
    shared().expect("sockets of this crate are for user-level threads").sockets.clone()
}

/// A thread can run: here, or on another activation that has nothing to do. Where there is no activation any more, it is dropped.
pub(crate) fn ready(thread: Thread) {
    with_own(|own| {
        own.queue.push(thread);
        own.shared.sleepers.wake_one(&own.shared.sockets);
    });
}

/// What the kernel thread of activation `me` does.
pub(crate) fn run(shared: &Arc<Shared>, me: usize, queue: Worker<Thread>) {
    let own = Rc::new(Own { shared: shared.clone(), queue });
    OWN.set(Some(own.clone()));
    let activation = &shared.activations[me];
    let enrolled = activation.kernel_thread.set(std::thread::current());
    assert!(enrolled.is_ok(), "activation {me} runs once");
    let tid = gettid().as_raw_nonzero().get() as u32;
    activation.tid.store(tid, SeqCst);
    shared.tell(|arbiter| arbiter.enroll(tid));
    std::thread::sleep(SOON);
    let mut steps = 0_u64;
    while !shared.is_ending() {
        if !activation.may_run.load(Acquire) {
            activation.note_idle(false, || shared.now_ns());
            own.hand_over();
            own.wait_for_cpu(activation);
            continue;
        }
        steps += 1;
        // A policy waits some milliseconds for a CPU that it asks for.
        shared.listen();
        match own.next(me, steps % STEPS_OF_ITS_OWN == 0) {
            Some(thread) => {
                activation.note_idle(false, || shared.now_ns());
                own.step(thread);
            }
            None => {
                activation.note_idle(true, || shared.now_ns());
                own.idle(me, activation);
            }
        }
    }
    own.hand_over();
    OWN.set(None);
}

impl Own {
    fn step(&self, thread: Thread) {
        match thread.step() {
            Step::Ended => {}
            Step::Left(thread, Left::Yields) => self.queue.push(thread),
            Step::Left(thread, Left::Waits(place)) => {
                if let Some(thread) = place.keep(thread) {
                    self.queue.push(thread);
                }
            }
        }
        self.shared.steps.fetch_add(1, Relaxed);
    }

    /// The next thread to run: its own first, then what all share, then another's.
    fn next(&self, me: usize, others_first: bool) -> Option<Thread> {
        if others_first {
            self.look();
            self.shared.injector.steal().success().into_iter().for_each(|thread| self.queue.push(thread));
        }
        if let Some(thread) = self.queue.pop() {
            return Some(thread);
        }
        if let Some(thread) = insist(|| self.shared.injector.steal_batch_and_pop(&self.queue)) {
            return Some(thread);
        }
        self.look();
        self.queue.pop().or_else(|| self.steal(me))
    }

    /// Takes half of what another activation has.
    fn steal(&self, me: usize) -> Option<Thread> {
        let all = &self.shared.activations;
        let others = (1..all.len()).map(|after| &all[(me + after) % all.len()]);
        let found = others.into_iter().find_map(|it| insist(|| it.queue.steal_batch_and_pop(&self.queue)));
        self.shared.stolen.fetch_add(found.is_some().into(), Relaxed);
        found
    }

    /// Takes the threads whose sockets have something.
    fn look(&self) {
        self.take(self.shared.sockets.poll(Duration::ZERO));
    }

    fn take(&self, ready: Vec<Thread>) {
        for (at, thread) in ready.into_iter().enumerate() {
            self.queue.push(thread);
            if at > 0 {
                self.shared.sleepers.wake_one(&self.shared.sockets);
            }
        }
    }

    /// Has nothing to do: looks for it for a while, then sleeps.
    fn idle(&self, me: usize, activation: &Activation) {
        let shared = &*self.shared;
        let begin = Instant::now();
        let is_needed = || shared.is_ending() || !activation.may_run.load(Acquire) || shared.has_threads();
        while begin.elapsed() < PATIENCE {
            shared.listen();
            self.look();
            if is_needed() {
                return;
            }
            // An emulated CPU that waits lets another one have its turn by this.
            (0..16).for_each(|_| spin_loop());
        }
        let ready = shared.sleepers.sleep(me, &shared.sockets, is_needed);
        self.take(ready);
    }

    /// Gives all threads away that wait for this activation.
    fn hand_over(&self) {
        let mut count = 0;
        while let Some(thread) = self.queue.pop() {
            self.shared.injector.push(thread);
            count += 1;
        }
        self.shared.handed_over.fetch_add(count, Relaxed);
        if self.shared.has_threads() {
            self.shared.sleepers.wake_one(&self.shared.sockets);
        }
    }

    /// Sleeps while it has no CPU. The arbiter has the CPU back by that. An activation that never had a CPU may have been enrolled after it last woke up, and
    /// an arbiter in the kernel sees a thread only when it does.
    fn wait_for_cpu(&self, activation: &Activation) {
        while !activation.may_run.load(Acquire) && !self.shared.is_ending() {
            if activation.is_known.load(Relaxed) {
                std::thread::park();
            } else {
                std::thread::park_timeout(SHOWS_ITSELF);
            }
        }
    }
}

/// Steals until it is clear whether there is something.
fn insist(steal: impl Fn() -> Steal<Thread>) -> Option<Thread> {
    loop {
        match steal() {
            Steal::Success(thread) => return Some(thread),
            Steal::Empty => return None,
            Steal::Retry => spin_loop(),
        }
    }
}

/// What happens to an activation's CPU.
impl Shared {
    pub(crate) fn set_may_run(&self, which: usize, may_run: bool) {
        let activation = &self.activations[which];
        activation.may_run.store(may_run, Release);
        if may_run {
            activation.is_known.store(true, Relaxed);
            if let Some(thread) = activation.kernel_thread.get() {
                thread.unpark();
            }
        } else {
            self.sleepers.wake(which, &self.sockets);
        }
    }
}
