//! `ekiden bench`: figures, limits, verdicts.

mod agent_process;
pub(crate) mod applications;
mod asked;
pub(crate) mod candidates;
mod cgroup_fixture;
pub(crate) mod count_unsafe;
mod edit;
pub(crate) mod fairness;
pub(crate) mod guest;
pub(crate) mod hints;
mod idle;
pub(crate) mod load;
pub(crate) mod memory;
pub(crate) mod messaging;
pub(crate) mod pipe;
pub(crate) mod policies;
pub(crate) mod record;
pub(crate) mod share;
mod sim;
pub(crate) mod sleeper;
pub(crate) mod upgrade;
pub(crate) mod watch;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use ekiden_bench::{Comparison, Judged};
use serde::{Deserialize, Serialize};

use self::asked::Asked;

use crate::{failure::Exit, own::Needs};

pub use count_unsafe::MAY_BE_UNSAFE;
pub use memory::Sleepers;

/// `ekiden bench`: what something costs, beside limits.
#[derive(Args)]
#[command(after_help = "\
Every bench prints figures, limits and verdicts; with --check it exits with 116
if a limit is missed, and with 101 if a policy was taken out. With --vm it
counts instructions in a virtual machine, which gives the same figures
everywhere.
Examples:
  ekiden bench pipe --vm --check
  ekiden bench fairness --vm --json
  ekiden bench count-unsafe")]
pub struct Bench {
    #[command(subcommand)]
    which: Which,
}

#[derive(Subcommand)]
enum Which {
    /// A byte to and fro between two processes, on one CPU and across two
    Pipe(Asked<pipe::PipeBench>),
    /// Programs that people know: nginx, PostgreSQL, redis, compilers and more, with pictures
    Applications(Box<applications::ApplicationsBench>),
    /// Groups of senders that each write to every receiver, as hackbench does
    Messaging(Asked<messaging::MessagingBench>),
    /// Equal shares, weights by nice value, placement and a forced move
    Fairness(Asked<fairness::FairnessBench>),
    /// What batch work of the default class gets next to a policy's tasks
    Share(Asked<share::ShareBench>),
    /// How late an ordinary task wakes up beside tasks that never sleep
    Sleeper(Asked<sleeper::SleeperBench>),
    /// What tasks cost in kernel memory beyond the fixed arena
    Memory(Asked<memory::MemoryBench>),
    /// What it costs to write down every call
    Record(Asked<record::RecordBench>),
    /// What it costs that one policy can take over from another, and how long CPUs wait when one does
    Upgrade(Asked<upgrade::UpgradeBench>),
    /// What it costs one policy that others are there too, that states of tasks are checked, and that control groups have limits
    Policies(Asked<policies::PoliciesBench>),
    /// What a machine executes that has nothing to do
    Idle(idle::IdleBench),
    /// What hints cost, and what they are good for
    Hints(Asked<hints::HintsBench>),
    /// What it costs to watch a kernel and to record what its scheduler does
    Watch(Asked<watch::WatchBench>),
    /// How fast the simulator is
    Sim(sim::SimBench),
    /// How much unsafe code there is, and where
    CountUnsafe(count_unsafe::CountUnsafe),
    /// From a change in a policy's source until it runs in a virtual machine that is booted
    Edit(edit::EditBench),
}

impl Bench {
    /// The policies that have to be in this process.
    pub fn needs(&self) -> Needs {
        match &self.which {
            Which::Sim(bench) => bench.needs(),
            // Policies of the other benches are in a kernel.
            _ => Needs::default(),
        }
    }

    /// Runs the command; the exit code is that of the program.
    pub fn run(self) -> Result<ExitCode> {
        match self.which {
            Which::Pipe(bench) => bench.run(),
            Which::Applications(bench) => bench.run(),
            Which::Messaging(bench) => bench.run(),
            Which::Fairness(bench) => bench.run(),
            Which::Share(bench) => bench.run(),
            Which::Sleeper(bench) => bench.run(),
            Which::Memory(bench) => bench.run(),
            Which::Record(bench) => bench.run(),
            Which::Upgrade(bench) => bench.run(),
            Which::Policies(bench) => bench.run(),
            Which::Idle(bench) => bench.run(),
            Which::Hints(bench) => bench.run(),
            Which::Watch(bench) => bench.run(),
            Which::Sim(bench) => bench.run(),
            Which::CountUnsafe(bench) => bench.run(),
            Which::Edit(bench) => bench.run(),
        }
    }
}

/// What every bench has.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Output {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Exit with 116 if a limit is missed, with 101 if a policy was taken out
    #[arg(long)]
    check: bool,
}

/// What the clock counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    Ns,
    Instructions,
}

impl Unit {
    /// As tables and JSON call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ns => "ns",
            Self::Instructions => "instructions",
        }
    }

    /// A thousand of them.
    pub(crate) fn thousand(self) -> &'static str {
        match self {
            Self::Ns => "us",
            Self::Instructions => "thousand instructions",
        }
    }

    /// A million of them.
    fn million(self) -> &'static str {
        match self {
            Self::Ns => "ms",
            Self::Instructions => "million instructions",
        }
    }
}

/// Whether all policies stayed and all limits were met.
pub(crate) struct Verdict {
    pub(crate) all_stayed: bool,
    pub(crate) limits_met: bool,
}

impl Verdict {
    pub(crate) fn of_limits(limits: &[Judged], all_stayed: bool) -> Self {
        Self { all_stayed, limits_met: limits.iter().all(|judged| judged.met) }
    }

    pub(crate) fn of_comparison(comparison: &Comparison) -> Self {
        Self::of_limits(&comparison.limits, comparison.schedulers.iter().all(|row| row.still_scheduler))
    }

    /// The exit code: whether the limits were kept.
    pub(crate) fn exit(&self) -> Option<Exit> {
        match self {
            Self { all_stayed: false, .. } => Some(Exit::TakenOut),
            Self { limits_met: false, .. } => Some(Exit::LimitMissed),
            Self { .. } => None,
        }
    }
}

impl Output {
    /// Prints a result, and judges it if asked to.
    pub(crate) fn show<T: Serialize>(&self, result: &T, text: &str, verdict: &Verdict) -> Result<ExitCode> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(result)?);
        } else {
            println!("{text}");
        }
        match verdict.exit().filter(|_| self.check) {
            None => Ok(ExitCode::SUCCESS),
            Some(exit) => {
                let what = if exit == Exit::TakenOut { "a policy was taken out" } else { "a limit was missed" };
                eprintln!("ekiden: {what}");
                Ok(exit.into())
            }
        }
    }
}
