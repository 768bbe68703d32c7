//! Two tasks send a byte to and fro, on one CPU and on two: `cargo run -p ekiden-sim --example pipe`.

use ekiden::Scheduler;
use ekiden_policies::{Fifo, Wfq};
use ekiden_sim::{Machine, SimError, Simulation, What};
use ekiden_workload::builtin::{Where, pipe};

const ROUND_TRIPS: u64 = 10_000;

fn main() -> Result<(), SimError> {
    println!("{:8} {:14} {:>14} {:>10} {:>10}", "policy", "load", "us/round trip", "switches", "wake-ups");
    for place in [Where::SameCpu, Where::Across, Where::Anywhere] {
        measure::<Fifo>(place)?;
        measure::<Wfq>(place)?;
    }

    println!("\nThe first moments under {}, one CPU:", Fifo::NAME);
    let result = Simulation::of::<Fifo>(Machine::flat(1), "").traced().run(&pipe(2, Where::SameCpu))?;
    for record in result.trace.records().filter(|record| record.what != What::Tick).take(24) {
        println!("{record}");
    }
    println!("trace of {} bytes, digest {:016x}", result.trace_bytes().len(), result.trace.digest());
    Ok(())
}

fn measure<S: Scheduler>(place: Where) -> Result<(), SimError> {
    let load = pipe(ROUND_TRIPS, place);
    let result = Simulation::of::<S>(Machine::flat(2), "").run(&load)?;
    let round_trip_us = result.report.wall_ns as f64 / 1e3 / ROUND_TRIPS as f64;
    let (switches, wakeups) = (result.stats.switches, result.stats.wakeups);
    println!("{:8} {:14} {round_trip_us:>14.2} {switches:>10} {wakeups:>10}", S::NAME, load.name);
    Ok(())
}
