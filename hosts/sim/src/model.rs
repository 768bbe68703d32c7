//! How a simulated machine behaves: its tick, its idle states, its interrupts, and what things cost.
//!
//! All of it can be written to and read from a JSON file, so that what was measured on one machine serves elsewhere.

use std::collections::BTreeMap;

use ekiden::{Call, CpuId};
use serde::{Deserialize, Serialize};

/// How a machine behaves. What a file leaves out is as in the default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// Time between two ticks of a CPU. A CPU without a task has none.
    pub tick_ns: u64,
    /// When CPUs tick.
    pub tick_phase: TickPhase,
    /// What things cost.
    pub costs: Costs,
    /// How deep CPUs sleep, from the lightest state to the deepest.
    pub idle_states: Vec<IdleState>,
    /// What two hardware threads of a core do together, in percent of what one does alone. Each further thread adds as
    /// much again.
    pub smt_percent: u32,
    /// Interrupts of devices besides those that tasks have asked for.
    pub interrupts: Vec<Interrupt>,
    /// A sleep lasts this much longer, so that timers can go off together: 50,000 for ordinary tasks of Linux.
    pub timer_slack_ns: u64,
    /// What calls into the policy take, in nanoseconds, by the name of the call; those that are not named take
    /// [`Costs::call_ns`].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub calls: BTreeMap<String, u64>,
    /// What varies at random.
    pub jitter: Jitter,
}

/// The tick is that of the kernels that Ekiden is tested on, 250 a second; the rest is the order of magnitude of a
/// server of the 2020s, and not measured on any one machine.
impl Default for Model {
    fn default() -> Self {
        Self {
            tick_ns: 4_000_000,
            tick_phase: TickPhase::default(),
            costs: Costs::default(),
            idle_states: vec![
                IdleState { after_ns: 20_000, exit_ns: 10_000 },
                IdleState { after_ns: 600_000, exit_ns: 100_000 },
            ],
            smt_percent: 130,
            interrupts: Vec::new(),
            timer_slack_ns: 50_000,
            calls: BTreeMap::new(),
            jitter: Jitter::default(),
        }
    }
}

/// When the CPUs of a machine tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TickPhase {
    /// All at the same moment, as Linux does unless it is started with `skew_tick=1`.
    #[default]
    Aligned,
    /// Spread evenly over one period, in the order of their numbers.
    Staggered,
}

/// What things cost, in nanoseconds of the CPU that does them unless it says otherwise. The time is spent by, and
/// accounted to, the task that is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// Changing to another task than the one that ran before; spent by the new one before it does anything else.
    pub switch_ns: u64,
    /// Warming up the core's own caches after another task ran there; spent by the one that comes back.
    pub refill_ns: u64,
    /// Waking a task up; spent by the task that does it.
    pub wakeup_ns: u64,
    /// From asking a CPU to look for work until it does, without leaving an idle state. Taken as at least 1.
    pub kick_ns: u64,
    /// More of that, for a CPU on a node at distance 20; in proportion for other distances.
    pub kick_remote_ns: u64,
    /// Warming up the caches after a move to a CPU with the same last-level cache; spent by the task that moved.
    /// A move between threads of one core is free.
    pub migrate_llc_ns: u64,
    /// Cache warm-up after a move to another last-level cache of the node.
    pub migrate_node_ns: u64,
    /// Cache warm-up after a move to a node at distance 20; in proportion for other distances, but no less than within a
    /// node.
    pub migrate_remote_ns: u64,
    /// The tick; spent by the task that it interrupts.
    pub tick_ns: u64,
    /// The interrupt of a timer or a device that wakes a task up; spent by the task that runs where that one did.
    pub interrupt_ns: u64,
    /// Every step of a load that is not `run`: going into the kernel and back. Taken as at least 1, so that no
    /// program loops without time passing.
    pub syscall_ns: u64,
    /// Taking or freeing a lock without contention, and seeing that what one spins for has come, instead of
    /// `syscall_ns`. Taken as at least 1.
    pub atomic_ns: u64,
    /// Starting a child, instead of `syscall_ns`.
    pub fork_ns: u64,
    /// A call into the policy, which the CPU that makes it spends; the default is nothing, as `switch_ns` and `wakeup_ns` have the
    /// work of a usual policy in them. Waiting for its locks is not modelled: calls take none of each other's time.
    pub call_ns: u64,
    /// What a child does before its program begins, most of it page faults.
    pub child_ns: u64,
    /// Replacing the program image, and its start and end.
    pub exec_ns: u64,
    /// From the end of a program until its task is gone.
    pub exit_ns: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            switch_ns: 1_200,
            refill_ns: 500,
            wakeup_ns: 800,
            kick_ns: 1_000,
            kick_remote_ns: 500,
            migrate_llc_ns: 2_000,
            migrate_node_ns: 6_000,
            migrate_remote_ns: 20_000,
            tick_ns: 1_500,
            interrupt_ns: 1_000,
            syscall_ns: 300,
            atomic_ns: 50,
            fork_ns: 50_000,
            call_ns: 0,
            child_ns: 10_000,
            exec_ns: 300_000,
            exit_ns: 30_000,
        }
    }
}

