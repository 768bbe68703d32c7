//! What a policy gets of what it asks for, and that an event ends.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use ekiden::{Call, Calls, CpuId, CpuMask, TaskId};
use ekiden_engine::{Engine, EngineHost, IdleCpus, PICK_ATTEMPTS, POLICY_SLOTS, TIMER_NS_MIN, WINDOWS_OVER_MOST};
use ekiden_host::abi::{Event, EventKind, Kicks, Message, Outcome, RawToken, Reply, Status, enqueue_flags};
use ekiden_host::{Host, Policy};

const CPUS: u32 = 2;
const MS: u64 = 1_000_000;

#[derive(Default)]
struct Clock {
    now_ns: AtomicU64,
    refill_ns: AtomicU64,
    is_spent: AtomicBool,
}

impl Host for Clock {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Relaxed)
    }

    fn may_run(&self, _: TaskId, _: CpuId) -> bool {
        true
    }

    fn allowed_cpus(&self, _: TaskId, cpus: &mut CpuMask) {
        *cpus = CpuMask::first_n(CPUS);
    }

    fn idle_cpus(&self, _: &mut CpuMask) {}
}

impl EngineHost for Clock {
    fn refill_at(&self, at_ns: u64) {
        self.refill_ns.store(at_ns, Relaxed);
    }

    fn is_spent(&self) -> bool {
        self.is_spent.load(Relaxed)
    }
}

/// Stands for another serial each time.
const ANOTHER: u32 = u32::MAX;

/// Always says the same, and counts how often it is asked for a task.
struct Parrot {
    reply: Reply,
    asked: Arc<AtomicU32>,
}

impl Policy for Parrot {
    fn calls(&self) -> Calls {
        Calls::ALL
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn deliver(&self, message: &Message, _: &[u8]) -> Reply {
        let asked = self.asked.fetch_add(u32::from(message.call == Call::PickNextTask as u32), Relaxed);
        let mut reply = self.reply;
        if reply.token.serial == ANOTHER {
            reply.token.serial = 1 + asked;
        }
        reply
    }
}

struct Bench {
    engine: Engine,
    host: Arc<Clock>,
    asked: Arc<AtomicU32>,
}

impl Bench {
    fn new(reply: Reply) -> Self {
        let (host, asked) = (Arc::new(Clock::default()), Arc::new(AtomicU32::new(0)));
        host.now_ns.store(1_000 * MS, Relaxed);
        let policy: Box<dyn Policy> = Box::new(Parrot { reply, asked: asked.clone() });
        let engine = Engine::new(policy, host.clone(), Arc::new(IdleCpus::new(CPUS)), CPUS, 64);
        Self { engine, host, asked }
    }

    fn event(&self, kind: EventKind) -> Outcome {
        let mut outcome = Outcome::default();
        self.engine.deliver(&Event::new(kind, 0), &[], &mut outcome);
        outcome
    }

