//! Policies come, go, fault and take over while tasks wait, run and sleep, and tasks change from one to another: each policy
//! hears of a task once, before anything else about it, and every task that waits runs in the end.

use std::{
    any::Any,
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use ekiden::{Call, Calls, CpuId, CpuMask, RefusalReason, TaskId};
use ekiden_engine::{Engine, EngineHost, IdleCpus, Share};
use ekiden_host::abi::{
    BALANCE_TOO, Event, EventKind, Message, Outcome, RawToken, Reply, Status, enqueue_flags, pick_flags,
};
use ekiden_host::{Host, Policy};
use proptest::prelude::*;

const CPUS: u32 = 2;
const TASKS: u32 = 6;
const POLICIES: usize = 3;

/// A FIFO that complains about whatever it hears of a task that it does not know. Now and then it picks nothing until it is asked
/// to balance, and then asks the CPU to come again, as one does that balances busy CPUs.
struct Listener {
    heard: Mutex<Heard>,
    complaints: Arc<Mutex<Vec<String>>>,
    /// It does not answer any more.
    faults: Arc<AtomicBool>,
}

#[derive(Default)]
struct Heard {
    /// Whether the task sleeps.
    known: HashMap<TaskId, bool>,
    queues: [VecDeque<RawToken>; CPUS as usize],
    idle: HashSet<CpuId>,
    searches: u32,
    is_due: bool,
}

impl Listener {
    fn new(complaints: &Arc<Mutex<Vec<String>>>, faults: &Arc<AtomicBool>) -> Box<Self> {
        Box::new(Self { heard: Mutex::default(), complaints: complaints.clone(), faults: faults.clone() })
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
        if self.faults.load(Relaxed) {
            return Reply::faulted();
        }
        let Heard { known, queues, idle, searches, is_due } = &mut *self.heard.lock().unwrap();
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
            Call::TaskDeparted => {
                if known.remove(&message.task).is_none() {
                    complain("never heard of it");
                }
                queues.iter_mut().for_each(|queue| queue.retain(|token| token.task != message.task));
            }
            // It may not run there, but elsewhere.
            Call::PntErr if message.flags == RefusalReason::NotAllowed as u32 => {
                queues[message.token_cpu as usize].push_back(message.token());
            }
            Call::PntErr => complain("a token was not good"),
            Call::EnterIdle if !idle.insert(message.cpu) => complain("it is idle already"),
            Call::ExitIdle if !idle.remove(&message.cpu) => complain("it was not idle"),
            Call::MigrateTaskRq => {
                for queue in queues.iter_mut() {
                    if let Some(at) = queue.iter().position(|token| token.task == message.task) {
                        reply.token = queue.remove(at).unwrap();
                    }
                }
                queues[message.token_cpu as usize].push_back(message.token());
            }
            Call::PickNextTask => {
                *searches += 1;
                *is_due |= *searches % 4 == 0;
                if !*is_due {
                    reply.token = queues[message.cpu as usize].pop_front().unwrap_or(RawToken::NONE);
                } else if message.flags & BALANCE_TOO != 0 {
                    *is_due = false;
                    reply.kicks.add(message.cpu);
                }
            }
            _ => {}
        }
        reply
    }
}

/// Where one policy follows another while events are under way, as in the kernel.
struct Place {
    policy: RwLock<Option<Box<dyn Policy>>>,
    complaints: Arc<Mutex<Vec<String>>>,
}

impl Place {
    fn of(policy: Box<dyn Policy>, complaints: &Arc<Mutex<Vec<String>>>) -> Self {
        Self { policy: RwLock::new(Some(policy)), complaints: complaints.clone() }
    }
}

impl Policy for Place {
    fn calls(&self) -> Calls {
        self.policy.read().unwrap().as_ref().map_or(Calls::NONE, |policy| policy.calls())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn deliver(&self, message: &Message, payload: &[u8]) -> Reply {
        match &*self.policy.read().unwrap() {
            Some(policy) => policy.deliver(message, payload),
            None => {
                self.complaints.lock().unwrap().push(format!("{message:?} comes after it has left"));
                Reply::default()
            }
        }
    }

    fn leave(&self) {
        *self.policy.write().unwrap() = None;
    }

    fn follow(&self, next: Self) -> Result<(), Self> {
        *self.policy.write().unwrap() = next.policy.into_inner().unwrap();
        Ok(())
    }
}

struct Anywhere(Arc<IdleCpus>, Arc<AtomicBool>);

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
}

