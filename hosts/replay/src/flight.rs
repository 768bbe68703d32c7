//! Calls that are under way: each CPU is a coroutine. One that wants a lock continues when it is its turn to take it, in the recorded order.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;
use std::{mem, ptr};

use corosensei::{Coroutine, CoroutineResult, Yielder};
use ekiden::Calls;
use ekiden::{CpuMask, SpinLock};
use ekiden_contain::{considered, contained, inside};
use ekiden_host::Policy;
use ekiden_host::abi::{Message, Noted, Reply};
use ekiden_host::observe::{Answer, Point, observe_locks};
use ekiden_recording::{Hear, call_log_of_thread, notes_of_thread};

use crate::text;

/// The order in which calls take locks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// As they did, from the beginning of the instance on.
    Exact,
    /// As they did. How often each lock had been taken before is known from the first call that takes it.
    Strict,
    /// Like `Strict`, but a lock is believed to have been taken in another order when that seems so.
    Loose,
}

/// How many turns of a lock a call waits for at most in a loose order; there may be none.
const TURNS_MAX: u32 = 64;

/// What a CPU is to do.
pub(crate) struct Job {
    pub(crate) policy: Rc<Box<dyn Policy>>,
    pub(crate) message: Message,
    /// Which call of the recording it is, and when it began; absent if it is none.
    pub(crate) call: Option<(u64, u64)>,
    /// What the call learnt, the payload of hints first.
    pub(crate) notes: Vec<u64>,
    /// What the policy noted in it for people.
    pub(crate) noted: Vec<Noted>,
    /// Whether locks are taken in their recorded order. If not, the call continues with what it finds.
    pub(crate) is_ordered: bool,
}

impl Job {
    /// A call that is not in the recording.
    pub(crate) fn told(policy: Rc<Box<dyn Policy>>, message: Message) -> Self {
        Self { policy, message, call: None, notes: Vec::new(), noted: Vec::new(), is_ordered: false }
    }
}

/// How a call ended.
pub(crate) struct Done {
    pub(crate) job: Job,
    /// The reply, or the panic.
    pub(crate) reply: Result<Reply, String>,
    /// How many notes it took; more than there were if it asked for more.
    pub(crate) taken: usize,
    /// What the policy noted this time.
    pub(crate) noted: Vec<Noted>,
    /// The CPUs that it looked at, if that is wanted.
    pub(crate) considered: CpuMask,
}

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) lock: usize,
    /// How often the lock will have been taken when it is the call's turn, and how often it has been.
    pub(crate) turn: u32,
    pub(crate) taken: u32,
    /// Where in the policy, if it was not only tried.
    pub(crate) place: Option<&'static Location<'static>>,
}

/// A lock that a call holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) lock: usize,
    pub(crate) cpu: u32,
    pub(crate) place: Option<&'static Location<'static>>,
}

#[allow(clippy::large_enum_variant, reason = "most calls do not wait, and a box would be an allocation for each")]
enum Pause {
    Waits(Wait),
    Done(Done),
}

type Inlet<'a> = Yielder<Option<Job>, Pause>;

/// The call that runs at this moment.
struct Running<'a> {
    yielder: &'a Inlet<'a>,
    cpu: u32,
    call: Option<(u64, u64)>,
    notes: &'a [u64],
    next: Cell<usize>,
    is_ordered: bool,
    wanted_at: Cell<Option<&'static Location<'static>>>,
    noted: RefCell<Vec<Noted>>,
}

thread_local! {
    /// The call that runs at this moment; null outside.
    static CURRENT: Cell<*const Running<'static>> = const { Cell::new(ptr::null()) };
    /// The locks that calls hold, and whether one was released since the last look.
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
    static RELEASED: Cell<bool> = const { Cell::new(false) };
    /// Calls that wait go on, whosever turn it is.
    static LETS_GO: Cell<bool> = const { Cell::new(false) };
    static ORDER: Cell<Order> = const { Cell::new(Order::Exact) };
    /// How often locks had been taken when the instance began; nothing of those that had not.
    static TAKEN_BEFORE: RefCell<HashMap<usize, u32>> = RefCell::default();
    static SEEN: Cell<bool> = const { Cell::new(false) };
}

