//! The engine between a host made of nothing and real policies: what it lets through, hands back and counts.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use ekiden::{CpuId, CpuMask, Env, RefusalReason, Scheduler, TaskId, Topology};
use ekiden_engine::{
    CONTRACT_VIOLATIONS_ALLOWED, Checks, ContractViolationKind, Engine, EngineHost, IdleCpus, Phase, Scan, State,
    TRANSITIONS, Transition,
};
use ekiden_host::abi::{Event, EventKind, Outcome, Status, enqueue_flags, init_flags, pick_flags};
use ekiden_host::{Adapter, Host};
use ekiden_policies::{Fifo, Wfq};
use expect_test::expect;
use proptest::prelude::*;

const CPUS: u32 = 2;
const TASKS: u32 = 8;

/// A host on which everything may run everywhere, except what `forbidden` says for CPU 1.
struct Anywhere {
    idle: Arc<IdleCpus>,
    forbidden: AtomicU64,
    /// The tasks that are in a read section, a bit each.
    readers: AtomicU64,
}

impl Host for Anywhere {
    fn now_ns(&self) -> u64 {
        0
    }

    fn may_run(&self, task: TaskId, cpu: CpuId) -> bool {
        cpu == 0 || self.forbidden.load(Relaxed) & 1 << task.slot == 0
    }

    fn allowed_cpus(&self, _: TaskId, cpus: &mut CpuMask) {
        *cpus = CpuMask::first_n(CPUS);
    }

    fn idle_cpus(&self, cpus: &mut CpuMask) {
        self.idle.copy_to(cpus);
    }
}

impl EngineHost for Anywhere {
    fn is_in_read_section(&self, task: TaskId) -> bool {
        self.readers.load(Relaxed) & 1 << task.slot != 0
    }
}

struct Bench {
    engine: Engine,
    host: Arc<Anywhere>,
}

impl Bench {
    fn new<S: Scheduler>() -> Self {
        let idle = Arc::new(IdleCpus::new(CPUS));
        let host = Arc::new(Anywhere { idle: idle.clone(), forbidden: AtomicU64::new(0), readers: AtomicU64::new(0) });
        let env = Env::new(Topology::flat(CPUS), TASKS, S::PARAMS, "").unwrap();
        let policy = Box::new(Adapter::<S>::new(&env, host.clone()));
        Self { engine: Engine::new(policy, host.clone(), idle, CPUS, TASKS), host }
    }

    fn event(&self, event: Event) -> Outcome {
        let mut outcome = Outcome::default();
        // The name of a new task.
        self.engine.deliver(&event, &event.args[0].to_ne_bytes(), &mut outcome);
        outcome
    }

    fn about(&self, kind: EventKind, cpu: CpuId, task: TaskId, flags: u64) -> Outcome {
        self.event(Event { task, flags, ..Event::new(kind, cpu) })
    }

    /// A task that the host calls `name`.
    fn task(&self, name: u64) -> TaskId {
        let task = self.event(Event { args: [name, 100 + name], ..Event::new(EventKind::TaskInit, 0) }).task;
        self.about(EventKind::TaskEnable, 0, task, 0);
        task
    }

    /// Tasks that never wait, until there is no room for one.
    fn fill(&self) {
        let init = |name| self.event(Event { args: [name, name], ..Event::new(EventKind::TaskInit, 0) });
        assert!((100..).any(|name| init(name).status == Status::Full as i32));
    }

    fn enqueue(&self, cpu: CpuId, task: TaskId) -> Outcome {
        self.about(EventKind::Enqueue, cpu, task, enqueue_flags::WAKEUP)
    }

    fn pick(&self, cpu: CpuId) -> Outcome {
        self.about(EventKind::Pick, cpu, TaskId::NONE, 0)
    }

    fn phase(&self, task: TaskId) -> Option<Phase> {
        self.engine.tasks().iter().find(|view| view.id == task).map(|view| view.state.phase())
    }
}

#[test]
fn a_task_runs_where_it_waits_and_nowhere_else() {
    let bench = Bench::new::<Fifo>();
    let task = bench.task(7);
    bench.enqueue(1, task);
    assert_eq!(bench.pick(0).status, Status::Done as i32);
    let outcome = bench.pick(1);
    assert_eq!((outcome.status, outcome.host_task, outcome.task), (Status::Run as i32, 7, task));
    assert_eq!(bench.pick(1).status, Status::Done as i32);
    assert_eq!(bench.engine.totals().unexpected_transitions, 0);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "an outcome comes in zeroed")]
fn a_host_that_hands_in_an_outcome_for_the_second_time_is_found_out() {
    let bench = Bench::new::<Fifo>();
    bench.enqueue(0, bench.task(1));
    let mut outcome = bench.pick(0);
    bench.engine.deliver(&Event::new(EventKind::Pick, 1), &[], &mut outcome);
}

#[test]
fn a_task_that_gives_way_is_kept_if_nothing_else_waits() {
    let bench = Bench::new::<Fifo>();
    let task = bench.task(1);
    bench.enqueue(0, task);
    bench.pick(0);
    let outcome = bench.about(EventKind::Pick, 0, task, pick_flags::PREV_RUNNABLE);
    assert_eq!((outcome.status, bench.phase(task)), (Status::KeepPrevious as i32, Some(Phase::Running)));
}

#[test]
fn a_task_that_leaves_its_cpu_is_not_moved_and_the_cpu_that_wanted_it_is_told() {
    let bench = Bench::new::<Wfq>();
    let (first, second) = (bench.task(1), bench.task(2));
    bench.enqueue(0, first);
    bench.pick(0);
    bench.enqueue(0, second);
    // The first one used up its slice and the second one runs; the kernel has not queued the first one yet.
    let outcome = bench.event(Event {
        task: first,
        flags: pick_flags::PREV_RUNNABLE,
        runtime_ns: 10_000_000,
        ..Event::new(EventKind::Pick, 0)
    });
    assert_eq!(outcome.host_task, 2);
    assert_eq!((bench.pick(1).status, bench.phase(first)), (Status::Done as i32, Some(Phase::ReadyByTick)));
    let outcome = bench.about(EventKind::Enqueue, 0, first, 0);
    assert_eq!(outcome.kicks.iter().collect::<Vec<_>>(), [1]);
    assert_eq!(bench.pick(1).host_task, 1);
}

