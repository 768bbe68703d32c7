//! Queues that CPUs share: tokens that are claimed, and idle CPUs that are told of a task.

use std::cell::RefCell;
use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use ekiden::{
    Call, Calls, CpuId, CpuMask, Cx, Env, FifoQueue, RefusalReason, Running, Schedulable, Scheduler, SpinLock, Task,
    TaskId, Topology, WakeFlags, policy,
};
use ekiden_engine::{Answers, Engine, EngineHost, IdleCpus, Phase};
use ekiden_host::abi::{Event, EventKind, Message, Outcome, RawToken, Reply, Status, enqueue_flags, pick_flags};
use ekiden_host::{Adapter, Host, Policy};
use ekiden_policies::{GlobalFifo, LlcFifo};
use proptest::prelude::*;

const CPUS: u32 = 4;
const TASKS: u32 = 8;

/// Which task may run where is a bit for each entry and CPU; what runs where is what the engine said last.
struct Machine {
    idle: Arc<IdleCpus>,
    engine: OnceLock<Answers>,
    forbidden: [AtomicU64; CPUS as usize],
    runs: [AtomicU64; CPUS as usize],
}

impl Host for Machine {
    fn now_ns(&self) -> u64 {
        0
    }

    fn may_run(&self, task: TaskId, cpu: CpuId) -> bool {
        self.forbidden[cpu as usize].load(Relaxed) & 1 << task.slot == 0
    }

    fn allowed_cpus(&self, task: TaskId, cpus: &mut CpuMask) {
        cpus.extend((0..CPUS).filter(|cpu| self.may_run(task, *cpu)));
    }

    fn idle_cpus(&self, cpus: &mut CpuMask) {
        self.idle.copy_to(cpus);
    }

    fn claim(&self, token: RawToken, cpu: CpuId) -> Result<(), RefusalReason> {
        self.engine.get().unwrap().claim(token, cpu, |task, cpu| self.may_run(task, cpu))
    }

    fn take_idle(&self, task: TaskId, among: Option<&CpuMask>) -> Option<CpuId> {
        self.idle.take(task, None, among.map(CpuMask::as_words), |cpu| self.may_run(task, cpu))
    }

    fn running(&self, cpu: CpuId) -> Option<Running> {
        let task = TaskId::from_bits(self.runs[cpu as usize].load(Relaxed));
        let weight = self.engine.get().unwrap().weight_of_running(task, cpu)?;
        Some(Running { task, weight, since_ns: 7 })
    }
}

impl EngineHost for Machine {}

struct Bench {
    engine: Engine,
    host: Arc<Machine>,
}

impl Bench {
    fn new<S: Scheduler>() -> Self {
        let idle = Arc::new(IdleCpus::new(CPUS));
        let host = Arc::new(Machine {
            idle: idle.clone(),
            engine: OnceLock::new(),
            forbidden: Default::default(),
            runs: Default::default(),
        });
        // Two caches of two CPUs.
        let env = Env::new(Topology::regular(1, 2, 2, 1), TASKS, S::PARAMS, "").unwrap();
        let policy = Box::new(Adapter::<S>::new(&env, host.clone()));
        let engine: Engine = Engine::new(policy, host.clone(), idle, CPUS, TASKS);
        host.engine.set(engine.answers()).unwrap();
        Self { engine, host }
    }

    fn event(&self, kind: EventKind, cpu: CpuId, task: TaskId, flags: u64) -> Outcome {
        let mut outcome = Outcome::default();
        self.engine.deliver(&Event { task, flags, ..Event::new(kind, cpu) }, &[], &mut outcome);
        if outcome.status == Status::Run as i32 && kind == EventKind::Pick {
            self.host.runs[cpu as usize].store(outcome.task.to_bits(), Relaxed);
        }
        outcome
    }

    fn task(&self, name: u64) -> TaskId {
        let mut outcome = Outcome::default();
        let init = Event { args: [name, 100 + name], ..Event::new(EventKind::TaskInit, 0) };
        // The name of a new task is the payload.
        self.engine.deliver(&init, &name.to_ne_bytes(), &mut outcome);
        self.event(EventKind::TaskEnable, 0, outcome.task, 0);
        outcome.task
    }

    fn enqueue(&self, cpu: CpuId, task: TaskId) -> Vec<CpuId> {
        self.event(EventKind::Enqueue, cpu, task, enqueue_flags::WAKEUP).kicks.iter().collect()
    }

