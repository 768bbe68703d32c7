//! A task's parameters reach the policy that they are for, when that knows of the task, and no other.

use std::sync::{Arc, Mutex};

use ekiden::{Call, Calls, CpuId, CpuMask, TaskId};
use ekiden_engine::{Engine, EngineHost, IdleCpus};
use ekiden_host::abi::{Event, EventKind, Message, Outcome, RawParams, Reply};
use ekiden_host::{Host, Policy};
use zerocopy::{FromBytes, IntoBytes};

/// What a policy has heard: the call, the task, and the first of the parameters.
type Heard = Arc<Mutex<Vec<(Call, u32, u64)>>>;

/// What happens elsewhere while a policy is told of parameters, once.
type Meanwhile = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

#[derive(Default)]
struct Listener {
    declares: u64,
    heard: Heard,
    meanwhile: Meanwhile,
    /// What it keeps of the task in each slot: the last parameter.
    tasks: Arc<Mutex<[u64; TASKS as usize]>>,
}

impl Policy for Listener {
    fn calls(&self) -> Calls {
        Calls::ALL
    }

    fn params_declared(&self) -> u64 {
        self.declares
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }

    fn deliver(&self, message: &Message, payload: &[u8]) -> Reply {
        let call = Call::from_number(message.call).unwrap();
        let params = RawParams::read_from_bytes(payload).map_or(0, |params| params.values[0]);
        if call == Call::TaskParams {
            let meanwhile = self.meanwhile.lock().unwrap().take();
            meanwhile.into_iter().for_each(|happens| happens());
        }
        if [Call::TaskNew, Call::TaskParams].contains(&call) {
            self.tasks.lock().unwrap()[message.task.slot as usize] = params;
        }
        if [Call::TaskNew, Call::TaskDeparted, Call::TaskParams].contains(&call) {
            self.heard.lock().unwrap().push((call, message.task.slot, params));
        }
        Reply::default()
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
        cpus.set(0);
    }

    fn idle_cpus(&self, cpus: &mut CpuMask) {
        self.0.copy_to(cpus);
    }
}

impl EngineHost for Anywhere {}

const TASKS: u32 = 4;

/// What the policies of [`kernel`] declare.
const DECLARED: [u64; 2] = [1, 2];

struct Kernel {
    engine: Engine,
    heard: [Heard; 2],
    /// An action in the middle of a call of the first policy.
    meanwhile: Meanwhile,
    tasks: Arc<Mutex<[u64; TASKS as usize]>>,
}

fn kernel() -> Kernel {
    let heard = [Heard::default(), Heard::default()];
    let (meanwhile, tasks) = (Meanwhile::default(), Arc::<Mutex<[u64; TASKS as usize]>>::default());
    let first =
        Listener { declares: DECLARED[0], heard: heard[0].clone(), meanwhile: meanwhile.clone(), tasks: tasks.clone() };
    let second = Listener { declares: DECLARED[1], heard: heard[1].clone(), ..Listener::default() };
    let idle = Arc::new(IdleCpus::new(1));
    let mut engine: Engine = Engine::new(Box::new(first), Arc::new(Anywhere(idle.clone())), idle, 1, TASKS);
    assert!(engine.add(Box::new(second), false, &mut Outcome::default()).is_ok());
    Kernel { engine, heard, meanwhile, tasks }
}

impl Kernel {
    fn deliver(&self, event: &Event, payload: &[u8]) -> Outcome {
        let mut outcome = Outcome::default();
        self.engine.deliver(event, payload, &mut outcome);
        assert_eq!(outcome.status, 0);
        outcome
    }

    fn born(&self, parent: TaskId) -> TaskId {
        let init = Event { task: parent, args: [0, 7], ..Event::new(EventKind::TaskInit, 0) };
        let task = self.deliver(&init, &7_u64.to_ne_bytes()).task;
        self.deliver(&Event { task, ..Event::new(EventKind::TaskEnable, 0) }, &[]);
        task
    }

    fn waits(&self, task: TaskId) {
        self.deliver(&Event { task, ..Event::new(EventKind::Enqueue, 0) }, &[]);
    }

    /// Chooses a policy and sets a parameter, as a program does.
    fn choose(&self, task: TaskId, policy_slot: usize, value: u64) {
        self.engine.choose(task, Some(policy_slot), true, false).unwrap();
        let params = RawParams { declared: DECLARED[policy_slot], values: [value, 0, 0, 0] };
        self.deliver(&Event { task, ..Event::new(EventKind::TaskParams, 0) }, params.as_bytes());
    }

    fn dies(&self, task: TaskId) {
        self.deliver(&Event { task, ..Event::new(EventKind::TaskExit, 0) }, &[]);
    }

    fn heard(&self, policy_slot: usize) -> Vec<(Call, u32, u64)> {
        std::mem::take(&mut self.heard[policy_slot].lock().unwrap())
    }
}

