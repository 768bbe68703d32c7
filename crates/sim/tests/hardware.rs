//! What the hardware does to a load: idle states, threads that share a core, interrupts, distances.

use ekiden::Topology;
use ekiden_policies::Fifo;
use ekiden_sim::{Costs, IdleState, Interrupt, Machine, Model, SimError, SimReport, Simulation, What};
use ekiden_workload::{Step, TaskSpec, Workload};

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

#[test]
fn a_cpu_that_slept_deeply_takes_longer_to_wake_up() {
    let states = vec![IdleState { after_ns: 0, exit_ns: 2 * US }, IdleState { after_ns: MS, exit_ns: 90 * US }];
    let machine = || Machine::flat(1).with_model(Model { idle_states: states.clone(), ..Model::free() });
    let waited_us = |sleep_ns| {
        let program = vec![Step::repeat(10, [Step::Run { ns: US }, Step::Sleep { ns: sleep_ns }])];
        run(machine(), [TaskSpec::new("task", program)]).report.tasks[0].wait_ns.unwrap() / US
    };
    // The first time it begins at once; after each sleep it waits for the CPU.
    assert_eq!((waited_us(100 * US), waited_us(5 * MS)), (10 * 2 + 2, 10 * 90 + 2));
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
    // Of 20 ms, when ticks are 4 ms apart. The first task begins just after one.
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