    /// The name of the task that runs, if there is one.
    fn pick(&self, cpu: CpuId) -> Option<u64> {
        let outcome = self.event(EventKind::Pick, cpu, TaskId::NONE, 0);
        assert!(outcome.kicks.is_empty(), "{outcome:?}");
        (outcome.status == Status::Run as i32).then_some(outcome.host_task)
    }

    /// What runs on `cpu` sleeps, and there is nothing else.
    fn sleep(&self, cpu: CpuId) {
        let task = TaskId::from_bits(self.host.runs[cpu as usize].load(Relaxed));
        assert_eq!(self.event(EventKind::Pick, cpu, task, 0).status, Status::Done as i32);
    }

    fn forbid(&self, task: TaskId, cpu: CpuId, is_forbidden: bool) {
        let mask = &self.host.forbidden[cpu as usize];
        let bit = 1 << task.slot;
        if is_forbidden {
            mask.fetch_or(bit, Relaxed)
        } else {
            mask.fetch_and(!bit, Relaxed)
        };
    }

    fn assert_good(&self) {
        assert_eq!(self.engine.contract_violations(), (0, None));
        assert_eq!(self.engine.totals().unexpected_transitions, 0);
    }
}

#[test]
fn a_cpu_takes_a_task_that_waits_elsewhere_in_one_event() {
    let bench = Bench::new::<GlobalFifo>();
    let task = bench.task(1);
    bench.enqueue(0, task);
    assert_eq!(bench.pick(3), Some(1));
    assert_eq!((bench.engine.totals().migrations, bench.engine.totals().refusals), (1, 0));
    bench.assert_good();
}

#[test]
fn a_task_that_may_not_run_here_keeps_its_place_and_delays_no_other() {
    let bench = Bench::new::<GlobalFifo>();
    let [first, second, third] = [1, 2, 3].map(|name| bench.task(name));
    [first, second, third].into_iter().for_each(|task| drop(bench.enqueue(0, task)));
    bench.forbid(first, 1, true);
    bench.forbid(second, 1, true);
    assert_eq!(bench.pick(1), Some(3));
    assert_eq!(bench.pick(1), None, "it goes idle instead of asking without end");
    assert_eq!((bench.pick(2), bench.pick(3), bench.pick(0)), (Some(1), Some(2), None));
    bench.assert_good();
}

#[test]
fn a_task_that_still_leaves_its_cpu_is_not_claimed_but_who_wanted_it_is_told() {
    let bench = Bench::new::<GlobalFifo>();
    let [first, second] = [1, 2].map(|name| bench.task(name));
    bench.enqueue(0, first);
    bench.pick(0);
    bench.enqueue(0, second);
    // The kernel has not queued the first one yet.
    assert_eq!(bench.event(EventKind::Pick, 0, first, pick_flags::PREV_RUNNABLE).host_task, 2);
    assert_eq!(bench.pick(1), None);
    let outcome = bench.event(EventKind::Enqueue, 0, first, 0);
    assert_eq!(outcome.kicks.iter().collect::<Vec<_>>(), [1]);
    assert_eq!(bench.pick(1), Some(1));
    bench.assert_good();
}

#[test]
fn a_cpu_that_found_something_else_is_not_disturbed_for_what_it_wanted_first() {
    let bench = Bench::new::<GlobalFifo>();
    let [first, second, third] = [1, 2, 3].map(|name| bench.task(name));
    bench.enqueue(0, first);
    bench.pick(0);
    bench.enqueue(0, second);
    assert_eq!(bench.event(EventKind::Pick, 0, first, pick_flags::PREV_RUNNABLE).host_task, 2);
    bench.enqueue(2, third);
    assert_eq!(bench.pick(1), Some(3), "the first one is still leaving");
    assert!(bench.event(EventKind::Enqueue, 0, first, 0).kicks.is_empty());
    assert_eq!(bench.pick(2), Some(1));
    bench.assert_good();
}

