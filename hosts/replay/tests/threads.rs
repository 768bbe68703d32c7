//! Calls that ran at the same time on real threads are replayed without a difference: that the order of locks and what a
//! call learnt is all that it takes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

use ekiden::{CpuId, CpuMask, Env, RefusalReason, Scheduler, TaskId, Topology};
use ekiden_host::abi::{BALANCE_TOO, Call, Message, RawToken, Reply};
use ekiden_host::{Adapter, Host, Policy};
use ekiden_policies::{Wfq, for_each_policy};
use ekiden_recording::{
    CallWriter, Calls, Header, Instance, Mark, Record, RecordingWriter, RingHeader, call_log_of_thread,
};
use ekiden_replay::Replay;
use ekiden_workload::random::Random;

const CPUS: u32 = 2;
const TASKS: u32 = 12;
const RING: usize = 1 << 17;

thread_local! {
    static RINGS: RefCell<(RingHeader, Vec<Record>)> = RefCell::default();
}

struct Machine {
    policy: Box<dyn Policy>,
    begin: Instant,
    /// For each task whether it waits, with the token that counts; the lock is that of its run queue.
    tasks: Vec<Mutex<Task>>,
    /// Tasks that sleep.
    asleep: Mutex<VecDeque<u32>>,
    over: AtomicBool,
    /// All CPUs begin at once.
    start: Barrier,
}

#[derive(Default)]
struct Task {
    serial: u32,
    waits: bool,
    runtime_ns: u64,
}

/// Answers that another thread would not get the same way.
struct Answers(AtomicU64);

impl Host for Answers {
    fn now_ns(&self) -> u64 {
        self.0.fetch_add(7, SeqCst)
    }
    fn may_run(&self, _: TaskId, _: CpuId) -> bool {
        self.0.fetch_add(1, SeqCst) % 3 != 0
    }
    fn allowed_cpus(&self, _: TaskId, cpus: &mut CpuMask) {
        *cpus = CpuMask::first_n(CPUS);
    }
    fn idle_cpus(&self, cpus: &mut CpuMask) {
        if self.0.fetch_add(1, SeqCst) % 2 == 0 {
            cpus.set(0);
        }
    }
    fn claim(&self, _: RawToken, _: CpuId) -> Result<(), RefusalReason> {
        if self.0.fetch_add(1, SeqCst) % 3 != 0 { Ok(()) } else { Err(RefusalReason::NotAllowed) }
    }
    fn take_idle(&self, _: TaskId, _: Option<&CpuMask>) -> Option<CpuId> {
        (self.0.fetch_add(1, SeqCst) % 2 == 0).then_some(0)
    }
}

fn id(task: u32) -> TaskId {
    TaskId { slot: task, generation: 1 }
}

impl Machine {
    fn tell(&self, message: &Message) -> Reply {
        let time_ns = self.begin.elapsed().as_nanos() as u64;
        RINGS.with_borrow_mut(|(place, ring)| CallWriter::new(place, ring).begin(time_ns, 0, message, &[]));
        let reply = self.policy.deliver(message, &[]);
        RINGS.with_borrow_mut(|(place, ring)| CallWriter::new(place, ring).end(&reply));
        reply
    }

    fn message(&self, call: Call, cpu: u32, task: u32, state: &Task) -> Message {
        Message {
            task: id(task),
            pid: task + 1,
            runtime_ns: state.runtime_ns,
            weight: 1024 + 100 * task,
            ..Message::about_cpu(call, cpu)
        }
    }

    /// The task waits from here on.
    fn enqueue(&self, call: Call, cpu: u32, task: u32) {
        let mut state = self.tasks[task as usize].lock().unwrap();
        state.serial += 1;
        state.waits = true;
        let token = RawToken { task: id(task), cpu, serial: state.serial };
        let message = self.message(call, cpu, task, &state).with_token(token);
        self.tell(&message);
    }

    /// One CPU: it picks, lets what it picked run, and puts it back or to sleep; wakes others for any CPU meanwhile.
    fn cpu(&self, cpu: u32, mut random: Random, rounds: u32) {
        for _ in 0..rounds {
            if self.over.load(SeqCst) {
                return;
            }
            let mut message = Message::about_cpu(Call::PickNextTask, cpu);
            message.flags = BALANCE_TOO;
            let reply = self.tell(&message);
            if !reply.token.is_none() {
                let task = reply.token.task.slot;
                let mut state = self.tasks[task as usize].lock().unwrap();
                if state.serial != reply.token.serial || !state.waits {
                    // Moved meanwhile.
                    continue;
                }
                state.waits = false;
                state.runtime_ns += random.next() % 1_000_000;
                if random.next() % 4 == 0 {
                    self.tell(&self.message(Call::TaskTick, cpu, task, &state));
                }
                let sleeps = random.next() % 2 == 0;
                if sleeps {
                    self.tell(&self.message(Call::TaskBlocked, cpu, task, &state));
                }
                drop(state);
                if sleeps {
                    self.asleep.lock().unwrap().push_back(task);
                } else {
                    self.enqueue(Call::TaskPreempt, cpu, task);
                }
            } else if !reply.task.is_none() {
                let task = reply.task.slot;
                let mut state = self.tasks[task as usize].lock().unwrap();
                if state.waits {
                    state.serial += 1;
                    let token = RawToken { task: id(task), cpu, serial: state.serial };
                    self.tell(&self.message(Call::MigrateTaskRq, cpu, task, &state).with_token(token));
                }
            }
            let woken = self.asleep.lock().unwrap().pop_front();
            if let Some(task) = woken {
                let to = (random.next() % u64::from(CPUS)) as u32;
                self.enqueue(Call::TaskWakeup, to, task);
            }
        }
    }
}

