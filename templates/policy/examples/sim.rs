//! Runs the policy on a simulated machine and shows what became of each task:
//! `cargo run --example sim -- LOAD [CPUS] [PARAMETERS] [debug]`. Without a load it lists them.

use ekiden_sim::{Machine, Simulation};
use ekiden_workload::builtin;
use my_policy::MyPolicy;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let name = args.next();
    let cpus: u32 = args.next().unwrap_or("4".into()).parse()?;
    let params = args.next().unwrap_or_default();

    let case = name.as_deref().map(|name| builtin::find(name, cpus).ok_or(format!("there is no load `{name}`")));
    let Some(case) = case.transpose()? else {
        for case in builtin::all(cpus) {
            println!("{:16} {}", case.workload.name, case.about);
        }
        return Ok(());
    };

    let mut simulation = Simulation::of::<MyPolicy>(Machine::flat(cpus), &params);
    if args.next().as_deref() == Some("debug") {
        simulation = simulation.debug_into(std::io::stderr());
    }
    let result = simulation.run(&case.workload)?;
    println!("{}", result.report);
    if let Some(fault) = result.fault {
        println!("the policy was taken out: {fault:?}");
    }
    match (case.check)(&result.report) {
        Ok(()) => println!("{}: passed", case.about),
        Err(why) => println!("{}: failed: {why}", case.about),
    }
    Ok(())
}