/// A state that a CPU without work falls into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdleState {
    /// How long the CPU has been idle by then.
    pub after_ns: u64,
    /// How long it takes to leave it again.
    pub exit_ns: u64,
}

/// An interrupt that comes again and again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interrupt {
    /// Time between two.
    pub period_ns: u64,
    /// How long its handler runs; spent by the task that it interrupts, as where the kernel does not account
    /// interrupts for themselves.
    pub handler_ns: u64,
    /// The CPUs that get it in turn; none means all.
    #[serde(default)]
    pub cpus: Vec<CpuId>,
    /// Whether the time between two varies by chance, around that average (exponentially).
    #[serde(default)]
    pub random: bool,
}

/// What varies at random, by the seed of the simulation. Each task has a random sequence of its own, so that one load
/// draws the same numbers under every policy. Nothing varies by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Jitter {
    /// A sleep lasts up to this much longer, besides the timer slack.
    pub sleep_ns: u64,
    /// The work of a step is up to this many thousandths more or less, at most 1,000.
    pub work_permille: u32,
}

/// The most sources of interrupts.
pub(crate) const MAX_INTERRUPTS: usize = 16;

/// The shortest period of a tick or an interrupt: with less a machine does nothing else.
const MIN_PERIOD_NS: u64 = 1_000;

impl Model {
    /// Nothing costs anything, apart from the least that keeps time moving, and nothing slows anything down. For tests
    /// that compare exact times.
    pub fn free() -> Self {
        let costs = Costs {
            switch_ns: 0,
            refill_ns: 0,
            wakeup_ns: 0,
            kick_ns: 1,
            kick_remote_ns: 0,
            migrate_llc_ns: 0,
            migrate_node_ns: 0,
            migrate_remote_ns: 0,
            tick_ns: 0,
            interrupt_ns: 0,
            syscall_ns: 1,
            atomic_ns: 1,
            fork_ns: 1,
            call_ns: 0,
            child_ns: 0,
            exec_ns: 1,
            exit_ns: 0,
        };
        Self { costs, idle_states: Vec::new(), smt_percent: 200, timer_slack_ns: 0, ..Self::default() }
    }

