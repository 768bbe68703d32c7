//! Central FIFO: one CPU's timer ends the turns of all.

use ekiden_policies::{CentralFifo, GlobalFifo};
use ekiden_sim::{Injection, Machine, Model, Simulation};
use ekiden_workload::Workload;

use super::{MS, good, hogs, interruptions, run, share};

#[test]
fn turns_on_all_cpus_end_within_a_round() {
    let result = run::<CentralFifo>(2, "turn_us=5000", 1_000, hogs(4).collect());
    // Turns of 5 to 6 ms on two CPUs.
    let found = interruptions(&result);
    assert!((330..=400).contains(&found), "{found} turns in a second");
    for hog in 0..4 {
        let share = share(&result, &format!("hog{hog}"));
        assert!((0.24..0.26).contains(&share), "{share}");
    }
    let fifo = interruptions(&run::<GlobalFifo>(2, "", 1_000, hogs(4).collect()));
    assert!(fifo < found / 3, "{fifo} turns without it");
}

#[test]
fn while_none_waits_none_is_interrupted() {
    assert_eq!(interruptions(&run::<CentralFifo>(4, "", 1_000, hogs(4).collect())), 0);
}

#[test]
fn another_cpu_looks_at_all_when_the_central_one_leaves() {
    let load = Workload { duration_ns: Some(1_000 * MS), ..Workload::new("load", 3, hogs(6)) };
    let machine = Machine::flat(3).with_model(Model::free());
    let simulation = Simulation::of::<CentralFifo>(machine, "turn_us=5000");
    let result = good(simulation.inject(100 * MS, Injection::CpuOffline { cpu: 0 }).run(&load).unwrap());
    // Without a look at them, two CPUs would end ninety turns.
    let found = interruptions(&result);
    assert!((330..=450).contains(&found), "{found} turns in a second");
}