#[test]
fn each_task_has_an_idle_cpu_look_for_it_and_no_cpu_is_kicked_twice() {
    let bench = Bench::new::<GlobalFifo>();
    let tasks = [1, 2, 3, 4].map(|name| bench.task(name));
    assert_eq!((bench.pick(1), bench.pick(2), bench.pick(3)), (None, None, None));
    bench.forbid(tasks[0], 1, true);
    assert_eq!(bench.enqueue(0, tasks[0]), [2], "it may not run on CPU 1");
    assert_eq!(bench.enqueue(0, tasks[1]), [1]);
    assert_eq!(bench.enqueue(0, tasks[2]), [3]);
    assert_eq!(bench.enqueue(0, tasks[3]), [], "all of them look already");
    // It was kicked for nothing, and can be kicked again.
    let taken = [bench.pick(1), bench.pick(2), bench.pick(3), bench.pick(0)];
    assert_eq!(taken, [Some(2), Some(1), Some(3), Some(4)]);
    bench.assert_good();
}

#[test]
fn a_cpu_that_was_kicked_for_nothing_can_be_kicked_again() {
    let bench = Bench::new::<GlobalFifo>();
    let [first, second] = [1, 2].map(|name| bench.task(name));
    assert_eq!(bench.pick(1), None);
    assert_eq!(bench.enqueue(0, first), [1]);
    assert_eq!((bench.pick(0), bench.pick(1)), (Some(1), None));
    assert_eq!(bench.enqueue(0, second), [1]);
}

#[test]
fn a_task_that_was_woken_for_an_idle_cpu_has_no_other_one_kicked() {
    let bench = Bench::new::<GlobalFifo>();
    let task = bench.task(1);
    assert_eq!((bench.pick(1), bench.pick(2)), (None, None));
    let flags = enqueue_flags::WAKEUP | enqueue_flags::MAY_PLACE;
    let outcome = bench.event(EventKind::Enqueue, 2, task, flags);
    assert_eq!((outcome.status, outcome.host_task, outcome.kicks.is_empty()), (Status::Run as i32, 1, true));
}

#[test]
fn one_that_waited_longer_goes_before_the_one_that_was_woken_for_an_idle_cpu() {
    let bench = Bench::new::<GlobalFifo>();
    let [older, woken] = [1, 2].map(|name| bench.task(name));
    (1..CPUS).for_each(|cpu| bench.forbid(older, cpu, true));
    assert_eq!((bench.pick(2), bench.pick(3)), (None, None));
    bench.enqueue(0, older);
    (1..CPUS).for_each(|cpu| bench.forbid(older, cpu, false));
    let flags = enqueue_flags::WAKEUP | enqueue_flags::MAY_PLACE;
    let outcome = bench.event(EventKind::Enqueue, 2, woken, flags);
    // CPU 2 asks itself for the older one, and another one for the woken one.
    assert_eq!((outcome.status, outcome.kicks.iter().collect::<Vec<_>>()), (Status::Done as i32, vec![2, 3]));
    assert_eq!((bench.pick(2), bench.pick(3)), (Some(1), Some(2)));
    bench.assert_good();
}

#[test]
fn a_cache_has_its_own_queue_and_helps_the_others_when_that_is_empty() {
    let bench = Bench::new::<LlcFifo>();
    let [first, second, third] = [1, 2, 3].map(|name| bench.task(name));
    assert_eq!((bench.pick(1), bench.pick(2), bench.pick(3)), (None, None, None));
    assert_eq!(bench.enqueue(3, first), [2], "of its own cache first");
    assert_eq!(bench.enqueue(0, second), [1]);
    assert_eq!(bench.enqueue(0, third), [3], "and then of another");
    assert_eq!((bench.pick(2), bench.pick(3), bench.pick(1)), (Some(1), Some(2), Some(3)));
    bench.assert_good();
}

/// Asks what its CPUs run whenever it picks, claims tokens where it may not, and loses none.
struct Curious {
    queue: SpinLock<FifoQueue<Self>>,
    seen: SpinLock<Vec<Option<Running>>>,
}

#[policy]
impl Scheduler for Curious {
    fn new(_: &Env) -> Self {
        Self { queue: SpinLock::default(), seen: SpinLock::default() }
    }

    fn enqueue(&self, cx: &Cx, _: &Task, token: Schedulable<Self>) {
        let mut queue = self.queue.lock();
        if let Some(first) = queue.pop_front() {
            match cx.claim(first) {
                Ok(token) => queue.push_back(token),
                Err(refused) => {
                    assert_eq!(refused.reason, RefusalReason::NotAllowed, "this is no pick");
                    queue.push_back(refused.token);
                }
            }
        }
        queue.push_back(token);
    }