impl EngineHost for Anywhere {
    fn policy_faulted(&self, _: u32) {
        self.1.store(true, Relaxed);
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
    /// Another policy takes over in this policy slot.
    Swap(usize),
    /// Another policy comes, for all tasks or for those that are given to it.
    Add(bool),
    /// One is going to come, and no CPU has seen it yet.
    Begin,
    Remove(usize),
    /// Removes a policy while events are under way, some of which began before.
    Leave(usize),
    Reorder,
    /// A policy panics in its next call.
    Fault(usize),
    Choose(usize, Option<usize>),
    /// It has these CPUs, a bit each, perhaps for itself, and this weight.
    Share(usize, u64, bool, u32),
    /// It hears of some more tasks.
    Introduce,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..TASKS as usize, 0..CPUS).prop_map(|(task, cpu)| Step::Wake(task, cpu)),
        6 => (0..CPUS, any::<bool>()).prop_map(|(cpu, goes_on)| Step::Pick(cpu, goes_on)),
        1 => (0..CPUS).prop_map(Step::Tick),
        1 => (0..TASKS as usize).prop_map(Step::Nice),
        1 => (0..POLICIES).prop_map(Step::Swap),
        1 => any::<bool>().prop_map(Step::Add),
        1 => Just(Step::Begin),
        1 => (0..POLICIES).prop_map(Step::Remove),
        1 => (0..POLICIES).prop_map(Step::Leave),
        1 => Just(Step::Reorder),
        1 => (0..POLICIES).prop_map(Step::Fault),
        2 => (0..TASKS as usize, proptest::option::of(0..POLICIES)).prop_map(|(task, policy_slot)| Step::Choose(task, policy_slot)),
        1 => Just(Step::Introduce),
        2 => (0..POLICIES, 0..1_u64 << CPUS, any::<bool>(), prop_oneof![Just(0), 1..1000_u32])
            .prop_map(|(policy_slot, cpus, is_strict, weight)| Step::Share(policy_slot, cpus, is_strict && cpus != 0, weight)),
    ];
    proptest::collection::vec(step, 0..60)
}

/// The kernel, as far as it matters here. It says nothing of tasks that sleep, so that the engine has to find out.
struct Kernel {
    engine: Engine<Place>,
    tasks: Vec<(TaskId, Stands)>,
    /// The index of the entry from which on the policy is yet to be told of tasks.
    next: Option<u32>,
    /// The policy that has come, and whether for all tasks, though not all CPUs ask it yet.
    comes: Option<(usize, bool)>,
    /// The policy that goes, though an event may still know it.
    leaves: Option<usize>,
    complaints: Arc<Mutex<Vec<String>>>,
    /// For each policy slot, whether its policy is to fault; and whether one faulted.
    faults: [Arc<AtomicBool>; POLICIES],
    faulted: Arc<AtomicBool>,
}

impl Kernel {
    fn new() -> Self {
        let complaints = Arc::default();
        let idle = Arc::new(IdleCpus::new(CPUS));
        let (faulted, faults) = (Arc::<AtomicBool>::default(), <[Arc<AtomicBool>; POLICIES]>::default());
        let host = Arc::new(Anywhere(idle.clone(), faulted.clone()));
        let first = Place::of(Listener::new(&complaints, &faults[0]), &complaints);
        let engine = Engine::new(first, host, idle, CPUS, 64);
        let (tasks, next, comes, leaves) = (Vec::new(), None, None, None);
        let mut kernel = Self { engine, tasks, next, comes, leaves, complaints, faults, faulted };
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
        // The name of a new task.
        self.engine.deliver(event, &event.args[0].to_ne_bytes(), &mut outcome);
        outcome
    }

    /// Whether a policy may use a CPU, by what has been shared out.
    fn may_use(&self, policy_slot: usize, cpu: CpuId) -> bool {
        let strict = || self.engine.policy_slots().filter(|view| view.is_alive && view.share.is_strict);
        let own = self.engine.share_of(policy_slot).1.contains(cpu);
        // One that is alone has all CPUs.
        let is_alone = self.engine.order().len() == 1;
        own || is_alone || !strict().any(|view| view.policy_slot == policy_slot || view.cpus.contains(cpu))
    }

    fn running(&self, cpu: CpuId) -> Option<usize> {
        self.tasks.iter().position(|(_, stands)| *stands == Stands::Runs(cpu))
    }

    /// The policy in a policy slot, if one is there that can be called.
    fn alive(&self, policy_slot: usize) -> bool {
        self.engine.policy_slots().any(|view| view.policy_slot == policy_slot && view.is_alive)
    }

