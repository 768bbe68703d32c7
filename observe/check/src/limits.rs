//! From where on something is a violation.

use serde::{Deserialize, Serialize};

/// From where on something is a violation. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// How often work conservation is looked at: S of papers/002, section 4.1.
    pub every_ns: u64,
    /// How long a CPU must be idle while tasks wait elsewhere: M of papers/002, section 4.1. Shorter than that,
    /// balancing may still be about to happen.
    pub persists_ns: u64,
    /// Over how long wasted CPU time is added up.
    pub window_ns: u64,
    /// How much of the CPU time of that may be wasted, in thousandths.
    pub waste_permille: u32,
    /// How long a task has waited before it counts for that: balancing may be about to happen.
    pub patience_ns: u64,
    /// How long a task may wait for a CPU.
    pub wait_ns: u64,
    /// How long an idle CPU may take to notice that a task waits there.
    pub kick_ns: u64,
    /// By how much CPU time a task that is always runnable may be off its fair share in a second; `None` for
    /// policies that do not promise fairness.
    pub lag_ns: Option<u64>,
    /// How long a call into the policy may take.
    pub call_ns: u64,
    /// How long a task that waited when the policy was replaced may go on waiting.
    pub upgrade_ns: u64,
}

impl Default for Limits {
    /// S = 1 s and M = 100 ms as in papers/002, section 4.1. A fiftieth of the CPU time of a second, from the first millisecond of a
    /// wait on: with four times as many tasks that sleep and wake up as fit, a scheduler that balances at wake-ups and when a CPU goes idle
    /// stays below a seventieth on 64 CPUs, and each bug of papers/002 is above. 5 s of waiting, a sixth of what the kernel tolerates; 1 ms for a
    /// kick, which takes microseconds; no promise of fairness; 1 ms for a call, in which interrupts are off; 1 s after a
    /// replacement.
    fn default() -> Self {
        Self {
            every_ns: 1_000_000_000,
            persists_ns: 100_000_000,
            window_ns: 1_000_000_000,
            waste_permille: 20,
            patience_ns: 1_000_000,
            wait_ns: 5_000_000_000,
            kick_ns: 1_000_000,
            lag_ns: None,
            call_ns: 1_000_000,
            upgrade_ns: 1_000_000_000,
        }
    }
}
