//! How tasks wait for each other, for devices, for time, and for their group's next period.

use std::cell::RefCell;

use ekiden::Group;
use ekiden::prelude::*;
use ekiden_policies::{Fifo, Wfq};
use ekiden_sim::{Jitter, Machine, Model, SimError, SimReport, Simulation};
use ekiden_workload::{Device, Limit, Report, Step, TaskSpec, WaitMode, Workload, rt_app, spec};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

fn machine(cpus: u32) -> Machine {
    Machine::flat(cpus).with_model(Model::free())
}

fn run(cpus: u32, tasks: impl IntoIterator<Item = TaskSpec>) -> Report {
    run_load(&Workload::new("test", cpus, tasks)).report
}

fn run_load(load: &Workload) -> SimReport {
    Simulation::of::<Fifo>(machine(load.cpus), "").run(load).unwrap()
}

#[track_caller]
fn near(value_ns: u64, expected_ns: u64) {
    let off_ns = value_ns.abs_diff(expected_ns);
    assert!(off_ns <= expected_ns / 50 + 20 * US, "{value_ns} ns where {expected_ns} ns is due");
}

fn work(ns: u64) -> Step {
    Step::Run { ns }
}

fn locked(mode: WaitMode, ns: u64) -> Vec<Step> {
    vec![Step::Lock { lock: 0, mode }, work(ns), Step::Unlock { lock: 0 }]
}

#[test]
fn who_waits_for_a_lock_sleeps_or_uses_its_cpu() {
    let total_cpu_ns = |mode| {
        let report = run(2, [TaskSpec::new("task", locked(mode, 10 * MS)).copies(2)]);
        near(report.wall_ns, 20 * MS);
        report.tasks.iter().map(|task| task.cpu_ns).sum()
    };
    near(total_cpu_ns(WaitMode::Block), 20 * MS);
    near(total_cpu_ns(WaitMode::Spin), 30 * MS);
    near(total_cpu_ns(WaitMode::SpinThenBlock { spin_ns: 3 * MS }), 23 * MS);
}

#[test]
fn a_holder_that_is_preempted_makes_others_spin() {
    // The holder shares CPU 0 with a hog, so that its 30 ms take about 60.
    let report = run(
        2,
        [
            TaskSpec::new("holder", locked(WaitMode::Spin, 30 * MS)).on([0]),
            TaskSpec::new("hog", vec![work(100 * MS)]).on([0]),
            TaskSpec::new("spinner", [vec![work(MS)], locked(WaitMode::Spin, MS)].concat()).on([1]),
        ],
    );
    let spinner = report.task("spinner").unwrap();
    assert!(spinner.cpu_ns > 45 * MS, "{} ns", spinner.cpu_ns);
    assert_eq!(spinner.voluntary_switches, 0);
}

#[test]
fn a_spinner_that_is_preempted_takes_the_lock_when_it_runs_again() {
    // Both spinners share CPU 1, and one of them waits when the lock is freed.
    let spinner = [vec![work(MS)], locked(WaitMode::Spin, 30 * MS)].concat();
    let report = run(
        2,
        [
            TaskSpec::new("holder", locked(WaitMode::Spin, 50 * MS)).on([0]),
            TaskSpec::new("spinner", spinner).on([1]).copies(2),
        ],
    );
    // 50 ms of one, 30 ms of each of the others, and slices of spinning in vain between.
    assert!((110 * MS..200 * MS).contains(&report.wall_ns), "{} ns", report.wall_ns);
}