    fn nr_alive(&self) -> usize {
        (0..POLICIES).filter(|policy_slot| self.alive(*policy_slot) && !self.faults[*policy_slot].load(Relaxed)).count()
    }

    fn all_ask(&mut self) {
        if let Some((policy_slot, is_default)) = self.comes.take() {
            self.engine.has_come(policy_slot, is_default, &mut Outcome::default());
            self.next = Some(0);
        }
    }

    /// No event knows it any more.
    fn has_left(&mut self) {
        if let Some(policy_slot) = self.leaves.take() {
            self.engine.has_left(policy_slot);
            self.next = Some(0);
        }
    }

    fn listener(&self, policy_slot: usize) -> Place {
        Place::of(Listener::new(&self.complaints, &self.faults[policy_slot]), &self.complaints)
    }

    fn introduce_all(&mut self) {
        self.all_ask();
        self.has_left();
        while self.faulted.swap(false, Relaxed) || self.next.is_some() {
            self.next = Some(0);
            self.introduce(u32::MAX);
        }
    }

    fn introduce(&mut self, most: u32) {
        if self.faulted.swap(false, Relaxed) {
            self.next = Some(0);
        }
        if let Some(first) = self.next {
            self.next = self.engine.introduce(first, most, &mut Outcome::default());
        }
    }

    fn step(&mut self, step: Step) {
        if !matches!(step, Step::Wake(..) | Step::Pick(..) | Step::Tick(_) | Step::Nice(_)) {
            self.all_ask();
            if !matches!(step, Step::Introduce) && self.leaves.is_some() {
                self.introduce_all();
            }
        }
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
            Step::Swap(policy_slot) if self.alive(policy_slot) && !self.faults[policy_slot].load(Relaxed) => {
                self.introduce_all();
                let next = self.listener(policy_slot);
                self.engine.replace_policy(policy_slot, |_| next);
                self.engine.start_over(policy_slot, &mut Outcome::default());
                self.next = Some(0);
            }
            Step::Add(is_default) if self.engine.policy_slots().count() < POLICIES => {
                self.introduce_all();
                let policy_slots: Vec<usize> = self.engine.policy_slots().map(|view| view.policy_slot).collect();
                let free = (0..POLICIES).find(|policy_slot| !policy_slots.contains(policy_slot)).unwrap();
                self.faults[free].store(false, Relaxed);
                self.engine.begin_several();
                assert_eq!(self.engine.come(self.listener(free)).ok(), Some(free));
                self.comes = Some((free, is_default));
            }
            Step::Begin => _ = self.engine.begin_several(),
            Step::Remove(policy_slot) if self.nr_alive() > usize::from(self.alive(policy_slot)) => {
                self.introduce_all();
                if self.engine.remove(policy_slot).is_some() {
                    self.next = Some(0);
                }
            }
            Step::Leave(policy_slot) if self.nr_alive() > usize::from(self.alive(policy_slot)) => {
                if self.engine.leave(policy_slot) {
                    self.leaves = Some(policy_slot);
                    self.next = Some(0);
                }
            }
            Step::Reorder => {
                let mut order: Vec<usize> = self.engine.policy_slots().map(|view| view.policy_slot).collect();
                order.rotate_left(1);
                assert!(self.engine.reorder(&order));
                self.engine.all_see(&mut Outcome::default());
            }
            // One has to stay.
            Step::Fault(policy_slot) if self.nr_alive() > 1 => self.faults[policy_slot].store(true, Relaxed),
            Step::Choose(index, policy_slot) => {
                let known = policy_slot.is_none_or(|policy_slot| self.alive(policy_slot));
                assert_eq!(self.engine.choose(self.tasks[index].0, policy_slot, false, false).is_ok(), known);
            }
            Step::Share(policy_slot, cpus, is_strict, weight) => {
                let share = Share { is_strict, weight };
                let done = self.engine.share(policy_slot, &CpuMask::from_words(&[cpus]), share);
                assert_eq!(done, self.alive(policy_slot));
                self.engine.all_see(&mut Outcome::default());
            }
            Step::Swap(_) | Step::Add(_) | Step::Remove(_) | Step::Leave(_) | Step::Fault(_) => {}
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
            let policy_slot =
                self.engine.tasks().iter().find(|view| view.id == outcome.task).unwrap().state.policy_slot();
            // Another one may have faulted in this very call, before or after it was looked at.
            if !self.faulted.load(Relaxed) {
                assert!(
                    self.may_use(policy_slot, cpu) || !(0..CPUS).any(|cpu| self.may_use(policy_slot, cpu)),
                    "of {policy_slot} on {cpu}"
                );
            }
        }
        if goes_on && previous.is_some() && outcome.task != task {
            self.deliver(&Event { task, ..Event::new(EventKind::Enqueue, cpu) });
        }
    }
}