    fn slowed(&self) -> u64 {
        self.engine.totals().slowed
    }
}

fn kicks(cpus: &[CpuId]) -> Reply {
    let mut kicks = Kicks::NONE;
    cpus.iter().for_each(|cpu| kicks.add(*cpu));
    Reply { kicks, ..Reply::default() }
}

#[test]
fn a_kick_that_is_one_too_many_comes_when_the_millisecond_is_over() {
    let bench = Bench::new(kicks(&[1]));
    let first = (0..1_000).find(|_| bench.event(EventKind::Pick).kicks.is_empty()).expect("there are no bounds");
    assert!(first < 100, "after {first} kicks");
    assert_eq!(bench.slowed(), 1);
    let at_ns = bench.host.refill_ns.load(Relaxed);
    assert!(at_ns <= 1_001 * MS, "in {at_ns} ns");
    bench.host.now_ns.store(at_ns, Relaxed);
    assert_eq!(bench.event(EventKind::Refill).kicks, kicks(&[1]).kicks);
    assert!(bench.event(EventKind::Refill).kicks.is_empty(), "it comes twice");
}

#[test]
fn a_kick_at_a_timer_always_comes() {
    let bench = Bench::new(kicks(&[1]));
    assert!((0..100_000).all(|_| bench.event(EventKind::Timer).kicks == kicks(&[1]).kicks));
    assert_eq!(bench.slowed(), 0);
}

#[test]
fn who_is_slowed_down_again_and_again_is_taken_out_and_the_call_is_named() {
    let bench = Bench::new(kicks(&[0]));
    for ms in 0_u64.. {
        bench.host.now_ns.store((1_000 + ms) * MS, Relaxed);
        if (0..100).any(|_| bench.event(EventKind::Pick).status == Status::Fault as i32) {
            assert!((u64::from(WINDOWS_OVER_MOST)..1_000).contains(&ms), "after {ms} ms");
            break;
        }
        assert!(ms < 1_000, "it is still there");
    }
    let fault = bench.engine.fault().unwrap();
    assert_eq!(fault.message, "too many kicks: pick_next_task has asked for more than it may for 200 ms");
}

#[test]
fn a_cpu_that_kicks_itself_and_finds_nothing_ends_the_policy_however_slow_it_is() {
    let bench = Bench::new(kicks(&[0]));
    for search in 0.. {
        // It loses its processor for nine of ten milliseconds, and has 25 searches in between.
        bench.host.now_ns.fetch_add(if search % 25 == 0 { 9 * MS } else { MS / 25 }, Relaxed);
        if bench.event(EventKind::Pick).status == Status::Fault as i32 {
            break;
        }
        assert!(search < 25 * 60, "it is still there after 600 ms");
    }
    let message = bench.engine.fault().unwrap().message;
    assert!(message.starts_with("too many kicks: a CPU has kicked itself "), "{message}");
}

#[test]
fn kicks_in_searches_now_and_then_never_end_the_policy() {
    // CPU 0 kicks another CPU, and then itself.
    for kicked in [1, 0] {
        let bench = Bench::new(kicks(&[kicked]));
        for _ in 0..10_000 {
            bench.host.now_ns.fetch_add(4 * MS, Relaxed);
            assert_ne!(bench.event(EventKind::Pick).status, Status::Fault as i32, "CPU {kicked}");
        }
    }
}

#[test]
fn timers_are_of_10_us_or_more() {
    for (asked_ns, given_ns) in [(1, TIMER_NS_MIN), (TIMER_NS_MIN, TIMER_NS_MIN), (MS, MS)] {
        let bench = Bench::new(Reply { timer_ns: asked_ns, ..Reply::default() });
        assert_eq!(bench.event(EventKind::Timer).timer_ns, given_ns);
        assert_eq!(bench.slowed(), u64::from(asked_ns < given_ns));
    }
}

/// Also where it shares the timer of a CPU, and long after the machine was started.
#[test]
fn a_timer_without_end_takes_no_policy_out() {
    let mut bench = Bench::new(Reply { timer_ns: u64::MAX, ..Reply::default() });
    let other = Parrot { reply: Reply { timer_ns: u64::MAX - MS, ..Reply::default() }, asked: Arc::default() };
    assert!(bench.engine.add(Box::new(other), false, &mut Outcome::default()).is_ok());
    for now_ns in [0, 1, 1_000_000 * MS] {
        bench.host.now_ns.store(now_ns, Relaxed);
        for kind in [EventKind::Timer, EventKind::CpuOnline, EventKind::Timer] {
            assert_ne!(bench.event(kind).status, Status::Fault as i32, "{kind:?} at {now_ns}");
        }
    }
    assert!(bench.engine.fault().is_none());
}

fn worthless(serial: u32) -> Reply {
    let task = TaskId { slot: 5, generation: 5 };
    Reply { token: RawToken { task, cpu: 0, serial }, ..Reply::default() }
}

#[test]
fn a_search_is_given_up_when_the_event_has_taken_too_long() {
    let bench = Bench::new(worthless(1));
    assert!(!bench.event(EventKind::Pick).kicks.is_empty(), "the CPU does not come back");
    assert_eq!(bench.asked.swap(0, Relaxed), PICK_ATTEMPTS);
    bench.host.is_spent.store(true, Relaxed);
    assert!(!bench.event(EventKind::Pick).kicks.is_empty(), "the CPU does not come back");
    assert_eq!(bench.asked.load(Relaxed), 1);
}

/// What all policies together have for an event, in calls.
struct Tank {
    calls: Arc<AtomicU32>,
    most: u32,
}

impl Host for Tank {
    fn now_ns(&self) -> u64 {
        1_000 * MS
    }

    fn may_run(&self, _: TaskId, _: CpuId) -> bool {
        true
    }

    fn allowed_cpus(&self, _: TaskId, cpus: &mut CpuMask) {
        *cpus = CpuMask::first_n(CPUS);
    }