/// What each CPU has written down.
fn record<S: Scheduler>(seed: u64, rounds: u32) -> Vec<Vec<Record>> {
    let topology = Topology::flat(CPUS);
    let env = Env::new(topology, TASKS, S::PARAMS, "").unwrap();
    let policy = Box::new(Adapter::<S>::new(&env, Arc::new(Answers(AtomicU64::new(seed)))));
    let machine = Machine {
        policy,
        begin: Instant::now(),
        tasks: (0..TASKS).map(|_| Mutex::default()).collect(),
        asleep: Mutex::default(),
        over: AtomicBool::new(false),
        start: Barrier::new(CPUS as usize),
    };
    let begin_call_log = || {
        RINGS.set((RingHeader::default(), vec![Record::default(); RING]));
        call_log_of_thread(Some(|value| {
            RINGS.with_borrow_mut(|(place, ring)| CallWriter::new(place, ring).note(value));
            value
        }));
        RINGS.with_borrow_mut(|(place, ring)| CallWriter::new(place, ring).mark(0, Mark::Begin, 1));
    };
    let machine = &machine;
    let rings: Vec<(RingHeader, Vec<Record>)> = std::thread::scope(|scope| {
        let cpus = (0..CPUS).map(|cpu| {
            scope.spawn(move || {
                begin_call_log();
                machine.start.wait();
                for task in (cpu..TASKS).step_by(CPUS as usize) {
                    machine.enqueue(Call::TaskNew, cpu, task);
                }
                machine.cpu(cpu, Random::new(seed << 8 | u64::from(cpu)), rounds);
                machine.over.store(true, SeqCst);
                call_log_of_thread(None);
                RINGS.take()
            })
        });
        cpus.collect::<Vec<_>>().into_iter().map(|cpu| cpu.join().unwrap()).collect()
    });
    let whole = |(place, mut ring): (RingHeader, Vec<Record>)| {
        let head = place.head.into_inner() as usize;
        assert!(head <= RING, "the ring is too small: {head}");
        ring.truncate(head);
        ring
    };
    rings.into_iter().map(whole).collect()
}

fn file<S: Scheduler>(rings: &[Vec<Record>]) -> Vec<u8> {
    let header = Header {
        instance: Instance { policy: S::NAME.into(), params: String::new() },
        max_tasks: TASKS,
        topology: Topology::flat(CPUS).to_words(),
        ..Header::default()
    };
    let mut writer = RecordingWriter::new(Vec::new(), &header).unwrap();
    for (cpu, ring) in (0..).zip(rings) {
        writer.block(cpu, 0, ring).unwrap();
    }
    writer.pass(u64::MAX >> 8).unwrap();
    writer.finish().unwrap()
}

fn replays<S: Scheduler>() {
    for seed in 1..=5 {
        let recording = file::<S>(&record::<S>(seed, 3_000));
        let outcome = Replay::of::<S>().run(&recording[..]).unwrap();
        if let Some(first) = &outcome.first {
            panic!("{}, seed {seed}: {first}", S::NAME);
        }
        assert!(outcome.calls > 3_000 && outcome.is_exact(), "{}, seed {seed}: {outcome:?}", S::NAME);
        let [exact] = outcome.exact[..] else { panic!("{}, seed {seed}: {:?}", S::NAME, outcome.exact) };
        assert_eq!((exact.from, exact.to), (1, outcome.calls), "{}, seed {seed}", S::NAME);
    }
}

macro_rules! every_policy {
    ($($module:ident $policy:ident)*) => {$(
        mod $module {
            #[test]
            fn on_two_threads_replays_exactly() {
                super::replays::<ekiden_policies::$policy>();
            }
        }
    )*};
}

for_each_policy!(every_policy);

#[test]
fn a_recording_that_ends_in_a_call_that_others_waited_for_is_replayed_exactly() {
    for seed in 1..=5 {
        let mut rings = record::<Wfq>(seed, 1_000);
        // Its processor is away from here on; the other one continues with the locks that it has let go.
        while rings[0].len() > 20 {
            let less = rings[0].len() * 19 / 20;
            rings[0].truncate(less);
            let mut calls = Calls::default();
            rings[0].iter().for_each(|record| drop(calls.push(record)));
            if calls.open_since_ns().is_none() {
                continue;
            }
            let outcome = Replay::of::<Wfq>().run(&file::<Wfq>(&rings)[..]).unwrap();
            if let Some(first) = &outcome.first {
                panic!("seed {seed}, {} records: {first}", rings[0].len());
            }
        }
    }
}