#[test]
fn a_policy_hears_of_parameters_after_it_has_heard_of_the_task() {
    let kernel = kernel();
    let task = kernel.born(TaskId::NONE);
    kernel.choose(task, 1, 5);
    assert_eq!((kernel.heard(0), kernel.heard(1)), (vec![], vec![]));
    kernel.waits(task);
    assert_eq!(kernel.heard(0), []);
    assert_eq!(kernel.heard(1), [(Call::TaskNew, task.slot, 0), (Call::TaskParams, task.slot, 5)]);
    // A policy that knows the task hears at once.
    kernel.choose(task, 1, 6);
    assert_eq!(kernel.heard(1), [(Call::TaskParams, task.slot, 6)]);
}

#[test]
fn parameters_wait_until_the_task_changes_its_policy() {
    let kernel = kernel();
    let task = kernel.born(TaskId::NONE);
    kernel.choose(task, 0, 3);
    kernel.waits(task);
    assert_eq!(kernel.heard(0), [(Call::TaskNew, task.slot, 0), (Call::TaskParams, task.slot, 3)]);
    kernel.choose(task, 1, 4);
    assert_eq!((kernel.heard(0), kernel.heard(1)), (vec![], vec![]));
    kernel.waits(task);
    assert_eq!(kernel.heard(0), [(Call::TaskDeparted, task.slot, 0)]);
    assert_eq!(kernel.heard(1), [(Call::TaskNew, task.slot, 0), (Call::TaskParams, task.slot, 4)]);
}

#[test]
fn children_have_the_parameters_of_their_parent_and_others_have_none() {
    let kernel = kernel();
    let parent = kernel.born(TaskId::NONE);
    kernel.choose(parent, 1, 9);
    let (child, other) = (kernel.born(parent), kernel.born(TaskId::NONE));
    kernel.waits(child);
    kernel.waits(other);
    assert_eq!(kernel.heard(1), [(Call::TaskNew, child.slot, 0), (Call::TaskParams, child.slot, 9)]);
    assert_eq!(kernel.heard(0), [(Call::TaskNew, other.slot, 0)]);
}

#[test]
fn a_successor_that_starts_over_is_told_again_if_it_declares_the_same() {
    for (declares, told) in [(DECLARED[0], true), (DECLARED[1], false)] {
        let mut kernel = kernel();
        let task = kernel.born(TaskId::NONE);
        kernel.choose(task, 0, 2);
        kernel.waits(task);
        kernel.heard(0);
        let heard = kernel.heard[0].clone();
        kernel.engine.replace_policy(0, |_| Box::new(Listener { declares, heard, ..Listener::default() }));
        kernel.engine.start_over(0, &mut Outcome::default());
        kernel.engine.introduce(0, u32::MAX, &mut Outcome::default());
        let mut expected = vec![(Call::TaskNew, task.slot, 0)];
        expected.extend(told.then_some((Call::TaskParams, task.slot, 2)));
        assert_eq!(kernel.heard(0), expected);
    }
}

#[test]
fn bytes_that_are_no_parameters_change_nothing() {
    let kernel = kernel();
    let task = kernel.born(TaskId::NONE);
    kernel.waits(task);
    kernel.heard(0);
    let mut outcome = Outcome::default();
    kernel.engine.deliver(&Event { task, ..Event::new(EventKind::TaskParams, 0) }, &[0; 39], &mut outcome);
    assert_eq!((outcome.status, kernel.heard(0)), (ekiden_host::abi::Status::Invalid as i32, vec![]));
}

#[test]
fn parameters_for_a_task_that_dies_meanwhile_do_not_reach_the_next_in_its_slot() {
    let kernel = Arc::new(kernel());
    let old = kernel.born(TaskId::NONE);
    kernel.waits(old);
    let born = Arc::new(Mutex::new(None));
    let (machine, new) = (kernel.clone(), born.clone());
    *kernel.meanwhile.lock().unwrap() = Some(Box::new(move || {
        machine.dies(old);
        let task = machine.born(TaskId::NONE);
        machine.waits(task);
        *new.lock().unwrap() = Some(task);
    }));
    kernel.choose(old, 0, 9);
    let new = born.lock().unwrap().take().expect("the policy was told");
    assert_eq!(kernel.tasks.lock().unwrap()[new.slot as usize], 0, "a new task has what was set for another one");
    // The entry is not lost: there is room for as many tasks as before.
    let others: Vec<u32> = (1..TASKS).map(|_| kernel.born(TaskId::NONE).slot).collect();
    assert!(others.contains(&old.slot), "{others:?}");
    assert_eq!(kernel.engine.tasks().len(), TASKS);
}

#[test]
fn a_slot_is_given_back_once_however_many_set_parameters_while_its_task_dies() {
    let kernel = Arc::new(kernel());
    let old = kernel.born(TaskId::NONE);
    kernel.waits(old);
    let machine = kernel.clone();
    *kernel.meanwhile.lock().unwrap() = Some(Box::new(move || {
        // Another caller, which is done before the task dies.
        machine.choose(old, 0, 8);
        machine.dies(old);
    }));
    kernel.choose(old, 0, 9);
    assert!(kernel.engine.tasks().is_empty());
    let all: std::collections::BTreeSet<u32> = (0..TASKS).map(|_| kernel.born(TaskId::NONE).slot).collect();
    assert_eq!(all.len() as u32, TASKS);
}