#[test]
fn balancing_respects_where_a_task_may_run() {
    let bench = Bench::new::<Wfq>();
    let task = bench.task(1);
    bench.enqueue(0, task);
    bench.host.forbidden.store(1 << task.slot, Relaxed);
    assert_eq!(bench.pick(1).status, Status::Done as i32);
    bench.host.forbidden.store(0, Relaxed);
    assert_eq!(bench.pick(1).host_task, 1);
    assert_eq!(bench.engine.totals().migrations, 1);
}

#[test]
fn a_task_woken_for_an_idle_cpu_is_placed_at_once() {
    let bench = Bench::new::<Fifo>();
    let task = bench.task(3);
    bench.pick(1);
    let flags = enqueue_flags::WAKEUP | enqueue_flags::MAY_PLACE;
    let outcome = bench.about(EventKind::Enqueue, 1, task, flags);
    assert_eq!((outcome.status, outcome.host_task), (Status::Run as i32, 3));
    // A busy CPU is not interfered with.
    let other = bench.task(4);
    assert_eq!(bench.about(EventKind::Enqueue, 1, other, flags).status, Status::Done as i32);
}

#[test]
fn another_task_of_an_idle_cpu_comes_first_if_the_policy_says_so() {
    let bench = Bench::new::<Fifo>();
    let (first, second) = (bench.task(1), bench.task(2));
    bench.pick(1);
    bench.enqueue(1, first);
    let outcome = bench.about(EventKind::Enqueue, 1, second, enqueue_flags::WAKEUP | enqueue_flags::MAY_PLACE);
    assert_eq!((outcome.status, outcome.kicks.iter().collect::<Vec<_>>()), (Status::Done as i32, vec![1]));
    let order = [bench.pick(1).host_task, bench.pick(1).host_task];
    assert_eq!(
        {
            let mut sorted = order;
            sorted.sort();
            sorted
        },
        [1, 2],
        "both still run: {order:?}"
    );
}

#[test]
fn a_sleep_is_understood_from_what_follows_it() {
    let bench = Bench::new::<Fifo>();
    let task = bench.task(1);
    bench.enqueue(0, task);
    bench.pick(0);
    bench.about(EventKind::Pick, 0, task, 0);
    assert_eq!(bench.phase(task), Some(Phase::Blocked));
    bench.enqueue(0, task);
    bench.pick(0);
    // Here the CPU never asked after the task: only the wake-up tells.
    bench.enqueue(1, task);
    assert_eq!(bench.pick(1).host_task, 1);
    assert_eq!(bench.engine.totals().unexpected_transitions, 0);
}

#[test]
fn the_token_of_a_task_that_left_is_worthless() {
    let bench = Bench::new::<Fifo>();
    let task = bench.task(1);
    bench.enqueue(0, task);
    bench.about(EventKind::TaskDisable, 0, task, 0);
    // The entry has a new owner, and the policy still holds the old token.
    let next = bench.task(2);
    assert_eq!(next.slot, task.slot);
    assert_eq!(bench.pick(0).status, Status::Done as i32);
    assert_eq!(bench.engine.contract_violations().0, 0, "no policy made a contract violation");
    assert_eq!(bench.about(EventKind::TaskExit, 0, task, 0).status, Status::Invalid as i32, "the old id is gone");
    assert_eq!(bench.engine.tasks().len(), 1);
}

#[test]
fn a_task_brought_to_a_cpu_that_leaves_goes_on_elsewhere() {
    let bench = Bench::new::<Fifo>();
    let task = bench.task(1);
    bench.enqueue(1, task);
    let outcome = bench.about(EventKind::CpuOffline, 1, TaskId::NONE, 0);
    assert_eq!(outcome.kicks.iter().collect::<Vec<_>>(), [0]);
    assert_eq!(bench.pick(0).host_task, 1);
}

#[test]
fn a_full_table_refuses_and_goes_on() {
    let bench = Bench::new::<Fifo>();
    let tasks: Vec<TaskId> = (0..u64::from(TASKS)).map(|name| bench.task(name)).collect();
    let init = Event { args: [99, 99], ..Event::new(EventKind::TaskInit, 0) };
    assert_eq!(bench.event(init).status, Status::Full as i32);
    bench.about(EventKind::TaskExit, 0, tasks[3], 0);
    assert_eq!(bench.event(init).status, Status::Done as i32);
}

#[test]
fn a_task_is_made_by_its_name_which_only_a_host_has() {
    let bench = Bench::new::<Fifo>();
    let init = Event { args: [1, 101], ..Event::new(EventKind::TaskInit, 0) };
    let mut outcome = Outcome::default();
    bench.engine.deliver(&init, &[], &mut outcome);
    assert_eq!((outcome.status, outcome.task), (Status::Invalid as i32, TaskId::NONE));
    assert!(bench.engine.tasks().is_empty());
}

/// A tick of CPU 0, which runs `task`, while this many tasks beyond the table wait for it.
fn tick(bench: &Bench, task: TaskId, beyond: u64) -> Outcome {
    bench.event(Event { task, args: [beyond, 0], ..Event::new(EventKind::Tick, 0) })
}

