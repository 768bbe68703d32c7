//! What the hardware does to a load: idle states, threads that share a core, interrupts, distances.

use ekiden::Topology;
use ekiden_policies::{Cfs, Eevdf, Fifo, Wfq};
use ekiden_sim::{Costs, IdleState, Interrupt, Machine, Model, PolicyMaker, SimError, SimReport, Simulation, What};
use ekiden_workload::{Device, Group, Step, TaskSpec, Workload};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

fn run(machine: Machine, tasks: impl IntoIterator<Item = TaskSpec>) -> SimReport {
    let nr_cpus = machine.topology.nr_cpus();
    Simulation::of::<Fifo>(machine, "").run(&Workload::new("test", nr_cpus, tasks)).unwrap()
}

fn hog(name: &str, cpu: u32, ms: u64) -> TaskSpec {
    TaskSpec { affinity: Some(vec![cpu]), ..TaskSpec::new(name, vec![Step::Run { ns: ms * MS }]) }
}

fn finish_ms(report: &SimReport, name: &str) -> u64 {
    (report.report.task(name).unwrap().finish_ns.unwrap() + MS / 2) / MS
}

#[test]
fn two_threads_of_a_core_do_as_much_together_as_the_model_says() {
    let model = Model { smt_percent: 125, ..Model::free() };
    let machine = Machine::new(Topology::regular(1, 1, 1, 2)).with_model(model);
    let result = run(machine, [hog("long", 0, 100), hog("short", 1, 25)]);
    // Each goes at 62.5 % while both run: `short` takes 40 ms, in which `long` does 25; its other 75 go at full speed.
    assert_eq!((finish_ms(&result, "short"), finish_ms(&result, "long")), (40, 115));
}

#[test]
fn cores_of_their_own_do_not_slow_each_other_down() {
    let machine = Machine::flat(2).with_model(Model { smt_percent: 125, ..Model::free() });
    let result = run(machine, [hog("long", 0, 100), hog("short", 1, 25)]);
    assert_eq!((finish_ms(&result, "short"), finish_ms(&result, "long")), (25, 100));
}

/// How much longer than without idle states it takes, in microseconds, until ten rounds are over.
fn later_us(model: &Model, cpus: u32, tasks: &[TaskSpec]) -> u64 {
    let device = Device { servers: 1, service_ns: 5 * MS, exponential: false };
    let load = Workload::new("test", cpus, tasks.to_vec()).with_device(device);
    let wall_ns = |idle_states| {
        let machine = Machine::flat(cpus).with_model(Model { idle_states, ..model.clone() });
        Simulation::of::<Fifo>(machine, "").run(&load).unwrap().report.wall_ns
    };
    let states = vec![IdleState { after_ns: 0, exit_ns: 2 * US }, IdleState { after_ns: MS, exit_ns: 90 * US }];
    (wall_ns(states) - wall_ns(Vec::new())) / US
}

#[test]
fn a_cpu_that_slept_deeply_takes_longer_to_wake_up_whatever_does_it() {
    let rounds = |name: &str, steps: Vec<Step>| TaskSpec::new(name, vec![Step::repeat(10, steps)]);
    // What interrupts cost has nothing to do with it.
    for model in [Model::free(), Model { timer_slack_ns: 0, ..Model::default() }] {
        let by_timer = |ns| later_us(&model, 1, &[rounds("task", vec![Step::Run { ns: US }, Step::Sleep { ns }])]);
        assert_eq!((by_timer(100 * US), by_timer(5 * MS)), (10 * 2, 10 * 90));
        let by_device = rounds("task", vec![Step::Run { ns: US }, Step::Io { device: 0 }]);
        assert_eq!(later_us(&model, 1, &[by_device]), 10 * 90);
    }
    // The one that writes has slept as long, on a CPU of its own: both have to wake up, one after the other.
    let writes = rounds("writer", vec![Step::Sleep { ns: 5 * MS }, Step::PipeWrite { pipe: 0 }]).on([0]);
    let reads = rounds("reader", vec![Step::PipeRead { pipe: 0 }, Step::Run { ns: US }]).on([1]);
    assert_eq!(later_us(&Model::free(), 2, &[writes, reads]), 10 * 90 + 90);
}

#[test]
fn two_timers_for_a_cpu_that_sleeps_wait_for_it_to_wake_up_once() {
    let nap = |name: &str, ns| TaskSpec::new(name, vec![Step::Sleep { ns }, Step::Run { ns: US }]).on([0]);
    // The second goes off while the CPU is on its way.
    let both = [nap("one", 5 * MS), nap("two", 5 * MS + 40 * US)];
    assert_eq!(later_us(&Model::free(), 1, &both), 90 - 40);
}

