//! Finds what things cost on the real kernel: each cost is what makes a small load take as long in the simulator as it
//! took there.

use std::collections::BTreeMap;

use anyhow::Result;
use ekiden_bench::{number, table};
use ekiden_sim::Model;
use serde::Serialize;

use super::{
    compare::simulate,
    measure::{Measured, Shown},
};
use crate::models::Models;

/// A cost, and the load and figure that show it.
struct Knob {
    name: &'static str,
    load: &'static str,
    cost: fn(&mut Model) -> &mut u64,
    figure: fn(&Shown) -> f64,
}

const fn knob(
    name: &'static str,
    load: &'static str,
    cost: fn(&mut Model) -> &mut u64,
    figure: fn(&Shown) -> f64,
) -> Knob {
    Knob { name, load, cost, figure }
}

fn done(shown: &Shown) -> f64 {
    shown.done_ns as f64
}

fn wait(shown: &Shown) -> f64 {
    shown.wait_p50_ns as f64
}

/// In the order in which they build on each other.
const KNOBS: &[Knob] = &[
    knob("syscall_ns", "cost-syscall", |model| &mut model.costs.syscall_ns, done),
    knob("tick_ns", "cost-run", |model| &mut model.costs.tick_ns, done),
    knob("wakeup_ns", "cost-switch", |model| &mut model.costs.wakeup_ns, wait),
    knob("switch_ns", "cost-switch", |model| &mut model.costs.switch_ns, done),
    knob("kick_ns", "cost-across", |model| &mut model.costs.kick_ns, wait),
    knob("timer_slack_ns", "cost-sleep", |model| &mut model.timer_slack_ns, done),
    knob("exit_ns", "cost-exit", |model| &mut model.costs.exit_ns, done),
    knob("fork_ns", "cost-fork", |model| &mut model.costs.fork_ns, |shown| shown.own_ns as f64),
    knob("child_ns", "cost-fork", |model| &mut model.costs.child_ns, done),
    knob("exec_ns", "cost-exec", |model| &mut model.costs.exec_ns, done),
];

/// How often all of them are gone through: some depend on each other a little.
const PASSES: u32 = 4;

/// The loads that have to be measured, each once.
pub(super) fn loads() -> Vec<String> {
    let mut loads: Vec<String> = KNOBS.iter().map(|knob| knob.load.to_owned()).collect();
    loads.dedup();
    loads
}

/// One cost that was found.
#[derive(Clone, Debug, Serialize)]
struct Found {
    policy: String,
    cost: &'static str,
    ns: u64,
    load: &'static str,
    real_ns: f64,
    simulated_ns: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Calibration {
    found: Vec<Found>,
    #[serde(skip)]
    pub(super) models: Models,
}

impl Calibration {
    /// Whether all that costs are found by was measured under each policy.
    pub(super) fn is_possible(measured: &Measured) -> bool {
        let has = |policy: &str, load: &str| {
            measured.runs.iter().any(|run| run.policy == policy && run.load == load && !run.shown.is_empty())
        };
        measured.policies().iter().all(|policy| loads().iter().all(|load| has(policy, load)))
    }

    pub(super) fn of(measured: &Measured) -> Result<Self> {
        let mut models = Models { kernel: measured.kernel.clone(), policies: BTreeMap::new() };
        let mut found = Vec::new();
        let mut policies: Vec<&String> = measured.runs.iter().map(|run| &run.policy).collect();
        policies.dedup();
        for policy in policies {
            let mut model = beginning(measured);
            for pass in 1..=PASSES {
                for knob in KNOBS {
                    let run = measured.runs.iter().find(|run| run.policy == *policy && run.load == knob.load);
                    let Some(real) = run.and_then(|run| Shown::median(&run.shown)) else { continue };
                    let real = (knob.figure)(&real);
                    let simulated = knob.turn(&mut model, real, |model| {
                        Ok((knob.figure)(&simulate(measured, policy, knob.load, model.clone(), 0)?.0))
                    })?;
                    if pass == PASSES {
                        let ns = *(knob.cost)(&mut model);
                        let (policy, cost, load) = (policy.clone(), knob.name, knob.load);
                        found.push(Found { policy, cost, ns, load, real_ns: real, simulated_ns: simulated });
                    }
                }
            }
            models.policies.insert(policy.clone(), model);
        }
        Ok(Self { found, models })
    }

