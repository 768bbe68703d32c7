//! Nest: few CPUs in use, and those warm; more as soon as they are needed.

use std::collections::BTreeSet;

use ekiden::{Scheduler, Topology};
use ekiden_policies::{Eevdf, Nest};
use ekiden_sim::{Machine, SimReport, Simulation, What};
use ekiden_workload::{Step, TaskSpec, loads};

use super::{MS, US, good, hogs, run, sleeper};

const CPUS: u32 = 16;

/// How many CPUs begin to run something in four milliseconds, in the mean, as in figure 2 of the paper; without the first tenth of a second.
fn cpus_used(result: &SimReport) -> f64 {
    let runs = result.trace.records().filter(|record| record.what == What::Run && record.time_ns > 100 * MS);
    let used: BTreeSet<(u64, u32)> = runs.map(|record| (record.time_ns / (4 * MS), record.cpu)).collect();
    let times: BTreeSet<u64> = used.iter().map(|(time, _)| *time).collect();
    used.len() as f64 / times.len() as f64
}

/// A build of many small files, which takes a third of the machine: short tasks, one after the other in each of six jobs.
fn build<S: Scheduler>() -> SimReport {
    let load = loads::make("make:jobs=6:files=200:ms=2", CPUS).unwrap();
    let machine = Machine::new(Topology::regular(1, 2, 8, 1));
    let result = good(Simulation::of::<S>(machine, "").traced().run(&load).unwrap());
    let forked_ns: u64 = result.report.tasks.iter().map(|task| task.forked_cpu_ns).sum();
    let busy = (result.report.cpu_ns() + forked_ns) as f64 / (result.report.wall_ns * u64::from(CPUS)) as f64;
    assert!((0.25..0.35).contains(&busy), "{busy} of the machine");
    result
}

#[test]
fn at_a_third_of_the_load_it_uses_half_of_the_cpus_of_the_kernels_scheduler() {
    // What the kernel's own scheduler does, as a policy.
    let (nest, kernel) = (build::<Nest>(), build::<Eevdf>());
    let (few, many) = (cpus_used(&nest), cpus_used(&kernel));
    println!("{few:.2} CPUs under nest, {many:.2} under eevdf: {:.2}", few / many);
    assert!(few / many <= 0.6, "{few} CPUs under nest, {many} under eevdf");
    assert!(nest.report.wall_ns < kernel.report.wall_ns * 21 / 20, "and it takes no longer");
}

#[test]
fn it_grows_until_all_that_want_a_cpu_have_one() {
    let result = run::<Nest>(CPUS, "", 1_000, hogs(CPUS).collect());
    for task in &result.report.tasks {
        assert!(task.cpu_ns > 950 * MS, "{}", result.report);
    }
}

#[test]
fn a_cpu_that_is_idle_for_long_leaves_the_nest() {
    // Tasks that wake up together, each on a CPU of its own, for 40 ms, and then one after the other.
    let round = || [Step::Run { ns: 50 * US }, Step::Sleep { ns: 1_950 * US }];
    let task = |number: u32| {
        let together = [Step::repeat(20, round()), Step::Sleep { ns: u64::from(number) * 170 * US }];
        let program = together.into_iter().chain([Step::forever(round())]);
        TaskSpec::new(format!("task{number}"), program.collect())
    };
    let used = |params: &str| cpus_used(&run::<Nest>(CPUS, params, 1_000, (0..10).map(task).collect()));
    let (shrinks, stays) = (used("remove_us=1000"), used("remove_us=1000000"));
    assert!(shrinks < stays / 2.0, "{shrinks} CPUs, {stays} if no CPU leaves the nest");
}

#[test]
fn a_task_that_is_alone_stays_where_it_is() {
    let result = run::<Nest>(CPUS, "", 1_000, vec![sleeper("alone", 100 * US, 900 * US)]);
    assert!(result.report.task("alone").unwrap().migrations <= Some(1), "{}", result.report);
}
