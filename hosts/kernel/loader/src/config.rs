//! How a policy is to be run.

use std::{fs, path::PathBuf};

use crate::control::Access;

/// Which tasks the policy gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Scope {
    /// All ordinary tasks of the machine.
    #[default]
    All,
    /// Only tasks in class SCHED_EXT.
    Attached,
}

/// How a policy is to be run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name.
    pub policy: String,
    /// Its parameters, `name=number` separated by blanks.
    pub params: String,
    /// What a policy of this name has saved in an agent, for this one to continue from; nothing if it begins anew.
    pub saved: Vec<u8>,
    /// Which tasks it gets.
    pub scope: Scope,
    /// `ekiden.ko` and the policy's module, in this order; those that are loaded already are passed over.
    pub modules: Vec<PathBuf>,
    /// How many tasks there can be at once. More share a part of each CPU, and no policy has them.
    pub max_tasks: u32,
    /// Memory for the policy, in bytes.
    pub arena_bytes: u64,
    /// How many records of its newest calls are kept for each CPU, 64 bytes each: a power of two, or 0 for none.
    pub call_log_records: u64,
    /// Whether another policy can take over. What that costs is measured without it.
    pub upgradable: bool,
    /// What it does if policies of Ekiden's run already.
    pub beside: Beside,
    /// Who may choose it for their tasks.
    pub access: Access,
}

/// What to do if policies run already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Beside {
    /// Nothing: that is an error.
    #[default]
    Nobody,
    /// Come to them, as the last that is asked, and get the tasks for which it is [chosen](crate::choose).
    Others,
    /// Come to them as `Others` does, and get all tasks for which no policy was chosen.
    OthersAsDefault,
}

impl Config {
    /// The defaults: all tasks, [room](room_for_all) for as many as the machine may have, [memory](arena_bytes_for) for those, and 1 MiB
    /// of calls for each CPU.
    pub fn new(policy: &str, modules: Vec<PathBuf>) -> Self {
        let max_tasks = room_for_all();
        Self {
            policy: policy.to_owned(),
            params: String::new(),
            saved: Vec::new(),
            scope: Scope::All,
            modules,
            max_tasks,
            arena_bytes: arena_bytes_for(max_tasks),
            call_log_records: 1 << 14,
            upgradable: true,
            beside: Beside::Nobody,
            access: Access::Root,
        }
    }
}

/// Room for all tasks that this machine may have, by `kernel.threads-max` and `kernel.pid_max`: a power of two, as memory is taken in these,
/// and a million at most. It takes 192 bytes for each, less than half a per cent of the memory of which the kernel would have one task more.
pub fn room_for_all() -> u32 {
    const LEAST: u32 = 1 << 12;
    const MOST: u32 = 1 << 20;
    let limit = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse::<u32>().ok()
    };
    let tasks = limit("threads-max").into_iter().chain(limit("pid_max")).min().unwrap_or(1 << 15);
    tasks.clamp(LEAST, MOST).next_power_of_two()
}

/// Memory for a policy that is to have so many tasks: 256 bytes for each, twice what any policy of Ekiden's keeps of one, and 32 MiB at
/// least.
pub fn arena_bytes_for(max_tasks: u32) -> u64 {
    (u64::from(max_tasks) * 256).max(32 << 20)
}

/// How many queues a plain BPF FIFO has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// One per CPU.
    PerCpu,
    /// One for all CPUs.
    Shared,
    /// None of its own: tasks go to the kernel's queue of their CPU.
    Local,
}

impl Queues {
    /// The name under which the kernel knows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::PerCpu => "ekiden_bpf_fifo",
            Self::Shared => "ekiden_bpf_shared",
            Self::Local => "ekiden_bpf_local",
        }
    }
}
