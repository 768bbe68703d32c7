//! A stranger takes over while tasks wait, run and sleep: it hears of each task once, before anything else about it, and every
//! task that waits runs in the end.

use std::{
    any::Any,
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
};

use ekiden::abi::{Event, EventKind, Message, Outcome, RawToken, Reply, Status, enqueue_flags, pick_flags};
use ekiden::{Call, Calls, CpuId, CpuMask, Group, Host, Policy, TaskId};
use ekiden_engine::{Engine, IdleCpus};
use proptest::prelude::*;

const CPUS: u32 = 2;
const TASKS: u32 = 6;

/// A FIFO that complains about whatever it hears of a task that it does not know.
struct Listener {
    heard: Mutex<Heard>,
    complaints: Arc<Mutex<Vec<String>>>,
}

#[derive(Default)]
struct Heard {
    /// Whether the task sleeps.
    known: HashMap<TaskId, bool>,
    queues: [VecDeque<RawToken>; CPUS as usize],
}

impl Listener {
    fn new(complaints: &Arc<Mutex<Vec<String>>>) -> Box<Self> {
        Box::new(Self { heard: Mutex::default(), complaints: complaints.clone() })
    }
}

impl Policy for Listener {
    fn calls(&self) -> Calls {
        Calls::ALL
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn deliver(&self, message: &Message, _: &[u8]) -> Reply {
        let Heard { known, queues } = &mut *self.heard.lock().unwrap();
        let call = Call::from_number(message.call).unwrap();
        let complain = |what: &str| self.complaints.lock().unwrap().push(format!("{}: {what}", call.name()));
        let mut reply = Reply { cpu: message.arg as u32, ..Reply::default() };
        match call {
            Call::TaskNew => {
                if known.insert(message.task, false).is_some() {
                    complain("heard of it twice");
                }
                queues[message.token_cpu as usize].push_back(message.token());
            }
            Call::TaskWakeup | Call::TaskPreempt | Call::TaskYield => {
                match known.insert(message.task, false) {
                    None => complain("never heard of it"),
                    Some(slept) if slept != (call == Call::TaskWakeup) => complain("slept or not?"),
                    Some(_) => {}
                }
                queues[message.token_cpu as usize].push_back(message.token());
            }
            Call::TaskBlocked => match known.insert(message.task, true) {
                None => complain("never heard of it"),
                Some(true) => complain("sleeps already"),
                Some(false) => {}
            },
            Call::TaskTick | Call::TaskPrioChanged | Call::TaskAffinityChanged
                if !known.contains_key(&message.task) =>
            {
                complain("never heard of it");
            }
            Call::PntErr => complain("a token was not good"),
            Call::PickNextTask => reply.token = queues[message.cpu as usize].pop_front().unwrap_or(RawToken::NONE),
            _ => {}
        }
        reply
    }
}

struct Anywhere(Arc<IdleCpus>);

impl Host for Anywhere {
    fn now_ns(&self) -> u64 {
        0
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
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stands {
    Sleeps,
    Waits,
    Runs(CpuId),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Wake(usize, CpuId),
    /// A CPU looks for work; what it runs could go on, or sleeps.
    Pick(CpuId, bool),
    Tick(CpuId),
    Nice(usize),
    /// Another policy takes over.
    Swap,
    /// It hears of some more tasks.
    Introduce,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..TASKS as usize, 0..CPUS).prop_map(|(task, cpu)| Step::Wake(task, cpu)),
        6 => (0..CPUS, any::<bool>()).prop_map(|(cpu, goes_on)| Step::Pick(cpu, goes_on)),
        1 => (0..CPUS).prop_map(Step::Tick),
        1 => (0..TASKS as usize).prop_map(Step::Nice),
        1 => Just(Step::Swap),
        1 => Just(Step::Introduce),
    ];
    proptest::collection::vec(step, 0..60)
}

/// The kernel, as far as it matters here. It says nothing of tasks that sleep, so that the engine has to find out.
struct Kernel {
    engine: Engine,
    tasks: Vec<(TaskId, Stands)>,
    /// Where the policy goes on to hear of tasks.
    next: Option<u32>,
    complaints: Arc<Mutex<Vec<String>>>,
}

impl Kernel {
    fn new() -> Self {
        let complaints = Arc::default();
        let idle = Arc::new(IdleCpus::new(CPUS));
        let host = Arc::new(Anywhere(idle.clone()));
        let engine = Engine::new(Listener::new(&complaints), host, idle, CPUS, 64);
        let mut kernel = Self { engine, tasks: Vec::new(), next: None, complaints };
        for name in 0..TASKS {
            let init = Event { args: [1 + u64::from(name), 0], ..Event::new(EventKind::TaskInit, 0) };
            let task = kernel.deliver(&init).task;
            kernel.deliver(&Event { task, ..Event::new(EventKind::TaskEnable, 0) });
            kernel.tasks.push((task, Stands::Sleeps));
        }
        kernel
    }

    fn deliver(&self, event: &Event) -> Outcome {
        let mut outcome = Outcome::default();
        self.engine.deliver(event, &[], &mut outcome);
        outcome
    }

    fn running(&self, cpu: CpuId) -> Option<usize> {
        self.tasks.iter().position(|(_, stands)| *stands == Stands::Runs(cpu))
    }