proptest! {
    #[test]
    fn each_policy_hears_of_a_task_once_and_every_task_that_waits_runs(steps in steps()) {
        let mut kernel = Kernel::new();
        steps.into_iter().for_each(|step| kernel.step(step));
        for _ in 0..=2 * TASKS + POLICIES as u32 {
            kernel.introduce_all();
            (0..CPUS).for_each(|cpu| kernel.pick(cpu, false));
        }
        let left: Vec<_> = kernel.tasks.iter().filter(|(_, stands)| *stands != Stands::Sleeps).collect();
        prop_assert!(left.is_empty(), "{left:?}");
        prop_assert_eq!(&*kernel.complaints.lock().unwrap(), &Vec::<String>::new());
        prop_assert_eq!((kernel.engine.totals().unexpected_transitions, kernel.engine.contract_violations().0), (0, 0));
        // Every task has a policy.
        kernel.introduce_all();
        let has: Vec<u32> = kernel.engine.policy_slots().map(|view| view.tasks).collect();
        prop_assert_eq!(has.iter().sum::<u32>(), TASKS, "{:?}", has);
        prop_assert!(kernel.engine.policy_slots().all(|view| view.is_alive || view.tasks == 0));
    }
}

#[test]
fn whoever_waits_is_handed_over_and_idle_cpus_look_for_work() {
    let mut kernel = Kernel::new();
    kernel.step(Step::Pick(1, false));
    kernel.step(Step::Wake(0, 0));
    kernel.step(Step::Wake(1, 1));
    kernel.step(Step::Swap(0));
    let mut outcome = Outcome::default();
    assert_eq!(kernel.engine.introduce(0, 2, &mut outcome), Some(2));
    assert_eq!(outcome.kicks.iter().collect::<Vec<_>>(), [1]);
    assert_eq!(kernel.engine.introduce(2, 64, &mut outcome), None);
    assert!(outcome.kicks.is_all());
    kernel.pick(0, false);
    assert_eq!(kernel.running(0), Some(0));
}

#[test]
fn a_policy_that_balances_before_it_picks_has_its_turns_all_the_same() {
    let mut kernel = Kernel::new();
    kernel.step(Step::Add(false));
    kernel.step(Step::Choose(1, Some(1)));
    kernel.step(Step::Wake(0, 0));
    kernel.step(Step::Wake(1, 0));
    let mut ran = [0; 2];
    for _ in 0..1000 {
        kernel.step(Step::Pick(0, true));
        kernel.step(Step::Tick(0));
        if let Some(task) = kernel.running(0) {
            ran[task] += 1;
        }
    }
    assert!(ran[1] >= 50, "{ran:?}");
}

#[test]
fn the_turns_of_a_policy_do_not_become_fewer_with_each_that_comes() {
    let mut kernel = Kernel::new();
    for policy_slot in 1..POLICIES {
        kernel.step(Step::Add(false));
        kernel.step(Step::Choose(policy_slot, Some(policy_slot)));
    }
    (0..POLICIES).for_each(|task| kernel.step(Step::Wake(task, 0)));
    let mut ran = [0; POLICIES];
    for _ in 0..1000 {
        kernel.step(Step::Pick(0, true));
        kernel.step(Step::Tick(0));
        if let Some(task) = kernel.running(0) {
            ran[task] += 1;
        }
    }
    assert!(ran.iter().all(|ticks| *ticks >= 100), "{ran:?}");
}

#[test]
fn weights_divide_a_cpu_among_policies_that_have_work_all_the_time() {
    for weights in [[300, 100], [100, 200], [50, 0]] {
        let mut kernel = Kernel::new();
        kernel.step(Step::Add(false));
        for (policy_slot, weight) in weights.into_iter().enumerate() {
            kernel.step(Step::Share(policy_slot, 0, false, weight));
        }
        kernel.step(Step::Choose(1, Some(1)));
        kernel.step(Step::Wake(0, 0));
        kernel.step(Step::Wake(1, 0));
        let mut ran_ns = [0_u64; 2];
        let mut previous = TaskId::NONE;
        // Slices of 4 and 5 ms, each longer than a tick.
        for _ in 0..4000 {
            let flags = if previous.is_none() { 0 } else { pick_flags::PREV_RUNNABLE };
            let ran_of = |ran_ns: [u64; 2], task| ran_ns[usize::from(task == kernel.tasks[1].0)];
            let runtime_ns = ran_of(ran_ns, previous);
            let pick = Event { task: previous, flags, runtime_ns, ..Event::new(EventKind::Pick, 0) };
            let task = kernel.deliver(&pick).task;
            let which = usize::from(task == kernel.tasks[1].0);
            if previous != TaskId::NONE && previous != task {
                let runtime_ns = ran_of(ran_ns, previous);
                kernel.deliver(&Event { task: previous, runtime_ns, ..Event::new(EventKind::Enqueue, 0) });
            }
            previous = task;
            // Now and then it balances first.
            if !task.is_none() {
                ran_ns[which] += 4_000_000 + which as u64 * 1_000_000;
            }
        }
        let [one, other] = weights.map(|weight| f64::from(if weight == 0 { 100 } else { weight }));
        let (share, expected) = (ran_ns[0] as f64 / (ran_ns[0] + ran_ns[1]) as f64, one / (one + other));
        assert!((share - expected).abs() < 0.03, "{weights:?}: {share} instead of {expected}");
    }
}