/// Asks the call that runs at this moment, if one does.
#[inline]
fn current<T>(ask: impl FnOnce(&Running<'_>) -> T) -> Option<T> {
    let current = CURRENT.get();
    if current.is_null() {
        return None;
    }
    // SAFETY: `run` alone sets the pointer, to what lives on the stack of the coroutine that runs, and clears it before it
    // ends; `suspend` clears it whenever that coroutine stops, and sets it when it continues. So what it points to is there.
    Some(ask(unsafe { &*current }))
}

/// Which call of the recording runs at this moment, and when it began.
pub(crate) fn under_way() -> Option<(u64, u64)> {
    current(|running| running.call).flatten()
}

fn learn(value: u64) -> u64 {
    current(|running| {
        let next = running.next.get();
        running.next.set(next + 1);
        running.notes.get(next).copied().unwrap_or(value)
    })
    .unwrap_or(value)
}

fn hear(message: &Message, noted: Noted) {
    current(|running| running.noted.borrow_mut().push(noted));
    text::show(message, format_args!("{noted}"));
}

fn reach(point: Point) -> Answer {
    SEEN.set(true);
    current(|running| running.reach(point)).unwrap_or(Answer::GoOn)
}

impl Running<'_> {
    #[inline]
    fn reach(&self, point: Point) -> Answer {
        match point {
            Point::Wants(lock, place, taken) => {
                self.wanted_at.set(Some(place));
                self.ask(lock, taken, Some(place))
            }
            Point::Tries(lock, taken) => {
                self.wanted_at.set(None);
                match self.notes.get(self.next.get()) {
                    Some(0) => Answer::Fail,
                    _ => self.ask(lock, taken, None),
                }
            }
            Point::Took(lock) => {
                if !self.is_ordered {
                    // In the recording no call has taken it here.
                    TAKEN_BEFORE.with_borrow_mut(|all| {
                        if let Some(before) = all.get_mut(&lock) {
                            *before = before.wrapping_sub(1);
                        }
                    });
                }
                let held = Held { lock, cpu: self.cpu, place: self.wanted_at.get() };
                HELD.with_borrow_mut(|all| all.push(held));
                Answer::GoOn
            }
            Point::Released(lock) => {
                HELD.with_borrow_mut(|all| all.retain(|held| held.lock != lock));
                RELEASED.set(true);
                Answer::GoOn
            }
            Point::Waits(lock) => {
                self.suspend(Wait { lock, turn: 0, taken: 0, place: self.wanted_at.get() });
                Answer::GoOn
            }
        }
    }

    /// Whether it is this call's turn to take the lock.
    #[inline]
    fn ask(&self, lock: usize, taken: u32, place: Option<&'static Location<'static>>) -> Answer {
        let turn = self.notes.get(self.next.get()).map(|turn| *turn as u32);
        let is_free = HELD.with_borrow(|all| all.iter().all(|held| held.lock != lock));
        let is_its_turn = !self.is_ordered || is_turn(lock, taken, turn);
        // A call that only tries a lock that is taken continues without it.
        if is_its_turn && (is_free || place.is_none() && !self.is_ordered) {
            return Answer::GoOn;
        }
        self.suspend(Wait { lock, turn: turn.unwrap_or(0), taken, place });
        Answer::AskAgain
    }

    fn suspend(&self, wait: Wait) {
        // A coroutine that unwinds is not switched away from: the count of panics belongs to the thread.
        if std::thread::panicking() {
            return;
        }
        let this = CURRENT.replace(ptr::null());
        self.yielder.suspend(Pause::Waits(wait));
        CURRENT.set(this);
    }
}

