//! What is simulated: CPUs, their tick, and what things cost.

use std::sync::Arc;

use ekiden::{CpuId, Topology};

/// How long a picked task may run when its policy does not say, as in sched_ext (`SCX_SLICE_DFL`).
pub const DEFAULT_SLICE_NS: u64 = 20_000_000;

/// A machine: its CPUs and how it behaves.
#[derive(Clone, Debug)]
pub struct Machine {
    /// CPUs, and what they share. The capacity of a CPU is its speed.
    pub topology: Arc<Topology>,
    /// Time between two ticks of a CPU. A CPU without a task has none.
    pub tick_ns: u64,
    /// When CPUs tick.
    pub tick_phase: TickPhase,
    /// What things cost.
    pub costs: Costs,
    /// What varies at random.
    pub jitter: Jitter,
}

/// When the CPUs of a machine tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TickPhase {
    /// All at the same moment, as Linux does unless it is started with `skew_tick=1`.
    #[default]
    Aligned,
    /// Spread evenly over one period, in the order of their numbers.
    Staggered,
}

/// What things cost, in nanoseconds of the CPU that does them unless it says otherwise. The time is spent by, and
/// accounted to, the task that is named.
///
/// The defaults are the order of magnitude of a server of the 2020s; they are not measured on any one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Changing to another task than the one that ran before; spent by the new one before it does anything else.
    pub switch_ns: u64,
    /// Waking a task up; spent by the task that does it. A wake-up by a timer costs nobody anything.
    pub wakeup_ns: u64,
    /// From asking a CPU to look for work until it does: the interrupt, and leaving idle. Taken as at least 1.
    pub kick_ns: u64,
    /// Warming up the caches after a move to a CPU with the same last-level cache; spent by the task that moved.
    /// A move between threads of one core is free.
    pub migrate_llc_ns: u64,
    /// The same, for a move to another last-level cache of the node.
    pub migrate_node_ns: u64,
    /// The same, for a move to another node.
    pub migrate_remote_ns: u64,
    /// Every step of a load that is not `run`: going into the kernel and back. Taken as at least 1, so that no
    /// program goes round for ever without time passing.
    pub syscall_ns: u64,
    /// Taking or freeing a lock that nobody else wants, and seeing that what one spins for has come, instead of
    /// `syscall_ns`. Taken as at least 1.
    pub atomic_ns: u64,
    /// Starting a child, instead of `syscall_ns`.
    pub fork_ns: u64,
    /// Replacing the program image, and its start and end.
    pub exec_ns: u64,
    /// From the end of a program until its task is gone.
    pub exit_ns: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            switch_ns: 1_200,
            wakeup_ns: 800,
            kick_ns: 1_000,
            migrate_llc_ns: 2_000,
            migrate_node_ns: 6_000,
            migrate_remote_ns: 20_000,
            syscall_ns: 300,
            atomic_ns: 50,
            fork_ns: 50_000,
            exec_ns: 300_000,
            exit_ns: 30_000,
        }
    }
}

impl Costs {
    /// Nothing costs anything, apart from the least that keeps time moving. For tests that compare exact times.
    pub fn free() -> Self {
        Self {
            switch_ns: 0,
            wakeup_ns: 0,
            kick_ns: 1,
            migrate_llc_ns: 0,
            migrate_node_ns: 0,
            migrate_remote_ns: 0,
            syscall_ns: 1,
            atomic_ns: 1,
            fork_ns: 1,
            exec_ns: 1,
            exit_ns: 0,
        }
    }
}

/// What varies at random, by the seed of the simulation. Each task has a random sequence of its own, so that one load
/// draws the same numbers under every policy. Nothing varies by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jitter {
    /// A sleep lasts up to this much longer: the kernel's timer slack, 50,000 for ordinary tasks.
    pub sleep_ns: u64,
    /// The work of a step is up to this many thousandths more or less, at most 1,000.
    pub work_permille: u32,
}

impl Machine {
    /// A machine of these CPUs with the tick of the kernels that Ekiden is tested on (250 a second).
    pub fn new(topology: Topology) -> Self {
        Self {
            topology: Arc::new(topology),
            tick_ns: 4_000_000,
            tick_phase: TickPhase::default(),
            costs: Costs::default(),
            jitter: Jitter::default(),
        }
    }

    /// A machine of `nr_cpus` equal CPUs that share one cache.
    ///
    /// # Panics
    ///
    /// As [`Topology::flat`].
    pub fn flat(nr_cpus: u32) -> Self {
        Self::new(Topology::flat(nr_cpus))
    }

    /// The same machine with other costs.
    #[must_use]
    pub fn with_costs(mut self, costs: Costs) -> Self {
        self.costs = costs;
        self
    }

    /// The time of the first tick of `cpu` after `now_ns`.
    pub(crate) fn next_tick_ns(&self, cpu: CpuId, now_ns: u64) -> u64 {
        let tick_ns = self.tick_ns.max(1);
        let phase_ns = match self.tick_phase {
            TickPhase::Aligned => 0,
            TickPhase::Staggered => tick_ns * u64::from(cpu) / u64::from(self.topology.nr_cpus()),
        };
        // The first tick ever is one period after the phase, so `now_ns` may lie before it.
        let periods = (now_ns + tick_ns - phase_ns) / tick_ns;
        periods * tick_ns + phase_ns
    }

    /// What it costs a task to run on `to` after it ran on `from`.
    pub(crate) fn migration_ns(&self, from: CpuId, to: CpuId) -> u64 {
        let (from, to) = (self.topology.cpu(from), self.topology.cpu(to));
        if from.core == to.core {
            0
        } else if from.llc == to.llc {
            self.costs.migrate_llc_ns
        } else if from.node == to.node {
            self.costs.migrate_node_ns
        } else {
            self.costs.migrate_remote_ns
        }
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
        machine.tick_phase = TickPhase::Staggered;
        assert_eq!(machine.next_tick_ns(3, 0), 3_000_000);
        assert_eq!(machine.next_tick_ns(3, 3_000_000), 7_000_000);
    }

    #[test]
    fn a_move_costs_by_what_the_cpus_share() {
        // Two nodes of two caches of two cores of two threads.
        let machine = Machine::new(Topology::regular(2, 2, 2, 2));
        let costs = machine.costs;
        assert_eq!(machine.migration_ns(0, 8), 0);
        assert_eq!(machine.migration_ns(0, 1), costs.migrate_llc_ns);
        assert_eq!(machine.migration_ns(0, 2), costs.migrate_node_ns);
        assert_eq!(machine.migration_ns(0, 4), costs.migrate_remote_ns);
    }
}