    /// Reads one from JSON. What it leaves out is as in the default.
    ///
    /// # Errors
    /// When it is no model; with line and column, or with the name of what is out of bounds.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let model: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        model.check()?;
        Ok(model)
    }

    /// The model as it is written to a file.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data has a JSON form")
    }

    /// Refuses values that are out of bounds, and says which.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.tick_ns < MIN_PERIOD_NS {
            return Err(format!("tick_ns is {}: make it at least {MIN_PERIOD_NS}", self.tick_ns));
        }
        if !(100..=1_000).contains(&self.smt_percent) {
            return Err(format!("smt_percent is {}: make it 100 to 1000", self.smt_percent));
        }
        if !self.idle_states.is_sorted_by_key(|state| (state.after_ns, state.exit_ns)) {
            return Err("idle_states are not in order: put the lightest first and the deepest last".into());
        }
        let is_call = |name: &str| Call::ALL.iter().any(|call| call.name() == name);
        if let Some(name) = self.calls.keys().find(|name| !is_call(name)) {
            let names: Vec<&str> = Call::ALL.iter().map(|call| call.name()).collect();
            return Err(format!("calls has `{name}`: a policy has {}", names.join(", ")));
        }
        if self.interrupts.len() > MAX_INTERRUPTS {
            return Err(format!("{} interrupts: there can be {MAX_INTERRUPTS}", self.interrupts.len()));
        }
        match self.interrupts.iter().find(|interrupt| interrupt.period_ns < MIN_PERIOD_NS) {
            Some(Interrupt { period_ns, .. }) => {
                Err(format!("an interrupt's period_ns is {period_ns}: make it at least {MIN_PERIOD_NS}"))
            }
            None => Ok(()),
        }
    }

    /// What each call takes, by its number; nothing if calls cost nothing.
    pub(crate) fn call_costs_ns(&self) -> Option<Vec<u64>> {
        let most = Call::ALL.iter().map(|call| *call as usize).max().unwrap_or_default();
        let mut costs_ns = vec![self.costs.call_ns; most + 1];
        for call in Call::ALL {
            costs_ns[call as usize] = self.calls.get(call.name()).copied().unwrap_or(self.costs.call_ns);
        }
        costs_ns.iter().any(|ns| *ns > 0).then_some(costs_ns)
    }

    /// How long a CPU takes to leave idle after it has been there for `idle_ns`.
    pub(crate) fn idle_exit_ns(&self, idle_ns: u64) -> u64 {
        let state = self.idle_states.iter().rev().find(|state| state.after_ns <= idle_ns);
        state.map_or(0, |state| state.exit_ns)
    }

    /// The speed of a CPU of this capacity whose core has this many busy threads, itself included.
    pub(crate) fn shared_capacity(&self, capacity: u64, busy_threads: u32) -> u64 {
        let busy = u64::from(busy_threads.max(1));
        let together = 100 + u64::from(self.smt_percent - 100) * (busy - 1);
        (capacity * together / (100 * busy)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_comes_back_from_its_file() {
        let interrupts = vec![Interrupt { period_ns: 10_000, handler_ns: 5, cpus: vec![1], random: true }];
        let model = Model { interrupts, smt_percent: 150, ..Model::default() };
        assert_eq!(Model::from_json(&model.to_json()), Ok(model));
        assert_eq!(Model::from_json("{}"), Ok(Model::default()));
        let partial = Model::from_json(r#"{"costs": {"switch_ns": 7}}"#).unwrap();
        assert_eq!(partial.costs, Costs { switch_ns: 7, ..Costs::default() });
    }

    #[test]
    fn what_is_no_model_is_refused_with_its_place() {
        for (text, why) in [
            ("", "line 1 column 0"),
            (r#"{"costs": {"swich_ns": 7}}"#, "unknown field `swich_ns`"),
            (r#"{"tick_ns": 5}"#, "tick_ns is 5"),
            (r#"{"smt_percent": 5}"#, "smt_percent is 5"),
            (r#"{"idle_states": [{"after_ns": 9, "exit_ns": 1}, {"after_ns": 1, "exit_ns": 9}]}"#, "not in order"),
            (r#"{"calls": {"pick": 9}}"#, "calls has `pick`: a policy has "),
            (r#"{"interrupts": [{"period_ns": 9, "handler_ns": 1}]}"#, "period_ns is 9"),
        ] {
            let error = Model::from_json(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn threads_of_a_core_share_what_it_can_do() {
        let model = Model { smt_percent: 130, ..Model::default() };
        assert_eq!([1, 2, 4].map(|busy| model.shared_capacity(1_000, busy)), [1_000, 650, 475]);
        assert_eq!(Model::free().shared_capacity(1_000, 2), 1_000);
    }

    #[test]
    fn the_longer_a_cpu_was_idle_the_longer_it_takes_to_leave() {
        let model = Model::default();
        assert_eq!([0, 19_999, 20_000, 600_000].map(|ns| model.idle_exit_ns(ns)), [0, 0, 10_000, 100_000]);
    }
}