/// Whether the one whose turn is number `turn` is to have a lock that was taken so often since the instance began.
#[inline]
fn is_turn(lock: usize, taken: u32, turn: Option<u32>) -> bool {
    if ORDER.get() == Order::Exact {
        return turn == Some(taken.wrapping_add(1)) || LETS_GO.get();
    }
    let before = TAKEN_BEFORE.with_borrow(|all| all.get(&lock).copied());
    let next = before.unwrap_or(0).wrapping_add(taken).wrapping_add(1);
    if before.is_some() && turn == Some(next) {
        return true;
    }
    if before.is_some() && ORDER.get() == Order::Strict {
        return LETS_GO.get();
    }
    let Some(turn) = turn else { return true };
    let turns = turn.wrapping_sub(next);
    let has_to_wait = before.is_some() && (1..=TURNS_MAX).contains(&turns) && !LETS_GO.get();
    if !has_to_wait {
        TAKEN_BEFORE.with_borrow_mut(|all| all.insert(lock, before.unwrap_or(0).wrapping_add(turns)));
    }
    !has_to_wait
}

/// Runs one call, inside of its coroutine.
fn run(yielder: &Inlet<'_>, cpu: u32, job: Job) -> Done {
    let (payload, begin) = payload(&job.message, &job.notes);
    let running = Running {
        yielder,
        cpu,
        call: job.call,
        notes: &job.notes,
        next: Cell::new(begin),
        is_ordered: job.is_ordered,
        wanted_at: Cell::new(None),
        noted: RefCell::default(),
    };
    CURRENT.set(ptr::from_ref(&running).cast());
    let reply = contained(|| job.policy.deliver(&job.message, &payload));
    CURRENT.set(ptr::null());
    let (taken, noted) = (running.next.get(), running.noted.take());
    Done { reply, taken, noted, job, considered: CpuMask::new() }
}

/// The payload of a call of hints, and where what it learnt begins.
pub(crate) fn payload(message: &Message, notes: &[u64]) -> (Vec<u8>, usize) {
    let has_one = Calls::WITH_PAYLOAD.has_number(message.call);
    let Some((len, words)) = notes.split_first().filter(|_| has_one) else { return (Vec::new(), 0) };
    let len = usize::try_from(*len).unwrap_or(usize::MAX).min(words.len() * 8);
    let words = &words[..len.div_ceil(8)];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(len);
    (bytes, 1 + words.len())
}

/// A CPU.
struct Cpu {
    coroutine: Coroutine<Option<Job>, Pause, ()>,
    waits: Option<(Wait, Message)>,
    /// What the call that is under way has looked at.
    considered: CpuMask,
}

impl Cpu {
    fn new(cpu: u32) -> Self {
        let coroutine = Coroutine::new(move |yielder: &Inlet<'_>, first| {
            let mut job: Option<Job> = first;
            while let Some(next) = job {
                let done = run(yielder, cpu, next);
                job = yielder.suspend(Pause::Done(done));
            }
        });
        Self { coroutine, waits: None, considered: CpuMask::new() }
    }
}

/// All CPUs, with the calls that are under way.
pub(crate) struct Flight {
    cpus: Vec<Option<Cpu>>,
    nr_waiting: usize,
    notes_considered: bool,
    before: Option<fn(u64) -> u64>,
    heard_before: Option<Hear>,
}

impl Flight {
    /// No call is under way. Nothing if another observer of locks is in this program already.
    pub(crate) fn new(notes_considered: bool) -> Option<Self> {
        observe_locks(reach);
        SEEN.set(false);
        drop(SpinLock::new(()).lock());
        LETS_GO.set(false);
        let mut flight = SEEN.get().then(|| Self {
            cpus: Vec::new(),
            nr_waiting: 0,
            notes_considered,
            before: call_log_of_thread(Some(learn)),
            heard_before: notes_of_thread(Some(hear)),
        })?;
        flight.start_over();
        Some(flight)
    }

    /// No call is under way, and no lock has been taken: a new instance begins.
    pub(crate) fn start_over(&mut self) {
        (0..self.cpus.len() as u32).for_each(|cpu| self.give_up(cpu));
        HELD.with_borrow_mut(Vec::clear);
        TAKEN_BEFORE.with_borrow_mut(HashMap::clear);
        ORDER.set(Order::Exact);
    }

