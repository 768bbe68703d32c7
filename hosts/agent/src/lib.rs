//! The agent host: a policy in a process. One BPF program tells it what happens to tasks and carries out what it
//! decides; no module is needed. The engine and the policy are those of every other host.
//!
//! After papers/004: messages with sequence numbers (3.2.3), decisions in batches that are refused if they rest on
//! what is not so any more (3.2.4), and a thread that is never in the way of what it schedules, nor that of it
//! (3.2.1, 3.2.2). The messages are in docs/agent.md.
//!
//! However the agent ends, its link to the kernel ends with it, and the kernel's own scheduler has every task. The
//! same happens some 20 to 40 ms after it has stopped answering, or a second where a hypervisor takes the CPU's time.
//!
//! Without the feature `bpf`, which needs clang, libelf and zlib to build, [`Agent::start`] says that it cannot.

#[cfg_attr(not(feature = "bpf"), path = "without_bpf.rs")]
mod agent;
#[cfg(feature = "bpf")]
mod call_log;
mod config;
#[cfg(feature = "bpf")]
mod heartbeat;
#[cfg(feature = "bpf")]
mod host;
#[cfg(feature = "bpf")]
mod mind;
#[cfg(feature = "bpf")]
mod ready;
#[cfg(feature = "bpf")]
mod skel;
#[cfg(feature = "bpf")]
mod wire;

pub use agent::{Agent, Prepared};
pub use config::{Config, Counts, Make, MakeNext, Next, TakesOver};