#[test]
fn tasks_beyond_the_table_are_counted_until_they_have_room_or_leave() {
    let bench = Bench::new::<Fifo>();
    let tasks: Vec<TaskId> = (0..u64::from(TASKS)).map(|name| bench.task(name)).collect();
    let init = |flags| bench.event(Event { flags, args: [99, 99], ..Event::new(EventKind::TaskInit, 0) }).status;
    for _ in 0..3 {
        assert_eq!(init(0), Status::Full as i32);
    }
    assert_eq!(init(init_flags::AGAIN), Status::Full as i32);
    assert_eq!(bench.engine.beyond(), 3);
    bench.about(EventKind::TaskExit, 0, TaskId::NONE, 0);
    assert_eq!(bench.engine.beyond(), 2);
    bench.about(EventKind::TaskExit, 0, tasks[3], 0);
    assert_eq!((init(init_flags::AGAIN), bench.engine.beyond()), (Status::Done as i32, 1));
    for _ in 0..3 {
        bench.about(EventKind::TaskDisable, 0, TaskId::NONE, 0);
    }
    assert_eq!(bench.engine.beyond(), 0);
}

#[test]
fn tasks_beyond_the_table_have_a_cpu_as_often_as_they_are_many() {
    for (beyond, waiting, turns) in [(1, 0, 12), (3, 5, 8), (1, 7, 3), (100, 1, 22)] {
        let bench = Bench::new::<Fifo>();
        let tasks: Vec<TaskId> = (0..=waiting).map(|name| bench.task(name)).collect();
        bench.fill();
        tasks.iter().for_each(|task| _ = bench.enqueue(0, *task));
        let runs = bench.pick(0).task;
        for number in [1, 2] {
            bench.pick(1);
            let scan = Scan { number, most: 8, apart_ms: 1000, hears_ticks: true };
            assert_eq!(bench.engine.find_starved(scan, 0, TASKS, &mut Outcome::default()), None);
        }
        let mut had = 0;
        for _ in 0..25 {
            let kicks = tick(&bench, runs, beyond).kicks;
            let gives_way = |flags| bench.about(EventKind::Pick, 0, TaskId::NONE, flags);
            if !kicks.iter().any(|cpu| cpu == 0) {
                continue;
            }
            had += 1;
            let outcome = gives_way(0);
            assert_eq!((outcome.status, outcome.cpu), (Status::Beyond as i32, 0));
        }
        assert_eq!(had, turns, "{beyond} beyond the table, {waiting} that wait");
        // None of them waits after all.
        let outcome = bench.about(EventKind::Pick, 0, TaskId::NONE, pick_flags::POLICIES);
        assert_eq!(outcome.status == Status::Run as i32, waiting > 0);
        // And there are none any more.
        bench.about(EventKind::TaskExit, 0, TaskId::NONE, 0);
        assert!(tick(&bench, runs, 0).kicks.is_empty());
        assert_ne!(bench.pick(0).status, Status::Beyond as i32);
    }
}

#[test]
fn a_task_that_gives_way_for_one_beyond_the_table_waits_with_its_policy() {
    let bench = Bench::new::<Fifo>();
    let task = bench.task(1);
    bench.fill();
    bench.enqueue(0, task);
    assert_eq!(bench.pick(0).task, task);
    while !tick(&bench, task, 5).kicks.iter().any(|cpu| cpu == 0) {}
    let outcome = bench.about(EventKind::Pick, 0, task, pick_flags::PREV_RUNNABLE);
    assert_eq!((outcome.status, outcome.cpu), (Status::Beyond as i32, 0));
    assert_eq!(bench.phase(task), Some(Phase::ReadyByTick));
    let outcome = bench.about(EventKind::Pick, 0, TaskId::NONE, pick_flags::POLICIES);
    assert_eq!((outcome.status, outcome.task), (Status::KeepPrevious as i32, task));
}

/// It is waiting where a scan comes by, and runs at the tick: still one of two.
#[test]
fn a_task_that_was_counted_while_it_waited_is_not_counted_again_while_it_runs() {
    let bench = Bench::new::<Fifo>();
    let task = bench.task(1);
    bench.fill();
    bench.enqueue(0, task);
    let scan = Scan { number: 1, most: 8, apart_ms: 1000, hears_ticks: true };
    assert_eq!(bench.engine.find_starved(scan, 0, TASKS, &mut Outcome::default()), None);
    assert_eq!(bench.pick(0).task, task);
    let turns = (0..25).filter(|_| tick(&bench, task, 1).kicks.iter().any(|cpu| cpu == 0)).count();
    assert_eq!(turns, 12);
}

/// A scan meets a CPU at one moment: what one of three counts that the others do not, more or less, is not believed.
#[test]
fn what_a_scan_counts_at_one_moment_does_not_decide_alone() {
    let bench = Bench::new::<Fifo>();
    let tasks: Vec<_> = (1..=8).map(|name| bench.task(name)).collect();
    bench.fill();
    let (few, many) = tasks.split_at(3);
    few.iter().for_each(|task| _ = bench.enqueue(0, *task));
    let runs = bench.pick(0).task;
    let turns_after = |number| {
        let scan = Scan { number, most: 8, apart_ms: 1000, hears_ticks: true };
        assert_eq!(bench.engine.find_starved(scan, 0, TASKS, &mut Outcome::default()), None);
        (0..250).filter(|_| tick(&bench, runs, 3).kicks.iter().any(|cpu| cpu == 0)).count()
    };
    // Until two have counted them, there is the one that runs.
    assert_eq!([1, 2, 3].map(turns_after), [180, 120, 120]);
    let wake = |tasks: &[_]| tasks.iter().for_each(|task| _ = bench.enqueue(0, *task));
    let sleep = |tasks: &[_]| tasks.iter().for_each(|task| _ = bench.about(EventKind::Block, 0, *task, 0));
    wake(many);
    assert_eq!(turns_after(4), 120);
    sleep(many);
    assert_eq!([5, 6].map(turns_after), [120; 2]);
    sleep(&few[1..]);
    assert_eq!([7, 8].map(turns_after), [120, 180]);
    // And those that stay are counted by the second.
    wake(&few[1..]);
    wake(many);
    assert_eq!([9, 10].map(turns_after), [180, 60]);
}