#[test]
fn nobody_passes_a_barrier_before_the_last_has_come() {
    for mode in [WaitMode::Block, WaitMode::Spin, WaitMode::SpinThenBlock { spin_ns: MS }] {
        let meet = Step::Barrier { barrier: 0, parties: 3, mode };
        let program = |ns| vec![Step::repeat(4, [work(ns), meet.clone(), Step::Mark])];
        let tasks = [2 * MS, 5 * MS, 9 * MS].map(|ns| TaskSpec::new(format!("task-{ns}"), program(ns)));
        let report = run(3, tasks);
        for task in &report.tasks {
            assert_eq!(task.marks_ns.len(), 4);
            (1..).zip(&task.marks_ns).for_each(|(round, mark_ns)| near(*mark_ns, round * 9 * MS));
        }
        let waited_ns = match mode {
            WaitMode::Block => 0,
            WaitMode::Spin => 7 * MS,
            WaitMode::SpinThenBlock { spin_ns } => spin_ns,
        };
        near(report.tasks[0].cpu_ns, 4 * (2 * MS + waited_ns));
    }
}

#[test]
fn a_spinning_barrier_of_more_tasks_than_cpus_opens_all_the_same() {
    let meet = Step::Barrier { barrier: 0, parties: 5, mode: WaitMode::Spin };
    let report = run(2, [TaskSpec::new("task", vec![Step::repeat(3, [work(MS), meet])]).copies(5)]);
    assert!(report.tasks.iter().all(|task| task.finish_ns.is_some()));
    assert!(report.wall_ns > 3 * 5 * MS / 2, "{} ns", report.wall_ns);
}

#[test]
fn a_signal_wakes_one_and_a_broadcast_all() {
    let lock = || Step::Lock { lock: 0, mode: WaitMode::Block };
    let sleeper = vec![lock(), Step::Await { condition: 0, lock: Some(0) }, Step::Mark, Step::Unlock { lock: 0 }];
    let waker = [Step::Sleep { ns: MS }, Step::Signal { condition: 0 }, Step::Sleep { ns: MS }];
    let waker = waker.into_iter().chain([Step::Broadcast { condition: 0 }]).collect();
    let report = run(2, [TaskSpec::new("sleeper", sleeper).copies(3), TaskSpec::new("waker", waker)]);
    let mut marks: Vec<u64> = report.tasks.iter().flat_map(|task| task.marks_ns.clone()).collect();
    marks.sort_unstable();
    marks.iter().zip([MS, 2 * MS, 2 * MS]).for_each(|(mark_ns, due_ns)| near(*mark_ns, due_ns));
}

#[test]
fn a_signal_that_nobody_waits_for_is_lost() {
    let late = TaskSpec::new("late", vec![Step::Sleep { ns: MS }, Step::Await { condition: 0, lock: None }]);
    let early = TaskSpec::new("early", vec![Step::Signal { condition: 0 }]);
    let load = Workload::new("test", 1, [late, early]);
    let error = Simulation::of::<Fifo>(machine(1), "").run(&load).unwrap_err();
    assert!(matches!(error, SimError::Unfinished { .. }), "{error}");
    assert!(error.to_string().contains("waiting for condition 0"), "{error}");
}

#[test]
fn a_device_serves_as_many_at_once_as_it_has_servers() {
    let device = Device { servers: 2, service_ns: 3 * MS, exponential: false };
    let tasks = [TaskSpec::new("task", vec![Step::Io { device: 0 }]).copies(5)];
    let report = run_load(&Workload::new("test", 1, tasks).with_device(device)).report;
    near(report.wall_ns, 9 * MS);
    assert!(report.tasks.iter().all(|task| task.cpu_ns < MS));
}

#[test]
fn service_times_vary_by_the_seed_alone() {
    let device = Device { servers: 1, service_ns: 3 * MS, exponential: true };
    let tasks = [TaskSpec::new("task", vec![Step::repeat(20, [Step::Io { device: 0 }])])];
    let load = Workload::new("test", 1, tasks).with_device(device);
    let wall_ns = |seed| Simulation::of::<Fifo>(machine(1), "").seed(seed).run(&load).unwrap().report.wall_ns;
    assert_eq!(wall_ns(1), wall_ns(1));
    assert_ne!(wall_ns(1), wall_ns(2));
}