    fn introduce(&mut self, most: u32) {
        if let Some(first) = self.next {
            self.next = self.engine.introduce(first, most, &mut Outcome::default());
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Wake(index, cpu) if self.tasks[index].1 == Stands::Sleeps => {
                let (task, flags) = (self.tasks[index].0, enqueue_flags::WAKEUP);
                self.tasks[index].1 = Stands::Waits;
                self.deliver(&Event { task, flags, ..Event::new(EventKind::Enqueue, cpu) });
            }
            Step::Pick(cpu, goes_on) => self.pick(cpu, goes_on),
            Step::Tick(cpu) => {
                if let Some(index) = self.running(cpu) {
                    self.deliver(&Event { task: self.tasks[index].0, ..Event::new(EventKind::Tick, cpu) });
                }
            }
            Step::Nice(index) => {
                self.deliver(&Event { task: self.tasks[index].0, args: [5, 0], ..Event::new(EventKind::Nice, 0) });
            }
            Step::Swap => {
                self.introduce(u32::MAX);
                self.engine.replace_policy(|_| Listener::new(&self.complaints));
                self.engine.start_over(&mut Outcome::default());
                self.next = Some(0);
            }
            Step::Introduce => self.introduce(2),
            Step::Wake(..) => {}
        }
    }

    fn pick(&mut self, cpu: CpuId, goes_on: bool) {
        let previous = self.running(cpu);
        let task = previous.map_or(TaskId::NONE, |index| self.tasks[index].0);
        let flags = if goes_on && previous.is_some() { pick_flags::PREV_RUNNABLE } else { 0 };
        if let Some(index) = previous {
            self.tasks[index].1 = if goes_on { Stands::Waits } else { Stands::Sleeps };
        }
        let outcome = self.deliver(&Event { task, flags, ..Event::new(EventKind::Pick, cpu) });
        let chosen = outcome.status == Status::Run as i32 || outcome.status == Status::KeepPrevious as i32;
        if let Some(entry) = self.tasks.iter_mut().find(|(task, _)| chosen && *task == outcome.task) {
            assert_eq!(entry.1, Stands::Waits, "{:?} runs twice, or in its sleep", entry.0);
            entry.1 = Stands::Runs(cpu);
        }
        if goes_on && previous.is_some() && outcome.task != task {
            self.deliver(&Event { task, ..Event::new(EventKind::Enqueue, cpu) });
        }
    }
}

proptest! {
    #[test]
    fn a_stranger_hears_of_each_task_once_and_every_task_that_waits_runs(steps in steps()) {
        let mut kernel = Kernel::new();
        steps.into_iter().for_each(|step| kernel.step(step));
        kernel.introduce(u32::MAX);
        for _ in 0..=TASKS {
            (0..CPUS).for_each(|cpu| kernel.pick(cpu, false));
        }
        let left: Vec<_> = kernel.tasks.iter().filter(|(_, stands)| *stands != Stands::Sleeps).collect();
        prop_assert!(left.is_empty(), "{left:?}");
        prop_assert_eq!(&*kernel.complaints.lock().unwrap(), &Vec::<String>::new());
        prop_assert_eq!((kernel.engine.totals().surprises, kernel.engine.mistakes().0), (0, 0));
    }
}

#[test]
fn whoever_waits_is_handed_over_and_idle_cpus_look_for_work() {
    let mut kernel = Kernel::new();
    kernel.step(Step::Pick(1, false));
    kernel.step(Step::Wake(0, 0));
    kernel.step(Step::Wake(1, 1));
    kernel.step(Step::Swap);
    let mut outcome = Outcome::default();
    assert_eq!(kernel.engine.introduce(0, 2, &mut outcome), Some(2));
    assert_eq!(outcome.kicks.iter().collect::<Vec<_>>(), [1]);
    assert_eq!(kernel.engine.introduce(2, 64, &mut outcome), None);
    assert!(outcome.kicks.is_all());
    kernel.pick(0, false);
    assert_eq!(kernel.running(0), Some(0));
}

/// Drops every token that it gets.
struct Careless(Mutex<Vec<RawToken>>);

impl Policy for Careless {
    fn calls(&self) -> Calls {
        Calls::NONE
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn deliver(&self, message: &Message, _: &[u8]) -> Reply {
        let mut lost = self.0.lock().unwrap();
        // Those that it gets in return are kept, so that each mistake stays a single one.
        let dropped = if message.call == Call::TaskWakeup as u32 { message.token() } else { RawToken::NONE };
        lost.push(dropped);
        Reply { dropped, ..Reply::default() }
    }
}

#[test]
fn a_successor_does_not_answer_for_the_mistakes_of_others() {
    let mut kernel = Kernel::new();
    for round in 0..2 {
        kernel.engine.replace_policy(|_| Box::new(Careless(Mutex::default())));
        kernel.engine.start_over(&mut Outcome::default());
        kernel.engine.introduce(0, u32::MAX, &mut Outcome::default());
        let task = kernel.tasks[0].0;
        let wake = Event { task, flags: enqueue_flags::WAKEUP, ..Event::new(EventKind::Enqueue, 0) };
        let block = Event { task, ..Event::new(EventKind::Block, 0) };
        kernel.deliver(&wake);
        for _ in 0..40 {
            kernel.deliver(&block);
            kernel.deliver(&wake);
        }
        kernel.deliver(&block);
        assert_eq!((kernel.engine.mistakes().0, kernel.engine.fault().is_some()), ((round + 1) * 40, false));
    }
}