#[test]
fn a_task_that_sleeps_in_the_turn_of_those_beyond_the_table_ends_no_turn_of_theirs() {
    let bench = Bench::new::<Fifo>();
    let [sleeper, busy] = [1, 2].map(|name| bench.task(name));
    bench.fill();
    [sleeper, busy].iter().for_each(|task| _ = bench.enqueue(0, *task));
    assert_eq!(bench.pick(0).task, sleeper);
    while !tick(&bench, sleeper, 5).kicks.iter().any(|cpu| cpu == 0) {}
    let outcome = bench.about(EventKind::Pick, 0, sleeper, 0);
    assert_eq!((outcome.status, outcome.cpu), (Status::Beyond as i32, 0));
    assert_eq!(bench.phase(sleeper), Some(Phase::Blocked));
}

#[test]
fn a_cpu_without_work_looks_for_tasks_beyond_the_table() {
    let bench = Bench::new::<Fifo>();
    assert_eq!(bench.pick(0).status, Status::Done as i32);
    (0..=u64::from(TASKS))
        .for_each(|name| _ = bench.event(Event { args: [name, 1], ..Event::new(EventKind::TaskInit, 0) }));
    let outcome = bench.pick(0);
    assert_eq!((outcome.status, outcome.cpu), (Status::Beyond as i32, 1));
}

#[test]
fn nonsense_from_a_host_changes_nothing() {
    let bench = Bench::new::<Fifo>();
    let unknown = TaskId { slot: 1_000_000, generation: 1 };
    for (kind, task) in [(0, TaskId::NONE), (4_000_000, TaskId::NONE), (EventKind::Enqueue as u32, unknown)] {
        assert_eq!(bench.event(Event { kind, task, ..Event::default() }).status, Status::Invalid as i32);
    }
    assert_eq!(bench.pick(1_000_000).status, Status::Invalid as i32);
    assert!(bench.engine.fault().is_none());
}

/// Wants slices without end, and a CPU that does not exist beside one that does.
struct Boundless(ekiden::SpinLock<ekiden::FifoQueue<Self>>);

#[ekiden::policy]
impl Scheduler for Boundless {
    fn new(_: &Env) -> Self {
        Self(ekiden::SpinLock::default())
    }

    fn enqueue(&self, cx: &ekiden::Cx<'_>, _: &ekiden::Task, token: ekiden::Schedulable<Self>) {
        cx.resched(1);
        cx.resched(CPUS);
        self.0.lock().push_back(token);
    }

    fn pick_next_task(&self, cx: &ekiden::Cx<'_>, _: CpuId) -> Option<ekiden::Schedulable<Self>> {
        cx.set_slice_ns(u64::MAX);
        self.0.lock().pop_front()
    }
}

#[test]
fn a_slice_without_end_is_the_usual_one_and_a_cpu_that_does_not_exist_is_left_out() {
    let bench = Bench::new::<Boundless>();
    let task = bench.task(5);
    assert_eq!(bench.enqueue(0, task).kicks.iter().collect::<Vec<_>>(), [1]);
    assert_eq!(bench.engine.contract_violations().1.unwrap().kind, ContractViolationKind::BadCpu);
    let outcome = bench.pick(0);
    assert_eq!((outcome.status, outcome.slice_ns), (Status::Run as i32, 0));
    let (contract_violations, last) = bench.engine.contract_violations();
    assert_eq!((contract_violations, last.unwrap().kind), (2, ContractViolationKind::AbsurdSlice));
}

#[test]
fn a_task_that_waits_in_too_many_scans_without_running_ends_its_policy() {
    let bench = Bench::new::<Fifo>();
    let (first, second) = (bench.task(1), bench.task(2));
    // Both are idle.
    (0..2).for_each(|cpu| _ = bench.pick(cpu));
    bench.enqueue(0, first);
    bench.enqueue(1, second);
    let scan = |number| {
        let mut outcome = Outcome::default();
        let scan = Scan { number, most: 3, apart_ms: 100, hears_ticks: true };
        assert_eq!(bench.engine.find_starved(scan, 0, TASKS, &mut outcome), None);
        outcome.status
    };
    for number in 1..20 {
        // The first one runs, and waits again with more CPU time; the second one sleeps once, which ends its wait too.
        bench.pick(0);
        bench.event(Event { task: first, runtime_ns: u64::from(number) * 1000, ..Event::new(EventKind::Enqueue, 0) });
        if number == 3 {
            bench.pick(1);
            bench.about(EventKind::Block, 1, second, 0);
            bench.pick(1);
            assert_eq!(scan(number), Status::Done as i32);
            bench.enqueue(1, second);
            continue;
        }
        let status = scan(number);
        // Seen first in scan 4.
        assert_eq!(status == Status::Fault as i32, number >= 7, "scan {number}");
    }
    let fault = bench.engine.fault().unwrap().to_string();
    assert_eq!(fault, "a task has waited for 300 ms without running (PID 102) (on CPU 1)");
}

#[test]
fn a_task_of_little_weight_may_wait_for_its_fair_share() {
    // In scans of 100 ms: turns of 25 ms, as many as the other task weighs more, and the own one; beside none, as long as any.
    const NICE_0: Option<i64> = Some(0);
    // If that explains more than a task may wait otherwise, its CPU gives it turns from then on, if it can, as here it cannot.
    let all =
        [(0, NICE_0, 3), (5, NICE_0, 3), (19, NICE_0, 250), (10, Some(-20), 250), (19, Some(-20), 250), (19, None, 3)];
    for (nice, other, most) in all {
        let bench = Bench::new::<Fifo>();
        let (waits, runs) = (bench.task(1), bench.task(2));
        bench.pick(0);
        if let Some(nice) = other {
            bench.event(Event { task: runs, args: [nice as u64, 0], ..Event::new(EventKind::Nice, 0) });
            bench.enqueue(0, runs);
            bench.pick(0);
        }
        bench.event(Event { task: waits, args: [nice, 0], ..Event::new(EventKind::Nice, 0) });
        bench.enqueue(0, waits);
        let starved = |number| {
            let (scan, mut outcome) = (Scan { number, most: 3, apart_ms: 100, hears_ticks: false }, Outcome::default());
            bench.engine.find_starved(scan, 0, TASKS, &mut outcome);
            outcome.status == Status::Fault as i32
        };
        assert_eq!((1..400).find(|number| starved(*number)), Some(1 + most), "nice {nice} beside {other:?}");
    }
}

