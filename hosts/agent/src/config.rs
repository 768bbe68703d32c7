//! How a policy is to be run, and what is counted meanwhile.

use std::{ops::AddAssign, sync::Arc};

use ekiden::{ParamError, Topology};
use ekiden_host::{Host, Knows, Policy};
use ekiden_loader::room_for_all;
use serde::{Deserialize, Serialize};

/// Room for as many tasks, 128 bytes in the kernel and 250 in the agent for each.
const TASKS_MAX: u32 = 1 << 16;

/// Makes the policy, for a machine and this many tasks.
pub type Make = fn(Topology, u32, &str, Arc<dyn Host + Send>) -> std::result::Result<Box<dyn Policy>, ParamError>;

/// Lets a policy take over from another one.
pub type TakesOver = Box<dyn FnOnce(Box<dyn Policy>) -> (Box<dyn Policy>, Knows) + Send>;

/// Makes a policy that takes over from another one, for a machine and this many tasks; with its state if they are of one type, unless it is
/// to start over.
pub type MakeNext = fn(Topology, u32, &str, Arc<dyn Host + Send>, bool) -> std::result::Result<TakesOver, ParamError>;

/// A policy that is to take over.
#[derive(Clone, Debug)]
pub struct Next {
    /// Its name.
    pub policy: String,
    /// Its parameters, as in [`Config::params`].
    pub params: String,
    /// Whether all tasks are new to it even if it is of the same type as the old one.
    pub start_over: bool,
}

/// How a policy is to be run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name.
    pub policy: String,
    /// Its parameters, `name=number` separated by blanks.
    pub params: String,
    /// What a policy of this name has saved in the kernel, for this one to continue from; nothing if it begins anew.
    pub saved: Vec<u8>,
    /// How many tasks there is room for. More share a part of each CPU, and the policy does not have them.
    pub max_tasks: u32,
    /// How many messages there is room for, 64 bytes each: a power of two, and 1,024 at least.
    pub messages: u32,
    /// Whether the policy decides for each task that wakes up. Otherwise a task is placed without it where a CPU is idle and nothing waits, if the
    /// policy leaves to the kernel where tasks go.
    pub every_wakeup: bool,
    /// How many records of its newest calls are kept, 64 bytes each: a power of two, or 0 for none.
    pub call_log_records: u64,
}

impl Config {
    /// The defaults: room for as many tasks as the machine may have, 65,536 at most, for 16,384 messages, and for as many
    /// records.
    pub fn new(policy: &str) -> Self {
        Self {
            policy: policy.to_owned(),
            params: String::new(),
            saved: Vec::new(),
            max_tasks: room_for_all().min(TASKS_MAX),
            messages: 1 << 14,
            every_wakeup: false,
            call_log_records: 1 << 14,
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        let Self { messages, decisions, kicks, stale, batches, lost, stocks } = other;
        self.messages += messages;
        self.decisions += decisions;
        self.kicks += kicks;
        self.stale += stale;
        self.batches += batches;
        self.lost += lost;
        self.stocks += stocks;
    }
}

/// What an agent has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Messages that it has taken.
    pub messages: u64,
    /// Decisions that a task is to run on a CPU.
    pub decisions: u64,
    /// CPUs that were told to look for work.
    pub kicks: u64,
    /// Decisions that were refused because they rested on what was not so any more.
    pub stale: u64,
    /// System calls by which they went out.
    pub batches: u64,
    /// Messages that there was no room for.
    pub lost: u64,
    /// How often all tasks were looked at anew because of that.
    pub stocks: u64,
}
