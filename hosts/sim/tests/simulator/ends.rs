//! How simulations end that do not end well, and what cannot begin.

use ekiden::{Topology, prelude::*};
use ekiden_policies::{Fifo, Wfq};
use ekiden_sim::{Costs, Injection, Machine, Model, SimError, Simulation, TraceError, Unfinished, What};
use ekiden_workload::builtin::{Where, churn, pipe};
use ekiden_workload::checks::all_finished;
use ekiden_workload::{Step, TaskSpec, Workload};

use crate::probe::{MS, Probe, US};

fn fifo(cpus: u32) -> Simulation {
    Simulation::of::<Fifo>(Machine::flat(cpus), "")
}

fn one(name: &str, program: Vec<Step>) -> Workload {
    Workload::new("test", 1, [TaskSpec::new(name, program)])
}

#[test]
fn a_deadlock_names_the_tasks_and_what_they_wait_for() {
    let load = Workload::new(
        "deadlock",
        1,
        [
            TaskSpec::new("reader", vec![Step::PipeRead { pipe: 3 }]),
            TaskSpec::new("parent", vec![Step::fork([Step::PipeRead { pipe: 0 }]), Step::Wait]),
            TaskSpec::new("fine", vec![Step::Run { ns: MS }]),
        ],
    );
    let error = fifo(2).run(&load).unwrap_err();
    let text = error.to_string();
    for part in [
        "nothing can happen any more",
        "`reader` (PID 1000) is reading from pipe 3, which is empty",
        "`parent` (PID 1001) is waiting for a child",
        "`parent (child)` (PID 1003) is reading from pipe 0",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("fine"), "{text}");
    let SimError::Unfinished { why, so_far, .. } = error else { panic!("{text}") };
    assert_eq!(why, Unfinished::Deadlock);
    assert!(so_far.report.task("fine").unwrap().finish_ns.is_some());
}

#[test]
fn a_full_pipe_makes_its_writer_wait() {
    let write = Step::repeat(65_537, [Step::PipeWrite { pipe: 0 }]);
    let text = fifo(1).run(&one("writer", vec![write.clone()])).unwrap_err().to_string();
    assert!(text.contains("writing to pipe 0, which is full"), "{text}");
    let reader = TaskSpec::new("reader", vec![Step::Sleep { ns: 100 * MS }, Step::PipeRead { pipe: 0 }]);
    let load = Workload::new("test", 1, [TaskSpec::new("writer", vec![write]), reader]);
    fifo(1).run(&load).unwrap();
}

#[test]
fn a_load_that_takes_too_long_is_given_up() {
    let load = one("slow", vec![Step::Run { ns: 100 * MS }]);
    let error = fifo(1).time_limit_ns(40 * MS).run(&load).unwrap_err();
    let SimError::Unfinished { at_ns, why, stuck, so_far } = error else { panic!("{error}") };
    assert_eq!((at_ns, why, stuck[0].name.as_str()), (40 * MS, Unfinished::TimeLimit, "slow"));
    assert_eq!(stuck[0].state, "running on CPU 0");
    // Everything but the time until the CPU noticed that there is work.
    assert_eq!(so_far.report.tasks[0].cpu_ns, 40 * MS - Costs::default().kick_ns);
}

#[test]
fn a_load_with_a_duration_is_stopped_then() {
    let hog = TaskSpec::new("hog", vec![Step::forever([Step::Run { ns: MS }])]);
    let sleeper = TaskSpec::new("sleeper", vec![Step::PipeRead { pipe: 0 }]);
    let load = Workload::new("test", 1, [hog.copies(2), sleeper]).lasting(100 * MS);
    let report = fifo(1).run(&load).unwrap().report;
    assert_eq!(report.wall_ns, 100 * MS);
    assert!(report.tasks.iter().all(|task| task.finish_ns.is_none()));
    let cpu_ns: u64 = report.cpu_ns();
    assert!((99 * MS..=100 * MS).contains(&cpu_ns), "{cpu_ns}");
    let waited_ns: u64 = report.tasks[..2].iter().filter_map(|task| task.wait_ns).sum();
    assert!((99 * MS..=101 * MS).contains(&waited_ns), "{waited_ns}");
}

/// Takes tasks, and never gives one back.
struct Forgetful {
    queue: SpinLock<FifoQueue<Self>>,
}

#[policy]
impl Scheduler for Forgetful {
    fn new(_: &Env) -> Self {
        Self { queue: SpinLock::default() }
    }

    fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
        self.queue.lock().push_back(token);
    }

    fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> {
        None
    }
}

#[test]
fn a_task_that_the_policy_forgets_is_named() {
    let load = one("forgotten", vec![Step::Run { ns: MS }]);
    let text = Simulation::of::<Forgetful>(Machine::flat(2), "").run(&load).unwrap_err().to_string();
    assert!(
        text.contains("forgotten by the policy") && text.contains("`forgotten` (PID 1000) is waiting for CPU"),
        "{text}"
    );
}

struct Stillborn;

#[policy]
impl Scheduler for Stillborn {
    fn new(_: &Env) -> Self {
        panic!("not today")
    }

    fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
        drop(token);
    }

    fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> {
        None
    }
}

#[test]
fn what_cannot_begin_says_why() {
    let load = pipe(1, Where::Across);
    let text = |simulation: Simulation| simulation.run(&load).unwrap_err().to_string();
    assert!(text(fifo(1)).contains("needs 2 CPUs and the machine has 1"));
    assert!(text(Simulation::of::<Fifo>(Machine::flat(2), "depth=1")).contains("no parameter \"depth\""));
    assert!(text(Simulation::of::<Wfq>(Machine::flat(2), "period_us=1")).contains("outside 100"));
    assert!(text(Simulation::of::<Stillborn>(Machine::flat(2), "")).contains("panicked when it was made: not today ("));
    let with = |injection| text(fifo(2).inject(5, injection));
    assert!(with(Injection::CpuOffline { cpu: 2 }).contains("there is no CPU 2"));
    assert!(with(Injection::Nice { task: "pong".into(), nice: 20 }).contains("nice value 20"));
    assert!(with(Injection::Nice { task: "pung".into(), nice: 2 }).contains("no task `pung`"));
    assert!(with(Injection::Affinity { task: "pong".into(), cpus: Some(vec![]) }).contains("no CPUs"));
    let invalid = Workload::new("empty", 1, []);
    assert!(matches!(fifo(1).run(&invalid), Err(SimError::Spec(_))));
}

#[test]
fn the_last_cpu_cannot_leave() {
    let load = one("hog", vec![Step::Run { ns: MS }]);
    let error = fifo(1).inject(10 * US, Injection::CpuOffline { cpu: 0 }).run(&load).unwrap_err();
    assert!(matches!(error, SimError::LastCpu { cpu: 0, at_ns: 10_000 }), "{error}");
}

#[test]
fn tasks_that_the_engine_has_no_room_for_run_without_the_policy() {
    let load = one("forks", vec![Step::repeat(5, [Step::fork([Step::Sleep { ns: MS }, Step::Run { ns: MS }])])]);
    let left_out = |max_tasks| {
        let result = fifo(1).max_tasks(max_tasks).run(&load).unwrap();
        assert_eq!(all_finished(&result.report), Ok(()));
        assert_eq!((result.fault, result.totals.unexpected_transitions), (None, 0));
        result.stats.left_out
    };
    assert_eq!((left_out(4), left_out(6)), (2, 0));
}

#[test]
fn a_task_that_departs_is_served_before_those_of_the_policy() {
    let hog = TaskSpec::new("hog", vec![Step::Run { ns: 50 * MS }]);
    let load = Workload::new("test", 1, [hog.copies(3)]);
    let task = || "hog.2".to_owned();
    let departed = fifo(1).inject(5 * MS, Injection::Depart { task: task() }).run(&load).unwrap();
    let finish_ns = |result: &ekiden_sim::SimReport, name| result.report.task(name).unwrap().finish_ns.unwrap();
    assert!(finish_ns(&departed, "hog.2") < 56 * MS, "{}", departed.report);
    let back = fifo(1).inject(5 * MS, Injection::Depart { task: task() });
    let back = back.inject(25 * MS, Injection::Return { task: task() }).run(&load).unwrap();
    assert!(finish_ns(&back, "hog.2") > 100 * MS, "{}", back.report);
    for result in [departed, back] {
        assert_eq!((result.fault, result.contract_violations, result.totals.unexpected_transitions), (None, 0, 0));
    }
}