    fn pick_next_task(&self, cx: &Cx, _: CpuId) -> Option<Schedulable<Self>> {
        *self.seen.lock() = (0..CPUS).map(|cpu| cx.running(cpu)).collect();
        self.queue.lock().claim_first(cx)
    }
}

#[test]
fn a_token_is_claimed_in_a_pick_only_and_what_runs_is_known() {
    let bench = Bench::new::<Curious>();
    let [first, second] = [1, 2].map(|name| bench.task(name));
    bench.enqueue(0, first);
    bench.enqueue(1, second);
    assert_eq!((bench.pick(2), bench.pick(0)), (Some(1), Some(2)));
    assert_eq!(bench.pick(3), None);
    let policy = bench.engine.policy(0).unwrap();
    assert!(policy.calls().has(ekiden::Call::PickNextTask));
    assert_eq!(bench.host.running(2), Some(Running { task: first, weight: 1024, since_ns: 7 }));
    bench.event(EventKind::Block, 2, first, 0);
    assert_eq!((bench.host.running(2), bench.host.running(3)), (None, None));
    bench.assert_good();
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Wake(usize, CpuId),
    Look(CpuId),
    Sleep(CpuId),
    Yield(CpuId),
    Forbid(usize, CpuId, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (task, cpu) = (0..TASKS as usize, 0..CPUS);
    let step = prop_oneof![
        4 => (task.clone(), cpu.clone()).prop_map(|(task, cpu)| Step::Wake(task, cpu)),
        4 => cpu.clone().prop_map(Step::Look),
        2 => cpu.clone().prop_map(Step::Sleep),
        2 => cpu.clone().prop_map(Step::Yield),
        // CPU 0 is there for all.
        1 => (task, 1..CPUS, any::<bool>()).prop_map(|(task, cpu, is)| Step::Forbid(task, cpu, is)),
    ];
    prop::collection::vec(step, 0..120)
}

/// Against the plainest model: a list, from which a CPU takes the first that may run there. And whenever nothing is under way, no
/// task waits while a CPU that could have it idles without having been told.
fn check_list(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let bench = Bench::new::<GlobalFifo>();
    let tasks: Vec<TaskId> = (0..u64::from(TASKS)).map(|name| bench.task(name)).collect();
    let mut waiting: Vec<usize> = Vec::new();
    let mut running = [None::<usize>; CPUS as usize];
    let mut idle = [false; CPUS as usize];
    let mut kicked = [false; CPUS as usize];
    for step in steps {
        let outcome = match step {
            Step::Wake(task, cpu) if !waiting.contains(&task) && !running.contains(&Some(task)) => {
                let cpu = if bench.host.may_run(tasks[task], cpu) { cpu } else { 0 };
                waiting.push(task);
                bench.event(EventKind::Enqueue, cpu, tasks[task], enqueue_flags::WAKEUP)
            }
            Step::Look(cpu) | Step::Sleep(cpu) | Step::Yield(cpu) => {
                let previous = running[cpu as usize].take();
                let (id, flags) = match (step, previous) {
                    (Step::Yield(_), Some(task)) => (tasks[task], pick_flags::PREV_RUNNABLE),
                    (Step::Sleep(_), Some(task)) => (tasks[task], 0),
                    (_, Some(task)) => {
                        running[cpu as usize] = Some(task);
                        continue;
                    }
                    _ => (TaskId::NONE, 0),
                };
                kicked[cpu as usize] = false;
                let leaving = previous.filter(|_| flags != 0);
                waiting.extend(leaving);
                let next =
                    waiting.iter().position(|task| bench.host.may_run(tasks[*task], cpu) || Some(*task) == leaving);
                let expected = next.map(|at| waiting.remove(at));
                let mut outcome = bench.event(EventKind::Pick, cpu, id, flags);
                let is_run = outcome.status == Status::Run as i32 || outcome.status == Status::KeepPrevious as i32;
                prop_assert_eq!(is_run.then_some(outcome.host_task as usize), expected);
                running[cpu as usize] = expected;
                idle[cpu as usize] = expected.is_none();
                if let Some(task) = leaving.filter(|task| Some(*task) != expected) {
                    // It has left.
                    let queued = bench.event(EventKind::Enqueue, cpu, tasks[task], 0);
                    queued.kicks.iter().for_each(|cpu| outcome.kicks.add(cpu));
                }
                outcome
            }
            Step::Forbid(task, cpu, is) => {
                // While it sleeps.
                if !waiting.contains(&task) && !running.contains(&Some(task)) {
                    bench.forbid(tasks[task], cpu, is);
                }
                continue;
            }
            Step::Wake(..) => continue,
        };
        outcome.kicks.iter().for_each(|cpu| kicked[cpu as usize] = true);
        let told = kicked.iter().zip(&idle).filter(|(kicked, idle)| **kicked && **idle).count();
        for cpu in (0..CPUS).filter(|cpu| idle[*cpu as usize] && !kicked[*cpu as usize]) {
            let could = waiting.iter().filter(|task| bench.host.may_run(tasks[**task], cpu)).count();
            prop_assert!(could <= told, "CPU {} idles while {:?} wait, and {} look for them", cpu, waiting, told);
        }
    }
    prop_assert_eq!(bench.engine.contract_violations(), (0, None));
    prop_assert_eq!(bench.engine.totals().unexpected_transitions, 0);
    // All that wait run in the end.
    while !waiting.is_empty() {
        let outcome = bench.event(EventKind::Pick, 0, TaskId::NONE, 0);
        prop_assert_eq!(outcome.host_task as usize, waiting.remove(0));
        bench.event(EventKind::Block, 0, outcome.task, 0);
    }
    prop_assert!(bench.engine.tasks().iter().all(|view| view.state.phase() != Phase::Ready));
    Ok(())
}

proptest! {
    #[test]
    fn a_global_fifo_is_a_list_and_no_cpu_idles_beside_work(steps in steps()) {
        check_list(steps)?;
    }
}

/// The CPU that was told of the newest task takes an older one, and the one that is left may not run it, or gets another that only it may
/// run: the idle CPU that may has to hear of it.
#[test]
fn a_task_whose_cpu_took_an_older_one_has_another_cpu_told() {
    use Step::*;
    let may_not = [Look(3), Sleep(2), Sleep(1), Sleep(0), Wake(4, 0), Wake(2, 0), Forbid(1, 1, true), Wake(1, 0)];
    check_list([may_not.as_slice(), &[Look(2), Look(0), Yield(1)]].concat()).unwrap();
    let all_but_one_idle =
        [Look(1), Look(2), Look(3), Wake(7, 0), Look(0), Look(1), Forbid(2, 2, true), Forbid(2, 3, true)];
    let gets_another = [Wake(1, 0), Wake(2, 0), Wake(3, 0), Look(2), Look(1)];
    check_list([all_but_one_idle.as_slice(), &gets_another].concat()).unwrap();
}

/// Where a CPU has taken what another one was told of, the two have changed places, and no third is kicked.
#[test]
fn cpus_that_take_each_others_tasks_have_no_third_one_told() {
    let bench = Bench::new::<GlobalFifo>();
    let [first, second] = [1, 2].map(|name| bench.task(name));
    assert_eq!((bench.pick(1), bench.pick(2), bench.pick(3)), (None, None, None));
    assert_eq!([bench.enqueue(0, first), bench.enqueue(0, second)], [[1], [2]]);
    assert_eq!((bench.pick(2), bench.pick(1)), (Some(1), Some(2)));
    // The second is not left to CPU 1, which may not run it.
    let [third, fourth] = [3, 4].map(|name| bench.task(name));
    [1, 2].into_iter().for_each(|cpu| bench.sleep(cpu));
    bench.forbid(fourth, 1, true);
    assert_eq!([bench.enqueue(0, third), bench.enqueue(0, fourth)], [[1], [2]]);
    let outcome = bench.event(EventKind::Pick, 2, TaskId::NONE, 0);
    assert_eq!((outcome.host_task, outcome.kicks.iter().collect::<Vec<_>>()), (3, vec![3]));
    assert_eq!((bench.pick(1), bench.pick(3)), (None, Some(4)));
    bench.assert_good();
}

/// The next CPU is one of the same cache, where it was one of that cache which was told.
#[test]
fn a_task_is_passed_on_within_the_cache_in_which_it_was_told_of() {
    let bench = Bench::new::<LlcFifo>();
    let [woken, older] = [1, 2].map(|name| bench.task(name));
    assert_eq!((bench.pick(1), bench.pick(2), bench.pick(3)), (None, None, None));
    bench.forbid(older, 1, true);
    (2..CPUS).for_each(|cpu| bench.forbid(older, cpu, true));
    assert_eq!(bench.enqueue(3, older), [], "no idle CPU may run it");
    assert_eq!(bench.enqueue(3, woken), [2]);
    bench.forbid(older, 2, false);
    let outcome = bench.event(EventKind::Pick, 2, TaskId::NONE, 0);
    assert_eq!((outcome.host_task, outcome.kicks.iter().collect::<Vec<_>>()), (2, vec![3]), "and not CPU 1");
    assert_eq!(bench.pick(3), Some(1));
    bench.assert_good();
}

/// Takes whatever is suggested, and asks for it.
struct Content(SpinLock<FifoQueue<Self>>);

#[policy]
impl Scheduler for Content {
    fn new(_: &Env) -> Self {
        Self(SpinLock::default())
    }

    fn select_task_rq(&self, cx: &Cx<'_>, task: &Task, _: CpuId, suggested: CpuId, _: WakeFlags) -> CpuId {
        assert!(cx.may_run(task.id, suggested), "a CPU that is away was suggested");
        suggested
    }

    fn enqueue(&self, _: &Cx<'_>, _: &Task, token: Schedulable<Self>) {
        self.0.lock().push_back(token);
    }

    fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
        self.0.lock().pop_front()
    }
}