/// One task runs on CPU 0, and the others, of so little weight that they may wait for very long beside it, have waited there for eight seconds.
fn owed_turns<const N: usize>(bench: &Bench) -> (TaskId, [TaskId; N]) {
    let runs = bench.task(0);
    let nice =
        |task, nice: i64| _ = bench.event(Event { task, args: [nice as u64, 0], ..Event::new(EventKind::Nice, 0) });
    nice(runs, -20);
    bench.enqueue(0, runs);
    bench.pick(0);
    let light = core::array::from_fn(|name| {
        let task = bench.task(1 + name as u64);
        nice(task, 19);
        bench.enqueue(0, task);
        task
    });
    for number in 1..=81 {
        let (scan, mut outcome) = (Scan { number, most: 80, apart_ms: 100, hears_ticks: false }, Outcome::default());
        bench.engine.find_starved(scan, 0, TASKS, &mut outcome);
        assert_eq!(outcome.status, Status::Done as i32, "scan {number}");
        // They were first seen in scan 1.
        assert_eq!(
            outcome.kicks.iter().collect::<Vec<_>>(),
            if number == 81 { vec![0] } else { vec![] },
            "scan {number}"
        );
    }
    (runs, light)
}

fn gives_way(bench: &Bench, task: TaskId) -> Outcome {
    let outcome = bench.about(EventKind::Pick, 0, task, pick_flags::PREV_RUNNABLE);
    if outcome.status == Status::Run as i32 {
        bench.about(EventKind::Enqueue, 0, task, 0);
    }
    outcome
}

#[test]
fn tasks_that_would_wait_longer_than_the_kernel_bears_have_turns() {
    let bench = Bench::new::<Wfq>();
    let (runs, light) = owed_turns::<3>(&bench);
    let mut had = Vec::new();
    let mut last = runs;
    while had.len() < 3 {
        assert!(tick(&bench, last, 0).kicks.iter().any(|cpu| cpu == 0));
        let outcome = gives_way(&bench, last);
        assert_eq!((outcome.status, outcome.slice_ns), (Status::Run as i32, 4_000_000));
        // It is as if it had left the policy.
        assert_eq!(bench.phase(outcome.task), Some(Phase::New));
        had.push(outcome.task);
        last = outcome.task;
        if had.len() < 3 {
            // The next one is the policy's, though more are owed a turn.
            last = gives_way(&bench, last).task;
            assert!(bench.phase(last) == Some(Phase::Running), "{last:?} after {had:?}");
        }
    }
    had.sort_unstable_by_key(|task| task.slot);
    assert_eq!(had, light);
    // None is owed a turn any more, and all four are the policy's.
    assert!(tick(&bench, last, 0).kicks.is_empty());
    let mut picked = [gives_way(&bench, last).task].to_vec();
    picked.extend((0..3).map(|_| bench.pick(0).task));
    picked.sort_unstable_by_key(|task| task.slot);
    assert_eq!(picked, [&[runs][..], &light].concat());
    assert_eq!((bench.engine.totals().turns, bench.engine.totals().unexpected_transitions), (3, 0));
    assert_eq!(bench.engine.contract_violations().0, 0);
}

#[test]
fn a_task_that_has_left_moved_or_slept_is_owed_no_turn() {
    let bench = Bench::new::<Fifo>();
    let (runs, [left, moved, slept]) = owed_turns::<3>(&bench);
    bench.about(EventKind::Enqueue, 1, moved, 0);
    bench.about(EventKind::Block, 0, slept, 0);
    bench.about(EventKind::TaskDisable, 0, left, 0);
    assert_eq!(gives_way(&bench, runs).status, Status::KeepPrevious as i32);
    assert!(tick(&bench, runs, 0).kicks.is_empty());
    assert_eq!((bench.pick(1).task, bench.engine.totals().turns), (moved, 0));
}

#[test]
fn a_cpu_that_leaves_owes_no_turn() {
    let bench = Bench::new::<Fifo>();
    let (runs, [_light]) = owed_turns::<1>(&bench);
    assert!(!tick(&bench, runs, 0).kicks.is_empty());
    bench.about(EventKind::CpuOffline, 0, TaskId::NONE, 0);
    bench.about(EventKind::CpuOnline, 0, TaskId::NONE, 0);
    assert!(tick(&bench, runs, 0).kicks.is_empty());
    assert_eq!(bench.engine.totals().turns, 0);
}

/// Its affinity has changed since it was chosen, and it waits elsewhere in the kernel.
#[test]
fn a_turn_that_cannot_be_taken_brings_the_task_back_to_its_policy() {
    let bench = Bench::new::<Fifo>();
    let (runs, [light]) = owed_turns::<1>(&bench);
    assert_eq!(gives_way(&bench, runs).task, light);
    let args = [RefusalReason::NotAllowed as u64, 1];
    let refused = bench.event(Event { task: light, args, ..Event::new(EventKind::PickRefused, 1) });
    assert_eq!(refused.kicks.iter().collect::<Vec<_>>(), [1]);
    assert_eq!(bench.phase(light), Some(Phase::Ready));
    assert_eq!((bench.pick(1).task, bench.pick(0).task), (light, runs));
    assert_eq!(bench.engine.totals().unexpected_transitions, 0);
}