#[test]
fn tasks_of_a_cpu_that_leaves_go_on_elsewhere() {
    let hog = TaskSpec::new("hog", vec![Step::Run { ns: 50 * MS }]);
    let load = Workload::new("test", 2, [hog.clone().copies(2), TaskSpec { name: "pinned".into(), ..hog.on([1]) }]);
    let leave =
        fifo(2).inject(10 * MS, Injection::CpuOffline { cpu: 1 }).inject(120 * MS, Injection::CpuOnline { cpu: 1 });
    let result = leave.traced().run(&load).unwrap();
    let runs = |from_ns, to_ns| {
        let records = result.trace.records().filter(|record| record.what == What::Run && record.cpu == 1);
        records.filter(|record| (from_ns..to_ns).contains(&record.time_ns)).count()
    };
    assert_eq!((runs(0, 10 * MS), runs(10 * MS, 120 * MS)), (1, 0));
    // Its only CPU has gone, so it may use any, and continues to.
    assert_eq!(result.report.task("pinned").unwrap().last_cpu, Some(0));
    assert!(result.report.wall_ns > 130 * MS, "one CPU did nearly all the work");
}

#[test]
fn a_slower_cpu_takes_longer() {
    let mut cpus = Topology::flat(2).cpus().to_vec();
    cpus[1].capacity = 512;
    let machine = Machine::new(Topology::new(cpus, vec![10]).unwrap()).with_model(Model::free());
    let task = |name: &str, cpu| TaskSpec::new(name, vec![Step::Run { ns: 10 * MS }]).on([cpu]);
    let load = Workload::new("test", 2, [task("fast", 0), task("slow", 1)]);
    let report = Simulation::of::<Fifo>(machine, "").run(&load).unwrap().report;
    let cpu_ns = |name| report.task(name).unwrap().cpu_ns;
    assert_eq!((cpu_ns("fast"), cpu_ns("slow")), (10 * MS, 20 * MS));
}

#[test]
fn times_are_exact_when_nothing_costs_anything() {
    let program = vec![Step::Run { ns: 5 * MS }, Step::Sleep { ns: 7 * MS }, Step::Mark, Step::Run { ns: 3 * MS }];
    let machine = Machine::flat(1).with_model(Model::free());
    let report = Simulation::of::<Fifo>(machine, "").run(&one("task", program)).unwrap().report;
    let task = &report.tasks[0];
    // A kick, two steps into the kernel, and a kick after the sleep: a nanosecond each.
    assert_eq!(task.start_ns, Some(1));
    assert_eq!(task.marks_ns, [12 * MS + 4]);
    assert_eq!((task.finish_ns, task.cpu_ns), (Some(15 * MS + 4), 8 * MS + 2));
    assert_eq!((task.voluntary_switches, task.involuntary_switches), (1, 0));
    assert_eq!((task.wait_ns, task.migrations, task.last_cpu), (Some(2), Some(0), Some(0)));
}

#[test]
fn children_are_counted_with_their_ancestor() {
    let grandchild = Step::fork([Step::Run { ns: MS }, Step::Mark]);
    let child = Step::fork([grandchild, Step::Run { ns: 2 * MS }, Step::Exec]);
    let machine = Machine::flat(2).with_model(Model::free());
    let load = one("parent", vec![child, Step::Wait, Step::Mark]);
    let report = Simulation::of::<Fifo>(machine, "").run(&load).unwrap().report;
    let parent = &report.tasks[0];
    assert_eq!((parent.forked, parent.forked_finished, parent.marks_ns.len()), (2, 2, 2));
    assert!((3 * MS..3 * MS + 100).contains(&parent.forked_cpu_ns), "{}", parent.forked_cpu_ns);
    assert!(parent.finish_ns > Some(2 * MS) && parent.cpu_ns < 100, "{parent:?}");
}

#[test]
fn a_policy_of_one_cpu_at_a_time_survives_all_of_them_going() {
    let mut simulation = Simulation::of::<Probe>(Machine::flat(4), "");
    for cpu in 1..4 {
        simulation = simulation.inject(u64::from(cpu) * MS, Injection::CpuOffline { cpu });
        simulation = simulation.inject((4 + u64::from(cpu)) * MS, Injection::CpuOnline { cpu });
    }
    let result = simulation.run(&churn(4, 8, 200, 5)).unwrap();
    assert_eq!((result.fault, result.totals.unexpected_transitions), (None, 0));
}

#[test]
fn a_file_that_is_no_trace_is_refused() {
    assert!(matches!(ekiden_sim::Trace::from_bytes(vec![0; 48]), Err(TraceError::Foreign)));
}