/// Where no CPU is idle a kernel suggests where the task ran last.
#[test]
fn a_cpu_on_which_a_task_may_not_run_any_more_is_not_suggested() {
    let bench = Bench::new::<Content>();
    let task = bench.task(1);
    let suggest = |cpu: CpuId| {
        let mut outcome = Outcome::default();
        let event = Event { task, args: [cpu.into(), 0], ..Event::new(EventKind::SelectCpu, 0) };
        bench.engine.deliver(&event, &[], &mut outcome);
        outcome.cpu
    };
    assert_eq!(suggest(3), 3);
    bench.forbid(task, 3, true);
    assert_eq!(suggest(3), 0);
    bench.forbid(task, 0, true);
    assert_eq!(suggest(3), 1);
    bench.assert_good();
}

/// A change of affinity enqueues the task again, on its own CPU, while another CPU is about to run it.
#[test]
fn a_refusal_that_comes_after_the_task_was_put_on_its_queue_anew_changes_nothing() {
    let bench = Bench::new::<GlobalFifo>();
    let task = bench.task(1);
    bench.enqueue(0, task);
    let refuse = |by: u64| {
        let event =
            Event { task, args: [RefusalReason::NotAllowed as u64, by], ..Event::new(EventKind::PickRefused, 0) };
        bench.engine.deliver(&event, &[], &mut Outcome::default());
    };
    // Picked by CPU 1, put on the queue of CPU 0 anew, and refused.
    assert_eq!(bench.pick(1), Some(1));
    bench.event(EventKind::Enqueue, 0, task, 0);
    refuse(2);
    // Picked by CPU 2 meanwhile.
    assert_eq!(bench.pick(1), Some(1));
    bench.event(EventKind::Enqueue, 0, task, 0);
    assert_eq!(bench.pick(2), Some(1));
    refuse(2);
    assert_eq!(bench.pick(3), None);
    // Nothing came between: it waits again.
    refuse(3);
    assert_eq!((bench.pick(0), bench.pick(3)), (Some(1), None));
    bench.assert_good();
}