#[test]
fn a_timer_keeps_its_times_and_catches_up_or_starts_again() {
    let marks = |restart| {
        let tick = Step::Timer { timer: 0, period_ns: 10 * MS, restart };
        let round = |ns| [work(ns), tick.clone(), Step::Mark];
        let program = [3, 25, 3, 3].map(|ms| round(ms * MS)).concat();
        run(1, [TaskSpec::new("task", program)]).tasks[0].marks_ns.clone()
    };
    // The timer begins when it is first met, after 3 ms. The second round takes longer than a period.
    let expect = |marks: Vec<u64>, due_ms: [u64; 4]| {
        assert_eq!(marks.len(), 4);
        marks.iter().zip(due_ms).for_each(|(mark_ns, due_ms)| near(*mark_ns, due_ms * MS));
    };
    expect(marks(false), [13, 38, 41, 44]);
    expect(marks(true), [13, 38, 48, 58]);
}

#[test]
fn work_for_a_time_ends_at_that_time_whoever_had_the_cpu() {
    let task = |step| TaskSpec::new("task", vec![step]).on([0]);
    let hog = || TaskSpec::new("hog", vec![work(200 * MS)]).on([0]);
    let finish_ns = |step| run(1, [task(step), hog()]).task("task").unwrap().finish_ns.unwrap();
    assert!(finish_ns(work(100 * MS)) > 170 * MS);
    // It may be away when the time comes, for as long as the other one's slice.
    assert!((100 * MS..125 * MS).contains(&finish_ns(Step::RunFor { ns: 100 * MS })));
}

#[test]
fn a_load_in_the_format_of_rt_app_runs() {
    let text = r#"{
        /* Two tasks take turns: one wakes the other up and waits for it. */
        "tasks" : {
            "ping" : { "loop" : 5, "run" : 1000, "resume" : "pong", "suspend" : "ping" },
            "pong" : { "loop" : 5, "suspend" : "pong", "run" : 2000, "resume" : "ping" },
            "clock" : { "loop" : 4, "run" : 500, "timer" : { "ref" : "unique", "period" : 3000 } },
        }
    }"#;
    let (load, _) = rt_app::parse("turns", text).unwrap();
    let report = run_load(&Workload { cpus: 3, ..load }).report;
    near(report.task("ping").unwrap().finish_ns.unwrap(), 15 * MS);
    near(report.task("clock").unwrap().finish_ns.unwrap(), 12 * MS + 500 * US);
}

#[test]
fn a_group_gets_no_more_than_its_limit() {
    let limit = Some(Limit { quota_ns: 20 * MS, period_ns: 50 * MS });
    let group = spec::Group { limit, ..spec::Group::new("limited") };
    let hog = || vec![Step::forever([work(MS)])];
    let tasks = [TaskSpec::new("hog", hog()).copies(3).in_group("limited"), TaskSpec::new("free", hog())];
    let load = Workload::new("test", 4, tasks).with_group(group).lasting(1_000 * MS);
    let report = run_load(&load).report;
    let limited_ns: u64 = report.tasks[..3].iter().map(|task| task.cpu_ns).sum();
    // Twenty periods. What the last one took too much of is owed.
    assert!((395 * MS..415 * MS).contains(&limited_ns), "{limited_ns} ns");
    near(report.task("free").unwrap().cpu_ns, 1_000 * MS);
}

#[test]
fn cpus_come_and_go_by_the_steps_of_a_task() {
    let hog = TaskSpec::new("hog", vec![work(30 * MS)]).copies(2);
    let change = vec![work(MS), Step::CpuOffline { cpu: 1 }, Step::Sleep { ns: 20 * MS }, Step::CpuOnline { cpu: 1 }];
    let with = run(2, [hog.clone(), TaskSpec::new("operator", change)]);
    let without = run(2, [hog]);
    near(without.wall_ns, 30 * MS);
    assert!(with.wall_ns > 38 * MS, "{} ns", with.wall_ns);
}

