//! The simulated machine: CPUs, and how they behave.

use std::sync::Arc;

use ekiden::{CpuId, Topology};

use crate::model::{Model, TickPhase};

/// How long a picked task may run when its policy does not say, as in sched_ext (`SCX_SLICE_DFL`).
pub const DEFAULT_SLICE_NS: u64 = 20_000_000;

/// The distance of a node from itself, and that for which costs are given.
const LOCAL_DISTANCE: u64 = 10;
const USUAL_DISTANCE: u64 = 20;

/// A machine: its CPUs and how it behaves.
#[derive(Clone, Debug)]
pub struct Machine {
    /// CPUs, and what they share. The capacity of a CPU is its speed.
    pub topology: Arc<Topology>,
    /// How it behaves.
    pub model: Model,
}

impl Machine {
    /// A machine of these CPUs.
    pub fn new(topology: Topology) -> Self {
        Self { topology: Arc::new(topology), model: Model::default() }
    }

    /// A machine of `nr_cpus` equal CPUs that share one cache.
    ///
    /// # Panics
    ///
    /// As [`Topology::flat`].
    pub fn flat(nr_cpus: u32) -> Self {
        Self::new(Topology::flat(nr_cpus))
    }

    /// Gives the CPUs another behaviour.
    #[must_use]
    pub fn with_model(mut self, model: Model) -> Self {
        self.model = model;
        self
    }

    /// Refuses values that are out of bounds, and says which.
    pub(crate) fn check(&self) -> Result<(), String> {
        let nr_cpus = self.topology.nr_cpus();
        self.model.check()?;
        match self.model.interrupts.iter().flat_map(|interrupt| &interrupt.cpus).find(|cpu| **cpu >= nr_cpus) {
            Some(cpu) => Err(format!("an interrupt goes to CPU {cpu}: the machine has {nr_cpus}, numbered from 0")),
            None => Ok(()),
        }
    }

    /// The time of the first tick of `cpu` after `now_ns`.
    pub(crate) fn next_tick_ns(&self, cpu: CpuId, now_ns: u64) -> u64 {
        let tick_ns = self.model.tick_ns;
        let phase_ns = match self.model.tick_phase {
            TickPhase::Aligned => 0,
            TickPhase::Staggered => tick_ns * u64::from(cpu) / u64::from(self.topology.nr_cpus()),
        };
        // The first tick ever is one period after the phase, so `now_ns` may lie before it.
        let periods = (now_ns + tick_ns - phase_ns) / tick_ns;
        periods * tick_ns + phase_ns
    }

    /// What it costs a task to run on `to` after it ran on `from`, and whether others ran on that since, if it stays.
    pub(crate) fn cold_cache_ns(&self, from: CpuId, to: CpuId, others_ran: bool) -> u64 {
        let costs = &self.model.costs;
        if from == to {
            return if others_ran { costs.refill_ns } else { 0 };
        }
        let (from, to) = (self.topology.cpu(from), self.topology.cpu(to));
        if from.core == to.core {
            0
        } else if from.llc == to.llc {
            costs.migrate_llc_ns
        } else if from.node == to.node {
            costs.migrate_node_ns
        } else {
            self.by_distance(costs.migrate_remote_ns, from.node, to.node).max(costs.migrate_node_ns)
        }
    }

    /// From asking a CPU to look for work until it does, if it is awake.
    pub(crate) fn kick_ns(&self, from: CpuId, to: CpuId) -> u64 {
        let costs = &self.model.costs;
        if costs.kick_remote_ns == 0 || from == to {
            return costs.kick_ns.max(1);
        }
        let (from, to) = (self.topology.cpu(from).node, self.topology.cpu(to).node);
        let farther_ns = if from == to { 0 } else { self.by_distance(costs.kick_remote_ns, from, to) };
        costs.kick_ns.saturating_add(farther_ns).max(1)
    }

    /// A cost of `ns` between nodes at the usual distance, scaled to the distance of these two.
    fn by_distance(&self, ns: u64, from: u32, to: u32) -> u64 {
        let farther = u64::from(self.topology.distance(from, to)).saturating_sub(LOCAL_DISTANCE);
        ns.saturating_mul(farther) / (USUAL_DISTANCE - LOCAL_DISTANCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_come_one_period_apart_at_the_phase_of_the_cpu() {
        let mut machine = Machine::flat(4);
        assert_eq!(machine.next_tick_ns(3, 0), 4_000_000);
        assert_eq!(machine.next_tick_ns(3, 4_000_000), 8_000_000);
        assert_eq!(machine.next_tick_ns(3, 7_999_999), 8_000_000);
        machine.model.tick_phase = TickPhase::Staggered;
        assert_eq!(machine.next_tick_ns(3, 0), 3_000_000);
        assert_eq!(machine.next_tick_ns(3, 3_000_000), 7_000_000);
    }

    #[test]
    fn a_move_costs_by_what_the_cpus_share() {
        // Two nodes of two caches of two cores of two threads.
        let machine = Machine::new(Topology::regular(2, 2, 2, 2));
        let costs = machine.model.costs;
        assert_eq!(machine.cold_cache_ns(0, 0, false), 0);
        assert_eq!(machine.cold_cache_ns(0, 0, true), costs.refill_ns);
        assert_eq!(machine.cold_cache_ns(0, 8, true), 0);
        assert_eq!(machine.cold_cache_ns(0, 1, true), costs.migrate_llc_ns);
        assert_eq!(machine.cold_cache_ns(0, 2, true), costs.migrate_node_ns);
        assert_eq!(machine.cold_cache_ns(0, 4, true), costs.migrate_remote_ns);
    }

    #[test]
    fn what_is_farther_away_costs_more() {
        let machine = |distance| {
            let cpu = |id| ekiden::Cpu { id, core: id, llc: id, node: id, capacity: 1024, online: true };
            Machine::new(Topology::new(vec![cpu(0), cpu(1)], vec![10, distance, distance, 10]).unwrap())
        };
        let costs = machine(20).model.costs;
        assert_eq!(
            [20, 30].map(|distance| machine(distance).cold_cache_ns(0, 1, false) / costs.migrate_remote_ns),
            [1, 2]
        );
        assert_eq!(machine(11).cold_cache_ns(0, 1, false), costs.migrate_node_ns);
        assert_eq!(machine(30).kick_ns(0, 1), costs.kick_ns + 2 * costs.kick_remote_ns);
        assert_eq!(machine(30).kick_ns(1, 1), costs.kick_ns);
    }
}