/// A user with very many tasks that wait for one CPU could otherwise have the policy of all users taken out at will.
#[test]
fn a_task_in_a_crowd_may_wait_until_each_could_have_had_a_turn() {
    const CROWD: u64 = 6;
    // The first scan after which a policy is taken out, and the first that owes a turn.
    let first_of = |bench: &Bench| {
        let mut owes = None;
        let starved = (1..40).find(|number| {
            let (scan, mut outcome) =
                (Scan { number: *number, most: 3, apart_ms: 10, hears_ticks: true }, Outcome::default());
            bench.engine.find_starved(scan, 0, TASKS, &mut outcome);
            owes = owes.or((!outcome.kicks.is_empty()).then_some(*number));
            outcome.status == Status::Fault as i32
        });
        (starved, owes)
    };
    let bench = Bench::new::<Fifo>();
    (0..2).for_each(|cpu| _ = bench.pick(cpu));
    (0..CROWD).for_each(|task| _ = bench.enqueue(0, bench.task(task)));
    // Six turns of 25 ms are fifteen scans.
    assert_eq!(first_of(&bench), (None, Some(1 + 3)));
    // One that waits alone for its CPU has no task before it.
    let bench = Bench::new::<Fifo>();
    (0..2).for_each(|cpu| _ = bench.pick(cpu));
    (0..CROWD).for_each(|task| _ = bench.enqueue(0, bench.task(task)));
    bench.enqueue(1, bench.task(CROWD));
    assert_eq!(first_of(&bench), (Some(1 + 3), Some(1 + 3)));
    // Unless its policy may have an eighth of the CPU only, as another one is asked first.
    let mut bench = Bench::new::<Fifo>();
    let env = Env::new(Topology::flat(CPUS), TASKS, Fifo::PARAMS, "").unwrap();
    let other = Box::new(Adapter::<Fifo>::new(&env, bench.host.clone()));
    assert!(bench.engine.add(other, false, &mut Outcome::default()).is_ok());
    bench.enqueue(1, bench.task(0));
    assert_eq!(first_of(&bench), (None, Some(1 + 3)));
}

/// All others have left its CPU since, or it has left theirs.
#[test]
fn what_has_explained_a_wait_once_explains_it_until_the_task_has_run() {
    let bench = Bench::new::<Fifo>();
    let (runs, [light]) = owed_turns::<1>(&bench);
    bench.about(EventKind::Block, 0, runs, 0);
    bench.about(EventKind::Enqueue, 1, light, 0);
    let scan = |number, runtime_ns| {
        let (scan, mut outcome) = (Scan { number, most: 80, apart_ms: 100, hears_ticks: false }, Outcome::default());
        bench.event(Event { task: light, runtime_ns, ..Event::new(EventKind::Enqueue, 1) });
        bench.engine.find_starved(scan, 0, TASKS, &mut outcome);
        (outcome.status, outcome.kicks.iter().collect::<Vec<_>>())
    };
    assert_eq!(scan(84, 0), (Status::Done as i32, vec![1]));
    assert_eq!(scan(85, 1000), (Status::Done as i32, vec![]));
    assert_eq!(scan(164, 1000), (Status::Done as i32, vec![]));
    assert_eq!(scan(165, 1000).0, Status::Fault as i32);
}

/// Its hypervisor has taken the processor of the CPU: the policy could not have had the task run.
#[test]
fn a_wait_for_a_cpu_that_is_away_is_no_policys_fault_up_to_half_as_long_again() {
    let starved_in = |ticks: &dyn Fn(u32) -> u32, hears_ticks| {
        let bench = Bench::new::<Fifo>();
        let (runs, waits) = (bench.task(1), bench.task(2));
        bench.enqueue(0, runs);
        bench.enqueue(0, waits);
        bench.pick(0);
        (1..40).find(|number| {
            for _ in 0..ticks(*number) {
                tick(&bench, runs, 0);
            }
            bench.pick(1);
            let (scan, mut outcome) =
                (Scan { number: *number, most: 4, apart_ms: 100, hears_ticks }, Outcome::default());
            bench.engine.find_starved(scan, 0, TASKS, &mut outcome);
            outcome.status == Status::Fault as i32
        })
    };
    // It is first seen in scan 1. A tick every 25 ms is enough.
    assert_eq!(starved_in(&|_| 4, true), Some(1 + 4));
    assert_eq!(starved_in(&|number| if number == 3 { 3 } else { 4 }, true), Some(1 + 4 + 1));
    assert_eq!(starved_in(&|number| number % 2 * 4, true), Some(1 + 6));
    assert_eq!(starved_in(&|_| 0, true), Some(1 + 6));
    assert_eq!(starved_in(&|_| 0, false), Some(1 + 4));
}

/// As while sched_ext ends: then what waits waits for the kernel. Once it asks again, scans count again.
#[test]
fn a_wait_while_nothing_is_heard_of_any_cpu_is_no_policys_fault() {
    let starved_in = |is_asked: &dyn Fn(u32) -> bool, runs_one: bool| {
        let bench = Bench::new::<Fifo>();
        let (runs, waits) = (bench.task(1), bench.task(2));
        if runs_one {
            bench.enqueue(1, runs);
            bench.pick(1);
        }
        bench.enqueue(0, waits);
        (1..200).find(|number| {
            if is_asked(*number) {
                bench.pick(1);
            }
            let (scan, mut outcome) =
                (Scan { number: *number, most: 4, apart_ms: 100, hears_ticks: true }, Outcome::default());
            bench.engine.find_starved(scan, 0, TASKS, &mut outcome);
            outcome.status == Status::Fault as i32
        })
    };
    assert_eq!(starved_in(&|_| true, true), Some(1 + 6));
    assert_eq!(starved_in(&|number| number <= 3, true), None);
    assert_eq!(starved_in(&|number| number <= 3 || number > 100, true), Some(97 + 1 + 6));
    // Nothing runs: it is the policy that has nothing run.
    assert_eq!(starved_in(&|number| number <= 3, false), Some(1 + 6));
}