#[test]
fn the_same_seed_gives_the_same_trace_with_every_way_of_waiting() {
    let meet = Step::Barrier { barrier: 0, parties: 6, mode: WaitMode::SpinThenBlock { spin_ns: 200 * US } };
    let steps = [locked(WaitMode::Spin, 50 * US), locked(WaitMode::Block, 30 * US), vec![Step::Io { device: 0 }, meet]];
    let task = TaskSpec::new("task", vec![Step::repeat(20, steps.concat())]).copies(6);
    let load = Workload::new("test", 3, [task]);
    let load = load.with_device(Device { servers: 2, service_ns: 100 * US, exponential: true });
    let trace = || {
        let mut machine = Machine::flat(3);
        machine.model.jitter = Jitter { sleep_ns: 50_000, work_permille: 50 };
        Simulation::of::<Wfq>(machine, "").seed(5).traced().run(&load).unwrap().trace
    };
    assert_eq!(trace(), trace());
}

/// A policy that notes the nice value and the group of every new task.
struct Grouped {
    queues: PerCpu<SpinLock<FifoQueue<Self>>>,
}

thread_local! {
    static SEEN: RefCell<Vec<(i32, Group)>> = const { RefCell::new(Vec::new()) };
}

#[policy]
impl Scheduler for Grouped {
    fn new(env: &Env) -> Self {
        Self { queues: PerCpu::new(env, |_| SpinLock::default()) }
    }

    fn task_new(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        SEEN.with_borrow_mut(|seen| seen.push((task.nice, cx.group(task.id))));
        self.enqueue(cx, task, token);
    }

    fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
        self.queues[token.cpu()].lock().push_back(token);
    }

    fn pick_next_task(&self, _: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        self.queues[cpu].lock().pop_front()
    }
}

#[test]
fn policies_see_the_group_of_a_task_and_of_its_children() {
    let child = Step::fork([Step::SetNice { nice: 1 }, work(US)]);
    let tasks = [
        TaskSpec::new("free", vec![]).nice(3),
        TaskSpec::new("light", vec![]).nice(4).in_group("light"),
        TaskSpec::new("usual", vec![child, Step::Wait]).nice(5).in_group("usual"),
    ];
    let load = Workload::new("test", 1, tasks);
    let load =
        load.with_group(spec::Group::new("usual")).with_group(spec::Group { weight: 50, ..spec::Group::new("light") });
    Simulation::of::<Grouped>(machine(1), "").run(&load).unwrap();
    let (usual, light) = (Group { id: 1, weight: 1024 }, Group { id: 2, weight: 512 });
    assert_eq!(SEEN.take(), [(3, Group::ROOT), (4, light), (5, usual), (5, usual)]);
}

#[test]
fn the_last_to_look_into_a_pipe_has_the_next_byte_and_goes_idle_after_its_time() {
    let look = |start_ns| {
        let poll = Step::PipePoll { pipe: 0, spin_ns: 4 * MS, idle: vec![Step::Mark, Step::Exit] };
        TaskSpec { start_ns, ..TaskSpec::new(format!("from-{}", start_ns / MS), vec![poll, Step::Mark]) }
    };
    let writer = TaskSpec::new("writer", vec![Step::Sleep { ns: 2 * MS }, Step::PipeWrite { pipe: 0 }]);
    let report = run(3, [look(0), look(MS), writer]);
    near(report.task("from-1").unwrap().marks_ns[0], 2 * MS);
    near(report.task("from-0").unwrap().marks_ns[0], 4 * MS);
}

#[test]
fn steps_are_done_only_if_a_pipe_holds_enough() {
    let held = |at_least| Step::IfHeld { pipe: 0, at_least, steps: vec![work(MS)] };
    let write = Step::PipeWrite { pipe: 0 };
    let report = run(1, [TaskSpec::new("task", vec![write.clone(), held(2), write, held(2)])]);
    near(report.wall_ns, MS);
}