type Meanwhile = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// Keeps tokens in a list. While it hears of a refusal something else happens, and the newer token that it has then gives way.
#[derive(Clone, Default)]
struct Overtaken {
    tokens: Arc<Mutex<Vec<RawToken>>>,
    meanwhile: Meanwhile,
}

impl Policy for Overtaken {
    fn calls(&self) -> Calls {
        Calls::ALL
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }

    fn deliver(&self, message: &Message, _: &[u8]) -> Reply {
        let mut reply = Reply::default();
        if message.call == Call::PntErr as u32 {
            let happens = self.meanwhile.lock().unwrap().take();
            happens.into_iter().for_each(|happens| happens());
            reply.dropped = self.tokens.lock().unwrap().pop().unwrap_or(RawToken::NONE);
        }
        let mut tokens = self.tokens.lock().unwrap();
        if message.call == Call::PickNextTask as u32 {
            reply.token = tokens.pop().unwrap_or(RawToken::NONE);
        } else if !message.token().is_none() {
            tokens.push(message.token());
        }
        reply
    }
}

#[test]
fn a_newer_token_gives_way_to_that_of_a_refusal_without_violation_and_comes_again() {
    let policy = Overtaken::default();
    let idle = Arc::new(IdleCpus::new(CPUS));
    let (engine, forbidden, runs) = (OnceLock::new(), Default::default(), Default::default());
    let host = Arc::new(Machine { idle: idle.clone(), engine, forbidden, runs });
    let engine: Arc<Engine> = Arc::new(Engine::new(Box::new(policy.clone()), host.clone(), idle, CPUS, TASKS));
    host.engine.set(engine.answers()).unwrap();
    let event = |event: Event| {
        let mut outcome = Outcome::default();
        engine.deliver(&event, &1_u64.to_ne_bytes(), &mut outcome);
        outcome
    };
    let task = event(Event { args: [1, 1], ..Event::new(EventKind::TaskInit, 0) }).task;
    event(Event { task, ..Event::new(EventKind::TaskEnable, 0) });
    let enqueue = Event { task, ..Event::new(EventKind::Enqueue, 0) };
    event(enqueue);
    assert!(!task.is_none());
    assert_eq!(event(Event::new(EventKind::Pick, 0)).task, task);
    // The kernel puts it on its queue anew while the policy hears that it was refused.
    let anew = engine.clone();
    let elsewhere = Event { task, ..Event::new(EventKind::Enqueue, 1) };
    let again = move || anew.deliver(&elsewhere, &[], &mut Outcome::default());
    *policy.meanwhile.lock().unwrap() = Some(Box::new(again));
    event(Event { task, args: [RefusalReason::NotAllowed as u64, 1], ..Event::new(EventKind::PickRefused, 0) });
    assert_eq!(engine.contract_violations(), (0, None));
    assert_eq!(event(Event::new(EventKind::Pick, 1)).task, task);
}