/// All of the kernel waits for it before it frees memory, and complains after 21 seconds.
#[test]
fn a_task_in_a_read_section_has_a_turn_after_a_second_whatever_it_weighs() {
    let bench = Bench::new::<Fifo>();
    let (runs, reads) = (bench.task(1), bench.task(2));
    bench.host.readers.store(1 << reads.slot, Relaxed);
    bench.enqueue(0, runs);
    bench.pick(0);
    bench.enqueue(0, reads);
    let kicks_of = |number| {
        let (scan, mut outcome) = (Scan { number, most: 80, apart_ms: 100, hears_ticks: false }, Outcome::default());
        bench.engine.find_starved(scan, 0, TASKS, &mut outcome);
        outcome.kicks.iter().count()
    };
    assert_eq!((1..=10).map(kicks_of).sum::<usize>(), 0);
    assert_eq!(kicks_of(11), 1);
    assert_eq!(gives_way(&bench, runs).task, reads);
    assert_eq!(gives_way(&bench, reads).task, runs);
}

#[test]
fn tasks_that_come_one_after_the_other_have_not_waited_together() {
    let bench = Bench::new::<Fifo>();
    let mut last = None;
    for number in 1..20 {
        // It is new, waits in one scan, runs and is gone.
        let task = bench.task(1);
        assert!(last.is_none_or(|last: TaskId| last.slot == task.slot), "it is not in the same entry");
        last = Some(task);
        bench.enqueue(0, task);
        let (scan, mut outcome) = (Scan { number, most: 3, apart_ms: 100, hears_ticks: true }, Outcome::default());
        bench.engine.find_starved(scan, 0, TASKS, &mut outcome);
        assert_eq!(outcome.status, Status::Done as i32, "scan {number}");
        bench.pick(0);
        bench.about(EventKind::Block, 0, task, 0);
        bench.about(EventKind::TaskExit, 0, task, 0);
    }
}

/// Drops every token.
struct Careless;

#[ekiden::policy]
impl Scheduler for Careless {
    fn new(_: &Env) -> Self {
        Self
    }

    fn enqueue(&self, _: &ekiden::Cx<'_>, _: &ekiden::Task, token: ekiden::Schedulable<Self>) {
        drop(token);
    }

    fn pick_next_task(&self, _: &ekiden::Cx<'_>, _: CpuId) -> Option<ekiden::Schedulable<Self>> {
        None
    }
}

#[test]
fn a_policy_that_drops_every_token_is_taken_out_with_the_reason() {
    let bench = Bench::new::<Careless>();
    let task = bench.task(5);
    assert_eq!(bench.enqueue(0, task).status, Status::Fault as i32);
    let (contract_violations, last) = bench.engine.contract_violations();
    assert_eq!(
        (contract_violations, last.unwrap().kind),
        (CONTRACT_VIOLATIONS_ALLOWED + 1, ContractViolationKind::TokenLost)
    );
    expect!["more than 64 contract violations, the last one: task_preempt lost a token; a new one was issued (PID 105, CPU 0) (on CPU 0)"]
        .assert_eq(&bench.engine.fault().unwrap().to_string());
    assert_eq!(bench.pick(0).status, Status::Fault as i32, "it is not called again");
}

/// Has one task, and is slow to hear of its first move.
struct Tardy(ekiden::SpinLock<Option<ekiden::Schedulable<Self>>>);

static HAS_ARRIVED: AtomicBool = AtomicBool::new(false);
static MAY_GO_ON: AtomicBool = AtomicBool::new(false);

#[ekiden::policy]
impl Scheduler for Tardy {
    fn new(_: &Env) -> Self {
        Self(ekiden::SpinLock::new(None))
    }

    fn enqueue(&self, _: &ekiden::Cx<'_>, _: &ekiden::Task, token: ekiden::Schedulable<Self>) {
        *self.0.lock() = Some(token);
    }

    fn pick_next_task(&self, _: &ekiden::Cx<'_>, cpu: CpuId) -> Option<ekiden::Schedulable<Self>> {
        self.0.lock().take_if(|token| token.cpu() == cpu)
    }

    fn balance(&self, _: &ekiden::Cx<'_>, cpu: CpuId) -> Option<TaskId> {
        self.0.lock().as_ref().filter(|token| token.cpu() != cpu).map(ekiden::Schedulable::task)
    }

    fn migrate_task_rq(
        &self,
        _: &ekiden::Cx<'_>,
        _: &ekiden::Task,
        new: ekiden::Schedulable<Self>,
    ) -> Option<ekiden::Schedulable<Self>> {
        if !HAS_ARRIVED.swap(true, Relaxed) {
            while !MAY_GO_ON.load(Relaxed) {
                std::hint::spin_loop();
            }
        }
        self.0.lock().replace(new)
    }
}

#[test]
fn moves_of_a_task_that_cross_break_no_contract() {
    // While the policy is told that the task goes from CPU 0 to CPU 1, CPU 0 wants it back, or the kernel puts it there.
    type Crossing = fn(&Bench, TaskId) -> Outcome;
    let crossings: [(bool, Crossing); 2] =
        [(false, |bench, _| bench.pick(0)), (true, |bench, task| bench.about(EventKind::Enqueue, 0, task, 0))];
    for (is_back, crossing) in crossings {
        let bench = Bench::new::<Tardy>();
        let task = bench.task(1);
        bench.enqueue(0, task);
        [&HAS_ARRIVED, &MAY_GO_ON].into_iter().for_each(|flag| flag.store(false, Relaxed));
        let brought = std::thread::scope(|scope| {
            let slow = scope.spawn(|| bench.pick(1));
            while !HAS_ARRIVED.load(Relaxed) {
                std::hint::spin_loop();
            }
            crossing(&bench, task);
            MAY_GO_ON.store(true, Relaxed);
            slow.join().unwrap().task
        });
        assert_eq!(if is_back { bench.pick(0).task } else { brought }, task);
        assert_eq!((bench.engine.contract_violations(), bench.engine.totals().unexpected_transitions), ((0, None), 0));
    }
}