    fn idle_cpus(&self, _: &mut CpuMask) {}
}

impl EngineHost for Tank {
    fn is_spent(&self) -> bool {
        self.calls.load(Relaxed) >= self.most
    }
}

/// Has worthless tokens, one less than it is asked for, and then nothing; or it faults.
struct Waster {
    asked: AtomicU32,
    of_all: Arc<AtomicU32>,
    faults: bool,
}

impl Policy for Waster {
    fn calls(&self) -> Calls {
        Calls::ALL
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn deliver(&self, message: &Message, _: &[u8]) -> Reply {
        if message.call != Call::PickNextTask as u32 {
            return Reply::default();
        }
        self.of_all.fetch_add(1, Relaxed);
        match (self.asked.fetch_add(1, Relaxed) + 1) % PICK_ATTEMPTS {
            _ if self.faults => Reply::faulted(),
            0 => Reply::default(),
            _ => worthless(ANOTHER),
        }
    }
}

/// How often as many policies as there may be are asked in one event that has so much for all of them.
fn asked_of_all(most: u32, fault: bool) -> u32 {
    let calls = Arc::<AtomicU32>::default();
    let waster = || Box::new(Waster { asked: AtomicU32::new(0), of_all: calls.clone(), faults: fault });
    let host = Arc::new(Tank { calls: calls.clone(), most });
    let mut engine: Engine = Engine::new(waster(), host, Arc::new(IdleCpus::new(CPUS)), CPUS, 64);
    for _ in 1..POLICY_SLOTS {
        assert!(engine.add(waster(), false, &mut Outcome::default()).is_ok());
    }
    let deliver = |event: &Event| {
        let mut outcome = Outcome::default();
        engine.deliver(event, &event.args[0].to_ne_bytes(), &mut outcome);
        outcome
    };
    // Each has a task that waits.
    for policy_slot in 0..POLICY_SLOTS {
        let init = Event { args: [1 + policy_slot as u64, 0], ..Event::new(EventKind::TaskInit, 0) };
        let task = deliver(&init).task;
        deliver(&Event { task, ..Event::new(EventKind::TaskEnable, 0) });
        assert!(engine.choose(task, Some(policy_slot), false, false).is_ok());
        deliver(&Event { task, flags: enqueue_flags::WAKEUP, ..Event::new(EventKind::Enqueue, 0) });
    }
    assert_eq!(calls.load(Relaxed), 0);
    let outcome = deliver(&Event::new(EventKind::Pick, 0));
    assert!(fault || calls.load(Relaxed) < most || !outcome.kicks.is_empty(), "the CPU does not come back");
    calls.load(Relaxed)
}

#[test]
fn a_search_among_as_many_policies_as_there_may_be_takes_no_longer_than_one() {
    let policy_slots = POLICY_SLOTS as u32;
    assert_eq!(asked_of_all(u32::MAX, false), policy_slots * PICK_ATTEMPTS);
    // The policy that uses up the limit is the last that is asked.
    for most in [1, PICK_ATTEMPTS - 1, PICK_ATTEMPTS + 10, 3 * PICK_ATTEMPTS + 1] {
        assert_eq!(asked_of_all(most, false), most, "of {most}");
    }
    // Policies that fault are not asked a second time.
    assert_eq!(asked_of_all(u32::MAX, true), policy_slots);
    assert_eq!(asked_of_all(1, true), policy_slots);
}

#[test]
fn searches_in_vain_end_the_policy() {
    let bench = Bench::new(worthless(ANOTHER));
    for search in 0..6_000 {
        bench.host.now_ns.fetch_add(MS / 10, Relaxed);
        if bench.event(EventKind::Pick).status == Status::Fault as i32 {
            assert!(search >= 4_999, "after {search} searches");
            break;
        }
    }
    assert!(bench.engine.fault().unwrap().message.starts_with("too many refusals: pick_next_task "));
}

/// However seldom the CPU looks for work.
#[test]
fn the_same_worthless_token_ends_the_policy_and_others_do_not() {
    for (serial, ends) in [(1, true), (ANOTHER, false)] {
        let bench = Bench::new(worthless(serial));
        for _ in 0..20 {
            bench.host.now_ns.fetch_add(100 * MS, Relaxed);
            bench.event(EventKind::Pick);
        }
        assert_eq!(bench.engine.fault().is_some_and(|fault| fault.message.contains("the same token 512 times")), ends);
    }
}

#[test]
fn tasks_are_introduced_later_when_the_event_has_taken_too_long() {
    let mut bench = Bench::new(Reply::default());
    for name in 1..9 {
        let mut outcome = Outcome::default();
        let init = Event { args: [name, 0], ..Event::new(EventKind::TaskInit, 0) };
        bench.engine.deliver(&init, &name.to_ne_bytes(), &mut outcome);
    }
    bench.engine.start_over(0, &mut Outcome::default());
    bench.host.is_spent.store(true, Relaxed);
    assert_eq!(bench.engine.introduce(0, 32, &mut Outcome::default()), Some(1));
    bench.host.is_spent.store(false, Relaxed);
    assert_eq!(bench.engine.introduce(1, 32, &mut Outcome::default()), None);
}