#[test]
fn a_woken_task_goes_to_a_core_that_is_idle_as_a_whole() {
    // Two cores of two threads: 0 and 2, 1 and 3. One thread of the first is busy.
    let machine = Machine::new(Topology::regular(1, 1, 2, 2)).with_model(Model::free());
    assert_eq!(machine.topology.smt_siblings(0), &[0, 2].into_iter().collect());
    let nap =
        vec![Step::Run { ns: US }, Step::SetAffinity { cpus: None }, Step::Sleep { ns: MS }, Step::Run { ns: 10 * MS }];
    let load = Workload::new("test", 4, [hog("hog", 0, 30), TaskSpec::new("task", nap).on([2])]);
    let ran_on = |load: &Workload| {
        Simulation::of::<Fifo>(machine.clone(), "").run(load).unwrap().report.task("task").unwrap().last_cpu
    };
    assert_eq!(ran_on(&load), Some(1), "its own CPU is idle, and the other thread of that core is not");
    // Without such a core it stays where it was.
    let full = Workload::new("test", 4, load.tasks.iter().cloned().chain([hog("other", 1, 30)]));
    assert_eq!(ran_on(&full), Some(2));
}

#[test]
fn weights_of_groups_count_under_policies_that_go_by_weights() {
    let hogs = |name: &str| TaskSpec::new(name, vec![Step::forever([Step::Run { ns: MS }])]).copies(3).in_group(name);
    let group = |name: &str, weight| Group { weight, ..Group::new(name) };
    let load = Workload::new("test", 1, [hogs("more"), hogs("less")]).lasting(3_000 * MS);
    let load = load.with_group(group("more", 300)).with_group(group("less", 100));
    for policy in [PolicyMaker::of::<Wfq>(""), PolicyMaker::of::<Eevdf>(""), PolicyMaker::of::<Cfs>("")] {
        let name = policy.name().to_owned();
        let tasks = Simulation::with_policy(Machine::flat(1), policy).run(&load).unwrap().report.tasks;
        let sum = |group| tasks.iter().filter(|task| task.name.starts_with(group)).map(|task| task.cpu_ns).sum::<u64>();
        let share = sum("more") as f64 / (sum("more") + sum("less")) as f64;
        assert!((0.73..0.77).contains(&share), "{name}: {share}");
    }
}

#[test]
fn what_calls_into_the_policy_cost_is_spent_by_the_cpu_that_makes_them() {
    let program = vec![Step::repeat(100, [Step::Run { ns: 10 * US }, Step::Yield])];
    let load = Workload::new("test", 1, [TaskSpec::new("task", program).copies(2)]);
    let wall_us = |calls: &[(&str, u64)], call_ns| {
        let calls = calls.iter().map(|(call, ns)| ((*call).to_owned(), *ns)).collect();
        let costs = Costs { call_ns, ..Model::free().costs };
        let machine = Machine::flat(1).with_model(Model { costs, calls, ..Model::free() });
        Simulation::of::<Fifo>(machine, "").run(&load).unwrap().report.wall_ns / US
    };
    let free = wall_us(&[], 0);
    // Each of 200 yields is one pick, and one enqueue; each task begins with both, and each end takes a pick.
    let picks = wall_us(&[("pick_next_task", 10_000)], 0) - free;
    assert!((2_000..=2_050).contains(&picks), "{picks}");
    let all = wall_us(&[], 10_000) - free;
    assert!((4_000..=4_100).contains(&all), "{all}");
    assert_eq!(wall_us(&[("task_tick", 10_000)], 0), free, "FIFO has no such call");
}

#[test]
fn interrupts_take_time_from_whoever_runs() {
    let interrupt = Interrupt { period_ns: MS, handler_ns: 100 * US, cpus: vec![1], random: false };
    let model = |random| Model { interrupts: vec![Interrupt { random, ..interrupt.clone() }], ..Model::free() };
    let machine = |random| Machine::flat(2).with_model(model(random));
    let result = run(machine(false), [hog("spared", 0, 90), hog("hit", 1, 90)]);
    assert_eq!((finish_ms(&result, "spared"), finish_ms(&result, "hit")), (90, 100));
    let result = run(machine(true), [hog("hit", 1, 90)]);
    assert!((96..105).contains(&finish_ms(&result, "hit")), "{}", finish_ms(&result, "hit"));
}