#[test]
fn every_transition_is_in_the_table_once() {
    for (from, by, to) in TRANSITIONS {
        assert_eq!(by.from(*from), Some(*to));
        assert_eq!(TRANSITIONS.iter().filter(|row| row.0 == *from && row.1 == *by).count(), 1, "{from:?} by {by:?}");
    }
    assert_eq!(Transition::Pick.from(Phase::Blocked), None);
    assert_eq!(Transition::Refuse.from(Phase::Ready), None);
}

proptest! {
    #[test]
    fn a_state_keeps_its_parts(cpu in 0_u32..65_536, serial in 1_u32.., phase in 0_usize..8) {
        use Phase::*;
        let phase = [Free, New, Ready, ReadyByTick, Running, Blocked, Throttled, ThrottledByTick][phase];
        let state = State::new(phase, cpu, serial);
        prop_assert_eq!((state.phase(), state.cpu(), state.serial()), (phase, cpu, serial));
        prop_assert!(state.yielding().is_yielding() && !state.yielding().in_phase(Phase::Ready).is_yielding());
        prop_assert_ne!(state.issue(Phase::Ready, cpu).serial(), 0);
    }

    #[test]
    fn any_bytes_from_a_host_are_survived(
        events in proptest::collection::vec((0_u32..30, 0_u32..4, 0_u32..10, 0_u32..4, 0_u64..8, any::<[u64; 2]>()), 0..200),
    ) {
        let bench = Bench::new::<Wfq>();
        for (kind, cpu, slot, generation, flags, args) in events {
            let task = TaskId { slot, generation };
            // A CPU beyond the machine is caught for picks only; other events are the kernel's word.
            let cpu = if kind == EventKind::Pick as u32 { cpu } else { cpu % CPUS };
            bench.event(Event { kind, cpu, task, flags, runtime_ns: args[0] >> 32, args });
        }
        prop_assert!(bench.engine.tasks().len() <= TASKS);
    }
}

#[test]
fn the_id_that_a_slot_will_have_next_names_no_task_yet() {
    let bench = Bench::new::<Fifo>();
    let init = Event { kind: EventKind::TaskInit as u32, args: [1, 1], ..Event::default() };
    let task = bench.event(init).task;
    let leave = |task| bench.event(Event { kind: EventKind::TaskDisable as u32, task, ..Event::default() }).status;
    assert_eq!(leave(task), Status::Done as i32);
    let next = TaskId { generation: task.generation + 1, ..task };
    assert_eq!(leave(next), Status::Invalid as i32);
    assert!(bench.engine.tasks().is_empty());
    assert_eq!(bench.event(init).task, next);
}

/// Events that are unexpected for a task in each state, in the words of the reports.
fn unexpected(bench: &Bench) -> Vec<String> {
    let last = || {
        bench
            .engine
            .policy_slots()
            .next()
            .unwrap()
            .last_unexpected_transition
            .map(|unexpected_transition| unexpected_transition.to_string())
    };
    let refuse = |task| bench.event(Event { task, args: [4, 0], ..Event::new(EventKind::PickRefused, 0) });
    let task = bench.task(1);
    let mut reports = vec![last()];
    bench.enqueue(0, task);
    bench.pick(0);
    bench.about(EventKind::Block, 0, task, 0);
    refuse(task);
    reports.push(last());
    bench.about(EventKind::TaskEnable, 0, task, 0);
    reports.push(last());
    reports.into_iter().flatten().collect()
}

#[test]
fn a_transition_that_nobody_expects_is_named_with_event_state_and_task() {
    let bench = Bench::new::<Fifo>();
    let reports = unexpected(&bench);
    expect![[r#"
        refuse of a task that is blocked (PID 101, CPU 0)
        enable of a task that is ready (PID 101, CPU 0)"#]]
    .assert_eq(&reports.join("\n"));
    assert_eq!(bench.engine.totals().unexpected_transitions, 2);
    assert!(bench.engine.fault().is_none());
}

#[test]
fn checks_can_be_switched_off_or_take_the_policy_out() {
    let bench = Bench::new::<Fifo>();
    assert!(bench.engine.check(0, Checks::Off) && !bench.engine.check(1, Checks::Off));
    assert_eq!(unexpected(&bench), Vec::<String>::new());
    assert_eq!(bench.engine.totals().unexpected_transitions, 0);
    let bench = Bench::new::<Fifo>();
    bench.engine.check(0, Checks::Remove);
    unexpected(&bench);
    expect!["a wrong transition: refuse of a task that is blocked (PID 101, CPU 0) (on CPU 0)"]
        .assert_eq(&bench.engine.fault().unwrap().to_string());
}

#[test]
#[should_panic(expected = "stopped: refuse of a task that is blocked")]
fn checks_can_stop_the_machine() {
    let bench = Bench::new::<Fifo>();
    bench.engine.check(0, Checks::Stop);
    unexpected(&bench);
}

/// The table in ARCHITECTURE.md is what the code says.
#[test]
fn the_table_of_states_in_the_documents_is_that_of_the_code() {
    use Phase::*;
    let phases = [Free, New, Ready, ReadyByTick, Running, Blocked, Throttled, ThrottledByTick];
    let transitions = [
        Transition::Enable,
        Transition::Enqueue,
        Transition::GiveWay,
        Transition::Pick,
        Transition::Refuse,
        Transition::Block,
        Transition::Depart,
        Transition::Throttle,
        Transition::Release,
    ];
    let row = |cells: Vec<&str>| format!("| {} |", cells.join(" | "));
    let head = row(["from"].into_iter().chain(transitions.map(Transition::name)).collect());
    let rows = phases.map(|phase| {
        let to = transitions.map(|by| by.from(phase).map_or("–", Phase::name));
        row([phase.name()].into_iter().chain(to).collect())
    });
    let document = include_str!("../../../../ARCHITECTURE.md");
    for line in [head].iter().chain(&rows) {
        assert!(document.contains(line.as_str()), "ARCHITECTURE.md lacks: {line}");
    }
}