    pub(super) fn to_text(&self) -> String {
        let lines = self.found.iter().map(|found| {
            let Found { policy, cost, ns, load, real_ns, simulated_ns } = found;
            let costs = [number(*ns as f64), number(*real_ns / 1e3), number(*simulated_ns / 1e3)];
            [policy.clone(), (*cost).to_owned()].into_iter().chain(costs).chain([(*load).to_owned()])
        });
        table(&["policy", "cost", "ns", "real us", "simulated us", "found by"], lines)
    }
}

/// A machine of which nothing is known. The loads touch no memory to speak of, and an emulated machine has no caches,
/// so that what caches cost cannot be found; it is left out.
fn beginning(measured: &Measured) -> Model {
    let mut model = Model { idle_states: Vec::new(), ..Model::default() };
    let costs = &mut model.costs;
    (costs.refill_ns, costs.migrate_llc_ns, costs.migrate_node_ns) = (0, 0, 0);
    (costs.migrate_remote_ns, costs.kick_remote_ns) = (0, 0);
    if measured.counts {
        // All CPUs of an emulated machine are one thread of the host.
        model.smt_percent = 100;
    }
    model
}

impl Knob {
    /// Sets the cost so that the simulator shows `real`; returns what it shows then.
    fn turn(&self, model: &mut Model, real: f64, simulated: impl Fn(&Model) -> Result<f64>) -> Result<f64> {
        const STEP_NS: u64 = 1_000;
        let before_ns = *(self.cost)(model);
        let base = simulated(model)?;
        *(self.cost)(model) = before_ns + STEP_NS;
        let slope = (simulated(model)? - base) / STEP_NS as f64;
        if slope.abs() < 1e-6 {
            *(self.cost)(model) = before_ns;
            return Ok(base);
        }
        *(self.cost)(model) = (before_ns as f64 + (real - base) / slope).round().clamp(0.0, 1e9) as u64;
        simulated(model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fidelity::measure::Run;
    use ekiden::Topology;
    use ekiden_trace::Header;

    #[test]
    fn costs_that_were_put_in_are_found() {
        let mut truth = Model { idle_states: Vec::new(), timer_slack_ns: 70_000, ..Model::default() };
        truth.costs.switch_ns = 2_345;
        truth.costs.fork_ns = 67_890;
        truth.costs.refill_ns = 0;
        let machine = Header::of(&Topology::flat(2));
        let mut measured = Measured { kernel: "6.18".into(), counts: false, machine, runs: Vec::new() };
        for load in loads() {
            let (shown, _) = simulate(&measured, "fifo", &load, truth.clone(), 0).unwrap();
            measured.runs.push(Run { policy: "fifo".into(), load, shown: vec![shown] });
        }
        assert!(Calibration::is_possible(&measured));
        let found = Calibration::of(&measured).unwrap().models.of("fifo").unwrap();
        let near = |found_ns: u64, true_ns: u64| assert!(found_ns.abs_diff(true_ns) <= 20, "{found_ns}, not {true_ns}");
        near(found.costs.switch_ns, 2_345);
        near(found.costs.fork_ns, 67_890);
        near(found.costs.wakeup_ns, truth.costs.wakeup_ns);
        near(found.costs.child_ns, truth.costs.child_ns);
        near(found.timer_slack_ns, 70_000);
        assert!(Models { kernel: String::new(), policies: BTreeMap::new() }.of("fifo").is_err());
        measured.runs.pop();
        assert!(!Calibration::is_possible(&measured), "one of the loads was not measured");
    }
}
