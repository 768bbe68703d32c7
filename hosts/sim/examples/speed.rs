//! How many scheduling events (switches and wake-ups) the simulator handles in a second of real time:
//! `cargo run --release -p ekiden-sim --example speed`.

use std::time::Instant;

use ekiden_policies::Fifo;
use ekiden_sim::{Machine, SimError, Simulation};
use ekiden_workload::{Step, TaskSpec, Workload};

const US: u64 = 1_000;

fn main() -> Result<(), SimError> {
    println!("{:>6} {:>8} {:>12} {:>14} {:>14}", "CPUs", "tasks", "events", "events/s", "ns/event");
    for (cpus, tasks) in [(8, 32), (8, 1_000), (64, 1_000), (256, 10_000), (4_096, 20_000)] {
        // Each task wants 40 % of a CPU's share, so that nothing piles up.
        let period_ns = 1_000 * US;
        let run_ns = period_ns * u64::from(cpus) / u64::from(tasks) * 2 / 5;
        let rounds = 1_000_000 / u64::from(tasks);
        let periodic = Step::repeat(rounds, [Step::Run { ns: run_ns }, Step::Sleep { ns: period_ns }]);
        let load = Workload::new("periodic", cpus, [TaskSpec::new("task", vec![periodic]).copies(tasks)]);
        let begin = Instant::now();
        let result = Simulation::of::<Fifo>(Machine::flat(cpus), "").time_limit_ns(u64::MAX).traced().run(&load)?;
        let took_ns = begin.elapsed().as_nanos() as f64;
        let events = result.stats.events();
        let per_event_ns = took_ns / events as f64;
        println!("{cpus:>6} {tasks:>8} {events:>12} {:>14.0} {per_event_ns:>14.0}", 1e9 / per_event_ns);
    }
    Ok(())
}