/// The caller that shares them out waits until all events have seen it, and for that a task of the other policy may have to run.
#[test]
fn a_turn_ends_when_weights_are_shared_out() {
    // One of these ticks falls into the turn.
    for before in 0..50 {
        let mut kernel = Kernel::new();
        kernel.step(Step::Add(false));
        kernel.step(Step::Choose(1, Some(1)));
        kernel.step(Step::Wake(0, 0));
        kernel.step(Step::Wake(1, 0));
        let step = |kernel: &mut Kernel| {
            kernel.step(Step::Pick(0, true));
            kernel.step(Step::Tick(0));
            kernel.running(0)
        };
        (0..before).for_each(|_| _ = step(&mut kernel));
        for policy_slot in 0..2 {
            let share = Share { is_strict: false, weight: 10 };
            assert!(kernel.engine.share(policy_slot, &CpuMask::first_n(CPUS), share));
        }
        let ran = (0..200).filter(|_| step(&mut kernel) == Some(0)).count();
        assert!(ran > 50, "after {before} ticks the first policy had {ran} of 200");
    }
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
        // Tokens that it gets in return are kept, so that each contract violation stays a single one.
        let dropped = if message.call == Call::TaskWakeup as u32 { message.token() } else { RawToken::NONE };
        lost.push(dropped);
        Reply { dropped, ..Reply::default() }
    }
}

#[test]
fn a_successor_does_not_answer_for_the_contract_violations_of_others() {
    let mut kernel = Kernel::new();
    for round in 0..2 {
        let next = Place::of(Box::new(Careless(Mutex::default())), &kernel.complaints);
        kernel.engine.replace_policy(0, |_| next);
        kernel.engine.start_over(0, &mut Outcome::default());
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
        assert_eq!((kernel.engine.contract_violations().0, kernel.engine.fault().is_some()), ((round + 1) * 40, false));
    }
}

/// Wants a timer whenever a task wakes up.
struct Alarmed;

impl Policy for Alarmed {
    fn calls(&self) -> Calls {
        Calls::ALL
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn deliver(&self, message: &Message, _: &[u8]) -> Reply {
        let timer_ns = if message.call == Call::TaskWakeup as u32 { 1_000_000 } else { 0 };
        Reply { timer_ns, ..Reply::default() }
    }
}

#[test]
fn nobody_has_a_timer_set_for_a_policy_that_is_gone() {
    for waits in [false, true] {
        let mut kernel = Kernel::new();
        let next = Place::of(Box::new(Alarmed), &kernel.complaints);
        kernel.engine.replace_policy(0, |_| next);
        (0..2).for_each(|_| kernel.step(Step::Add(true)));
        kernel.introduce_all();
        kernel.step(Step::Choose(0, Some(0)));
        let task = kernel.tasks[0].0;
        // It has been in another one until now.
        for _ in 0..2 {
            kernel.deliver(&Event { task, flags: enqueue_flags::WAKEUP, ..Event::new(EventKind::Enqueue, 0) });
            kernel.deliver(&Event { task, ..Event::new(EventKind::Block, 0) });
        }
        let timer = || Event::new(EventKind::Timer, 0);
        assert_eq!(kernel.deliver(&timer()).timer_ns, 1_000_000);
        kernel.step(if waits { Step::Leave(0) } else { Step::Remove(0) });
        assert_eq!(kernel.deliver(&timer()).timer_ns, 0);
        kernel.introduce_all();
        kernel.step(Step::Add(false));
        assert_eq!(kernel.deliver(&timer()).timer_ns, 0, "nor for the one that follows");
    }
}
