//! A policy that answers anything at all, beside one that does as it should.

use std::{
    any::Any,
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use ekiden::{Call, Calls, CpuId, CpuMask, TaskId};
use ekiden_engine::{Engine, EngineHost, IdleCpus, SLICE_NS_MAX, TIMER_NS_MIN};
use ekiden_host::abi::{Event, EventKind, Kicks, Message, Outcome, RawToken, Reply, Status, enqueue_flags, pick_flags};
use ekiden_host::{Host, Policy};

const CPUS: u32 = 3;
const TASKS: u64 = 6;
/// The policy slot of the one that does as it should.
const SOUND: usize = 1;
const ROUNDS: u32 = 24;
const MS: u64 = 1_000_000;

/// What bytes say that a policy answers; when they are at an end, it is a FIFO.
struct Puppet {
    state: Mutex<State>,
    host: Arc<Machine>,
}

#[derive(Default)]
struct State {
    script: VecDeque<u8>,
    /// What it asks for in each reply besides: nothing, a kick of the CPU, one of all, or the shortest timer.
    habit: u8,
    /// All tokens that it was ever given, and those that it still has.
    seen: Vec<RawToken>,
    queue: VecDeque<RawToken>,
}

impl State {
    fn word(&mut self, bytes: usize) -> u64 {
        (0..bytes).fold(0, |word, _| word << 8 | u64::from(self.script.pop_front().unwrap_or(0)))
    }

    /// Most often nothing, or else what is apt to go wrong.
    fn number(&mut self) -> u64 {
        match self.word(1) {
            0..128 => 0,
            128..160 => u64::MAX,
            160..176 => u64::MAX / 2,
            176..192 => 1,
            192..224 => self.word(1),
            _ => self.word(8),
        }
    }

    fn token(&mut self) -> RawToken {
        let choice = self.word(1) as usize;
        match choice {
            0..96 => RawToken::NONE,
            96..240 if !self.seen.is_empty() => self.seen[choice % self.seen.len()],
            _ => {
                let (task, cpu, serial) = (self.task(), self.number() as u32, self.number() as u32);
                RawToken { task, cpu, serial }
            }
        }
    }

    fn task(&mut self) -> TaskId {
        TaskId { slot: self.number() as u32, generation: self.number() as u32 }
    }

    fn reply(&mut self) -> Reply {
        let mut reply = Reply {
            token: self.token(),
            dropped: self.token(),
            task: self.task(),
            slice_ns: self.number(),
            timer_ns: self.number(),
            cpu: self.number() as u32,
            ..Reply::default()
        };
        for _ in 0..self.word(1) % 4 {
            reply.kicks.add(self.number() as u32);
        }
        reply
    }

    fn answer(&mut self, message: &Message) -> Reply {
        let mut reply = if self.script.is_empty() { self.as_a_fifo(message) } else { self.reply() };
        match self.habit {
            0 => {}
            1 => reply.kicks.add(message.cpu),
            2 => reply.kicks = Kicks::ALL,
            _ => reply.timer_ns = 1,
        }
        reply
    }

    fn as_a_fifo(&mut self, message: &Message) -> Reply {
        let at = self.queue.iter().position(|token| token.cpu == message.cpu);
        let is_pick = message.call == Call::PickNextTask as u32;
        let picked = at.filter(|_| is_pick).and_then(|at| self.queue.remove(at));
        Reply { token: picked.unwrap_or(RawToken::NONE), cpu: message.arg as u32, ..Reply::default() }
    }
}

impl Policy for Puppet {
    fn calls(&self) -> Calls {
        Calls::ALL
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn deliver(&self, message: &Message, _: &[u8]) -> Reply {
        let state = &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let token = message.token();
        if !token.is_none() {
            state.seen.push(token);
            // A new one, or one that was no good.
            state.queue.retain(|other| other.task != token.task);
            if message.call != Call::PntErr as u32 {
                state.queue.push_back(token);
            }
        }
        let reply = state.answer(message);
        self.host.owes(reply.kicks);
        reply
    }
}

struct Machine {
    idle: Arc<IdleCpus>,
    now_ns: AtomicU64,
    /// When the engine wants to be called again; 0 for not at all.
    refill_ns: AtomicU64,
    /// CPUs that were to look for work and have not been told, a bit each.
    owed: AtomicU64,
}

impl Machine {
    fn new(idle: Arc<IdleCpus>) -> Self {
        Self { idle, now_ns: AtomicU64::new(1_000 * MS), refill_ns: AtomicU64::new(0), owed: AtomicU64::new(0) }
    }

    fn bits(kicks: Kicks) -> u64 {
        let all = (1 << CPUS) - 1;
        let named = kicks.iter().filter(|cpu| *cpu < CPUS).fold(0, |bits, cpu| bits | 1 << cpu);
        if kicks.is_all() { all } else { named }
    }

    fn owes(&self, kicks: Kicks) {
        self.owed.fetch_or(Self::bits(kicks), Relaxed);
    }
}

impl Host for Machine {
    fn now_ns(&self) -> u64 {
        self.now_ns.fetch_add(1, Relaxed)
    }

    fn may_run(&self, _: TaskId, _: CpuId) -> bool {
        true
    }

    fn allowed_cpus(&self, _: TaskId, cpus: &mut CpuMask) {
        *cpus = CpuMask::first_n(CPUS);
    }

    fn idle_cpus(&self, cpus: &mut CpuMask) {
        self.idle.copy_to(cpus);
    }
}

impl EngineHost for Machine {
    fn refill_at(&self, at_ns: u64) {
        let before_ns = self.refill_ns.load(Relaxed);
        if before_ns == 0 || at_ns < before_ns {
            self.refill_ns.store(at_ns, Relaxed);
        }
    }
}

/// Where a task is, as the kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stands {
    Sleeps,
    Waits,
    Runs(CpuId),
}

struct Kernel {
    engine: Engine,
    host: Arc<Machine>,
    tasks: Vec<(TaskId, Stands)>,
}

impl Kernel {
    fn new(habit: u8, script: &[u8]) -> Self {
        let idle = Arc::new(IdleCpus::new(CPUS));
        let host = Arc::new(Machine::new(idle.clone()));
        let puppet = |habit, script: &[u8]| -> Box<dyn Policy> {
            let state = State { habit, script: script.iter().copied().collect(), ..State::default() };
            Box::new(Puppet { state: Mutex::new(state), host: host.clone() })
        };
        let mut engine: Engine = Engine::new(puppet(habit, script), host.clone(), idle, CPUS, 16);
        let policy_slot = engine.add(puppet(0, &[]), false, &mut Outcome::default());
        assert_eq!(policy_slot.ok(), Some(SOUND));
        let mut kernel = Self { engine, host: host.clone(), tasks: Vec::new() };
        for name in 0..TASKS {
            let init = Event { args: [1 + name, 0], ..Event::new(EventKind::TaskInit, 0) };
            let task = kernel.deliver(&init).task;
            kernel.deliver(&Event { task, ..Event::new(EventKind::TaskEnable, 0) });
            if name % 2 == 1 {
                kernel.engine.choose(task, Some(SOUND), false, false).expect("both are there");
            }
            kernel.tasks.push((task, Stands::Sleeps));
        }
        kernel
    }

    fn deliver(&self, event: &Event) -> Outcome {
        let outcome = self.deliver_now(event);
        let at_ns = self.host.refill_ns.load(Relaxed);
        if at_ns != 0 && at_ns <= self.host.now_ns.load(Relaxed) {
            self.host.refill_ns.store(0, Relaxed);
            self.deliver_now(&Event::new(EventKind::Refill, event.cpu));
        }
        outcome
    }

    fn deliver_now(&self, event: &Event) -> Outcome {
        let mut outcome = Outcome::default();
        // The name of a new task.
        self.engine.deliver(event, &event.args[0].to_ne_bytes(), &mut outcome);
        assert!(i64::try_from(outcome.timer_ns).is_ok() && outcome.slice_ns <= SLICE_NS_MAX, "{outcome:?}");
        assert!(outcome.kicks.is_all() || outcome.kicks.iter().all(|cpu| cpu < CPUS), "{outcome:?}");
        // A timer that is under way may be nearer.
        let is_new = outcome.timer_ns != 0 && event.kind != EventKind::Timer as u32;
        assert!(!is_new || self.engine.order().len() > 1 || outcome.timer_ns >= TIMER_NS_MIN, "{outcome:?}");
        let owed = self.host.owed.fetch_and(!Machine::bits(outcome.kicks), Relaxed) & !Machine::bits(outcome.kicks);
        assert!(owed == 0 || self.host.refill_ns.load(Relaxed) != 0, "kicks are lost: {owed:b}");
        outcome
    }

    /// Delivers one of the events of a machine, as a byte says.
    fn happens(&mut self, byte: u8) {
        let (kind, which) = (byte % 8, usize::from(byte / 8));
        let (cpu, index) = (which as u32 % CPUS, which % self.tasks.len());
        let (task, stands) = self.tasks[index];
        match (kind, stands) {
            (0, _) => self.pick(cpu, which % 2 == 1),
            (1, Stands::Sleeps) => {
                self.tasks[index].1 = Stands::Waits;
                let flags = enqueue_flags::WAKEUP;
                self.deliver(&Event { task, flags, ..Event::new(EventKind::Enqueue, cpu) });
            }
            (2, Stands::Runs(cpu)) => self.about(EventKind::Tick, index, cpu),
            (2, Stands::Sleeps) => self.about(EventKind::SelectCpu, index, cpu),
            (3, _) => _ = self.deliver(&Event::new(EventKind::Timer, cpu)),
            // Some microseconds, or windows of a millisecond.
            (4, _) => _ = self.host.now_ns.fetch_add(which as u64 * MS / 16, Relaxed),
            (5, _) => {
                let flags = which as u64 % 3;
                self.deliver(&Event { task, flags, ..Event::new(EventKind::Hint, cpu) });
            }
            (6, _) => self.about(EventKind::Nice, index, cpu),
            _ => self.introduce(),
        }
    }

    fn about(&self, kind: EventKind, index: usize, cpu: CpuId) {
        self.deliver(&Event { task: self.tasks[index].0, ..Event::new(kind, cpu) });
    }

    fn pick(&mut self, cpu: CpuId, goes_on: bool) {
        let previous = self.tasks.iter().position(|(_, stands)| *stands == Stands::Runs(cpu));
        let task = previous.map_or(TaskId::NONE, |index| self.tasks[index].0);
        let flags = if goes_on && previous.is_some() { pick_flags::PREV_RUNNABLE } else { 0 };
        if let Some(index) = previous {
            self.tasks[index].1 = if goes_on { Stands::Waits } else { Stands::Sleeps };
        }
        let outcome = self.deliver(&Event { task, flags, ..Event::new(EventKind::Pick, cpu) });
        if outcome.status == Status::Run as i32 || outcome.status == Status::KeepPrevious as i32 {
            let entry = self.tasks.iter_mut().find(|(task, _)| *task == outcome.task).expect("it is a task");
            assert_eq!(entry.1, Stands::Waits, "{:?} runs twice, or in its sleep", entry.0);
            entry.1 = Stands::Runs(cpu);
        }
        if goes_on && previous.is_some() && outcome.task != task {
            self.deliver(&Event { task, ..Event::new(EventKind::Enqueue, cpu) });
        }
    }

    fn introduce(&self) {
        let (owed, mut next) = (self.host.owed.load(Relaxed), Some(0));
        while let Some(first) = next {
            next = self.engine.introduce(first, 4, &mut Outcome::default());
        }
        // All CPUs look at the end of that. But this is of what came before.
        self.host.owed.store(owed, Relaxed);
    }

    fn round(&mut self, round: u32) {
        self.host.now_ns.fetch_add(MS / 16, Relaxed);
        for index in 0..self.tasks.len() {
            let cpu = (round + index as u32) % CPUS;
            if self.tasks[index].1 == Stands::Sleeps {
                let (task, flags) = (self.tasks[index].0, enqueue_flags::WAKEUP);
                self.deliver(&Event { task, flags, ..Event::new(EventKind::SelectCpu, cpu) });
                self.tasks[index].1 = Stands::Waits;
                self.deliver(&Event { task, flags, ..Event::new(EventKind::Enqueue, cpu) });
            }
            match round % 4 {
                0 => self.about(EventKind::Nice, index, cpu),
                1 => self.about(EventKind::Affinity, index, cpu),
                _ => {}
            }
        }
        for cpu in 0..CPUS {
            self.pick(cpu, round % 3 == 1);
            if let Some(index) = self.tasks.iter().position(|(_, stands)| *stands == Stands::Runs(cpu)) {
                self.about(EventKind::Tick, index, cpu);
            }
            self.deliver(&Event::new(EventKind::Timer, cpu));
            if round % 8 == 7 {
                self.deliver(&Event::new(EventKind::CpuOffline, cpu));
                self.deliver(&Event::new(EventKind::CpuOnline, cpu));
            }
        }
        self.introduce();
    }
}

/// What happens on a machine, as the first byte says for how many, and replies of a policy, with what it always wants: whatever it answers, the engine lives, no task
/// runs twice, no kick is lost, and the policy beside it has its tasks run. Good is one that makes no contract violation.
pub fn replies(bytes: &[u8]) -> bool {
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let (events, script) = rest.split_at(usize::from(*first % 64).min(rest.len()));
    let mut kernel = Kernel::new(*first / 64, script);
    events.iter().for_each(|event| kernel.happens(*event));
    (0..ROUNDS).for_each(|round| kernel.round(round));
    // Kicks that were put off are due by now.
    for _ in 0..2 {
        kernel.host.now_ns.fetch_add(2 * MS, Relaxed);
        kernel.deliver(&Event::new(EventKind::Refill, 0));
    }
    let owed = kernel.host.owed.load(Relaxed);
    assert!(owed == 0, "kicks are lost: {owed:b}");
    let sound = kernel.engine.policy_slots().find(|view| view.policy_slot == SOUND).expect("it is there");
    assert!(
        sound.is_alive && sound.contract_violations == 0 && sound.fault.is_none(),
        "the other policy pays for it: {sound:?}"
    );
    for _ in 0..4 * TASKS {
        (0..CPUS).for_each(|cpu| kernel.pick(cpu, false));
    }
    let waits: Vec<_> = kernel
        .engine
        .tasks()
        .iter()
        .filter(|view| view.state.policy_slot() == SOUND)
        .filter(|view| kernel.tasks.iter().any(|(task, stands)| *task == view.id && *stands == Stands::Waits))
        .map(|view| view.id)
        .collect();
    assert!(waits.is_empty(), "tasks of the other policy wait for ever: {waits:?}");
    kernel.engine.contract_violations().0 == 0
}