thread_local! {
    /// What another CPU does while the policy hears that a task has slept.
    static MEANWHILE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// A queue for all CPUs, of a policy that hears when a task sleeps.
struct Listening(SpinLock<FifoQueue<Self>>);

#[policy]
impl Scheduler for Listening {
    fn new(_: &Env) -> Self {
        Self(SpinLock::default())
    }

    fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
        self.0.lock().push_back(token);
    }

    fn pick_next_task(&self, cx: &Cx, _: CpuId) -> Option<Schedulable<Self>> {
        self.0.lock().claim_first(cx)
    }

    fn task_blocked(&self, _: &Cx, _: &Task) {
        if let Some(act) = MEANWHILE.take() {
            act();
        }
    }

    fn migrate_task_rq(&self, _: &Cx, task: &Task, new: Schedulable<Self>) -> Option<Schedulable<Self>> {
        let mut queue = self.0.lock();
        let old = queue.remove(task.id);
        queue.push_back(new);
        old
    }

    fn task_departed(&self, _: &Cx, task: &Task) -> Option<Schedulable<Self>> {
        self.0.lock().remove(task.id)
    }
}

/// The kernel asks for an idle CPU before a woken task is on a queue, so another CPU may pick it before that, and give it back while it is
/// being put there. The two once issued tokens with one number for two CPUs: in a storm, under a right policy, 64 contract violations in a row.
#[test]
fn a_task_that_is_given_back_while_it_is_put_on_a_queue_has_one_good_token() {
    let bench = Arc::new(Bench::new::<Listening>());
    let task = bench.task(1);
    bench.enqueue(0, task);
    assert_eq!(bench.pick(1), Some(1));
    // CPU 1 could not run it, as it is on no queue yet.
    let other = bench.clone();
    MEANWHILE.set(Some(Box::new(move || {
        let args = [RefusalReason::NotAllowed as u64, 2];
        let refused = Event { task, args, ..Event::new(EventKind::PickRefused, 1) };
        other.engine.deliver(&refused, &[], &mut Outcome::default());
    })));
    bench.enqueue(0, task);
    for cpu in [1, 0] {
        assert_eq!(bench.pick(cpu), (cpu == 1).then_some(1));
        bench.assert_good();
    }
}
