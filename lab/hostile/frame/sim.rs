//! Runs every body on a simulated machine, and prints the end of each, a line each. Bodies for the simulator always come to an end.

use ekiden_sim::{Machine, Simulation};
use ekiden_workload::builtin;
use hostile::Hostile;

fn main() {
    let load = builtin::churn(2, 4, 30, 1);
    for body in 0..hostile::BODIES_LEN {
        let simulation = Simulation::of::<Hostile>(Machine::flat(2), &format!("body={body}")).time_limit_ns(2_000_000_000);
        let said = match simulation.run(&load) {
            Ok(report) => match report.fault {
                Some(fault) => format!("ended: {fault:?}"),
                None => format!("harmless: {} contract violations", report.contract_violations),
            },
            Err(error) => format!("ended: {error}"),
        };
        println!("{body} {}", said.lines().next().unwrap_or_default());
    }
}
