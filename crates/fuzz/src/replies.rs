//! A policy that answers anything at all, beside one that does as it should.

use std::{
    any::Any,
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use ekiden::abi::{Event, EventKind, Message, Outcome, RawToken, Reply, Status, enqueue_flags, pick_flags};
use ekiden::{Call, Calls, CpuId, CpuMask, Group, Host, Policy, TaskId};
use ekiden_engine::{Engine, IdleCpus, SLICE_NS_MAX};

const CPUS: u32 = 3;
const TASKS: u64 = 6;
/// The seat of the one that does as it should.
const SOUND: usize = 1;
const ROUNDS: u32 = 24;

/// What bytes say that a policy answers; when they are at an end, it is a FIFO.
struct Puppet {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    script: VecDeque<u8>,
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
        if !state.script.is_empty() {
            return state.reply();
        }
        let at = state.queue.iter().position(|token| token.cpu == message.cpu);
        let is_pick = message.call == Call::PickNextTask as u32;
        let picked = at.filter(|_| is_pick).and_then(|at| state.queue.remove(at));
        Reply { token: picked.unwrap_or(RawToken::NONE), cpu: message.arg as u32, ..Reply::default() }
    }
}

struct Machine(Arc<IdleCpus>);

impl Host for Machine {
    fn now_ns(&self) -> u64 {
        1_000_000_000
    }

    fn may_run(&self, _: TaskId, _: CpuId) -> bool {
        true
    }

    fn allowed_cpus(&self, _: TaskId, cpus: &mut CpuMask) {
        *cpus = CpuMask::first_n(CPUS);
    }

    fn idle_cpus(&self, cpus: &mut CpuMask) {
        self.0.copy_to(cpus);
    }

    fn group(&self, _: TaskId) -> Group {
        Group::ROOT
    }

    fn policy_fell(&self, _: u32) {}
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
    tasks: Vec<(TaskId, Stands)>,
}

impl Kernel {
    fn new(script: &[u8]) -> Self {
        let idle = Arc::new(IdleCpus::new(CPUS));
        let puppet = |script: &[u8]| -> Box<dyn Policy> {
            let state = State { script: script.iter().copied().collect(), ..State::default() };
            Box::new(Puppet { state: Mutex::new(state) })
        };
        let mut engine: Engine = Engine::new(puppet(script), Arc::new(Machine(idle.clone())), idle, CPUS, 16);
        let seat = engine.add(puppet(&[]), false, &mut Outcome::default());
        assert_eq!(seat.ok(), Some(SOUND));
        let mut kernel = Self { engine, tasks: Vec::new() };
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
        let mut outcome = Outcome::default();
        self.engine.deliver(event, &[], &mut outcome);
        assert!(i64::try_from(outcome.timer_ns).is_ok() && outcome.slice_ns <= SLICE_NS_MAX, "{outcome:?}");
        outcome
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
        let mut next = Some(0);
        while let Some(first) = next {
            next = self.engine.introduce(first, 4, &mut Outcome::default());
        }
    }

    fn round(&mut self, round: u32) {
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

/// Replies of a policy: whatever it answers, the engine lives, no task runs twice, and the policy beside it has its tasks
/// run. Good is one that makes no mistake.
pub fn replies(bytes: &[u8]) -> bool {
    let mut kernel = Kernel::new(bytes);
    (0..ROUNDS).for_each(|round| kernel.round(round));
    let sound = kernel.engine.seats().find(|view| view.seat == SOUND).expect("it is there");
    assert!(sound.is_alive && sound.mistakes == 0 && sound.fault.is_none(), "the other policy pays for it: {sound:?}");
    for _ in 0..4 * TASKS {
        (0..CPUS).for_each(|cpu| kernel.pick(cpu, false));
    }
    let waits: Vec<_> = kernel
        .engine
        .tasks()
        .iter()
        .filter(|view| view.state.seat() == SOUND)
        .filter(|view| kernel.tasks.iter().any(|(task, stands)| *task == view.id && *stands == Stands::Waits))
        .map(|view| view.id)
        .collect();
    assert!(waits.is_empty(), "tasks of the other policy wait for ever: {waits:?}");
    kernel.engine.mistakes().0 == 0
}