    /// Sets the order in which calls take locks from here on.
    pub(crate) fn order(&mut self, order: Order) {
        ORDER.set(order);
    }

    /// Begins a call on `cpu`, which must have none under way.
    #[inline]
    pub(crate) fn begin(&mut self, cpu: u32, job: Job) -> Option<Done> {
        let index = cpu as usize;
        if self.cpus.len() <= index {
            self.cpus.resize_with(index + 1, || None);
        }
        self.cpus[index].get_or_insert_with(|| Cpu::new(cpu));
        let message = job.message;
        self.resume(cpu, Some(job), message)
    }

    /// A call that can continue, because a lock was released, and its result.
    #[inline]
    pub(crate) fn go_on(&mut self) -> Option<(u32, Done)> {
        while self.nr_waiting > 0 && RELEASED.replace(false) {
            for cpu in 0..self.cpus.len() as u32 {
                if let Some((_, message)) = self.waiting(cpu) {
                    if let Some(done) = self.resume(cpu, None, message) {
                        // Others may be able to go on too.
                        RELEASED.set(true);
                        return Some((cpu, done));
                    }
                }
            }
        }
        None
    }

    /// Lets `cpu` go on although it is not its turn.
    pub(crate) fn force(&mut self, cpu: u32) -> Option<Done> {
        let (_, message) = self.waiting(cpu)?;
        LETS_GO.set(true);
        let done = self.resume(cpu, None, message);
        LETS_GO.set(false);
        if done.is_none() {
            // It waits for what another one holds that does not go on either: it never ends.
            self.give_up(cpu);
        }
        done
    }

    /// The call that waits on `cpu`, if one does, never ends.
    pub(crate) fn give_up(&mut self, cpu: u32) {
        if self.waiting(cpu).is_none() {
            return;
        }
        inside(|| self.cpus[cpu as usize] = None);
        self.nr_waiting -= 1;
        HELD.with_borrow_mut(|all| all.retain(|held| held.cpu != cpu));
        RELEASED.set(true);
    }

    /// Whether any call waits.
    #[inline]
    pub(crate) fn any_waiting(&self) -> bool {
        self.nr_waiting > 0
    }

    /// What the call on `cpu` waits for, if one is under way.
    pub(crate) fn waiting(&self, cpu: u32) -> Option<(Wait, Message)> {
        self.cpus.get(cpu as usize)?.as_ref()?.waits
    }

    /// All that wait.
    pub(crate) fn all_waiting(&self) -> impl Iterator<Item = (u32, Wait, Message)> {
        (0..self.cpus.len() as u32).filter_map(|cpu| self.waiting(cpu).map(|(wait, message)| (cpu, wait, message)))
    }

    /// The locks that are held.
    pub(crate) fn held(&self) -> Vec<Held> {
        HELD.with_borrow(Vec::clone)
    }

    #[inline]
    fn resume(&mut self, index: u32, job: Option<Job>, message: Message) -> Option<Done> {
        let cpu = self.cpus[index as usize].as_mut()?;
        self.nr_waiting -= usize::from(cpu.waits.take().is_some());
        let resume = || inside(|| cpu.coroutine.resume(job));
        let result = if self.notes_considered {
            let (result, seen) = considered(resume);
            seen.iter().for_each(|cpu_seen| cpu.considered.set(cpu_seen));
            result
        } else {
            resume()
        };
        match result {
            CoroutineResult::Yield(Pause::Done(done)) => {
                Some(Done { considered: mem::take(&mut cpu.considered), ..done })
            }
            CoroutineResult::Yield(Pause::Waits(wait)) => {
                cpu.waits = Some((wait, message));
                self.nr_waiting += 1;
                None
            }
            CoroutineResult::Return(()) => None,
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        inside(|| self.cpus.clear());
        call_log_of_thread(self.before.take());
        notes_of_thread(self.heard_before.take());
    }
}