#[test]
fn the_tick_costs_time_too() {
    let costs = Costs { tick_ns: 400 * US, ..Model::free().costs };
    let result = run(Machine::flat(1).with_model(Model { costs, ..Model::free() }), [hog("hog", 0, 90)]);
    // A tenth of each period of 4 ms.
    assert_eq!(finish_ms(&result, "hog"), 100);
}

#[test]
fn a_task_that_comes_back_after_another_one_finds_its_cache_cold() {
    let costs = Costs { refill_ns: 500 * US, ..Model::free().costs };
    let machine = || Machine::flat(1).with_model(Model { costs, ..Model::free() });
    let program = || vec![Step::repeat(10, [Step::Run { ns: MS }, Step::Yield])];
    let alone = run(machine(), [TaskSpec::new("task", program())]).report.wall_ns / MS;
    let both = run(machine(), [TaskSpec::new("task", program()).copies(2)]).report.wall_ns / MS;
    // Twice the work, and a cold cache after each of the 20 times that one gave way to the other.
    assert_eq!((alone, both), (10, 20 + 20 / 2));
}

#[test]
fn a_model_that_names_what_there_is_not_is_refused() {
    let interrupts = vec![Interrupt { period_ns: MS, handler_ns: 1, cpus: vec![4], random: false }];
    let machine = Machine::flat(4).with_model(Model { interrupts, ..Model::default() });
    let refused = Simulation::of::<Fifo>(machine, "").run(&Workload::new("test", 4, [hog("hog", 0, 1)]));
    let Err(error @ SimError::Machine(_)) = refused else { panic!("it ran") };
    assert!(error.to_string().contains("CPU 4: the machine has 4"), "{error}");
}

#[test]
fn a_byte_for_a_pipe_that_has_some_wakes_nobody_and_who_leaves_some_wakes_the_next() {
    let reader = |cpu| TaskSpec::new(format!("reader-{cpu}"), vec![Step::PipeRead { pipe: 0 }]).on([cpu]);
    let writes = Step::repeat(2, [Step::PipeWrite { pipe: 0 }]);
    let writer = TaskSpec::new("writer", vec![Step::Sleep { ns: MS }, writes]).on([2]);
    let load = Workload::new("test", 3, [reader(0), reader(1), writer]);
    let trace = Simulation::of::<Fifo>(Machine::flat(3), "").traced().run(&load).unwrap().trace;
    let wakers = trace.records().filter(|record| record.what == What::Wake).map(|record| record.value);
    // The timer; then CPU 2, and CPU 0; plus one.
    assert_eq!(wakers.collect::<Vec<_>>(), [0, 3, 1]);
}

#[test]
fn a_slice_lasts_one_tick_more_because_the_tick_itself_takes_time() {
    let hog = TaskSpec::new("hog", vec![Step::Run { ns: 100 * MS }]).on([0]).copies(2);
    let load = Workload::new("test", 1, [hog]);
    let runs = |tick_ns| -> Vec<u64> {
        let mut model = Model::free();
        model.costs.tick_ns = tick_ns;
        let trace = Simulation::of::<Fifo>(Machine::flat(1).with_model(model), "").traced().run(&load).unwrap().trace;
        let runs = trace.records().filter(|record| record.what == What::Run).map(|record| record.time_ns);
        runs.skip(1).take(3).collect()
    };
    // Slices of 20 ms, when ticks are 4 ms apart. The first task begins just after one.
    assert_eq!(runs(0), [24 * MS, 44 * MS, 64 * MS]);
    assert_eq!(runs(5_000), [24 * MS + 5_000, 48 * MS + 5_000, 72 * MS + 5_000]);
}

#[test]
fn a_sleep_lasts_longer_by_the_timer_slack() {
    let load = Workload::new("test", 1, [TaskSpec::new("sleeper", vec![Step::Sleep { ns: MS }])]);
    let wall_ns = |timer_slack_ns| {
        let model = Model { timer_slack_ns, ..Model::free() };
        Simulation::of::<Fifo>(Machine::flat(1).with_model(model), "").run(&load).unwrap().report.wall_ns
    };
    assert_eq!(wall_ns(50_000) - wall_ns(0), 50_000);
}

#[test]
fn a_child_first_does_what_children_do() {
    let load = Workload::new("test", 1, [TaskSpec::new("parent", vec![Step::fork([]), Step::Wait])]);
    let wall_ns = |child_ns| {
        let mut model = Model::free();
        model.costs.child_ns = child_ns;
        Simulation::of::<Fifo>(Machine::flat(1).with_model(model), "").run(&load).unwrap().report.wall_ns
    };
    assert_eq!(wall_ns(70_000) - wall_ns(0), 70_000);
}
