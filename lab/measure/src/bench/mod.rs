//! `ekiden bench`: figures, limits, verdicts.

mod applications;
pub(crate) mod contest;
pub(crate) mod count_unsafe;
mod crowd;
mod edit;
pub(crate) mod fairness;
pub(crate) mod guest;
pub(crate) mod hints;
pub(crate) mod load;
mod memory;
pub(crate) mod messaging;
pub(crate) mod pipe;
mod policies;
mod record;
mod share;
mod sim;
mod sleeper;
mod upgrade;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use ekiden_bench::{Comparison, Judged};
use serde::Serialize;

use crate::failure::Exit;

pub use count_unsafe::MAY_BE_UNSAFE;
pub use memory::Sleepers;

/// `ekiden bench`: what something costs, beside limits.
#[derive(Args)]
#[command(after_help = "\
Every bench prints figures, limits and verdicts; with --check it exits with 116
if a limit is missed, and with 101 if a policy was thrown out. With --vm it
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
    Pipe(pipe::PipeBench),
    /// Programs that people know: nginx, PostgreSQL, redis, compilers and more, with pictures
    Applications(Box<applications::ApplicationsBench>),
    /// Groups of senders that each write to every receiver, as hackbench does
    Messaging(messaging::MessagingBench),
    /// Equal shares, weights by nice value, placement and a forced move
    Fairness(fairness::FairnessBench),
    /// What batch work of the default class gets next to a policy's tasks
    Share(share::ShareBench),
    /// How late an ordinary task wakes up beside tasks that never sleep
    Sleeper(sleeper::SleeperBench),
    /// What tasks cost in kernel memory beyond the fixed arena
    Memory(memory::MemoryBench),
    /// What it costs to write down every call
    Record(record::RecordBench),
    /// What it costs that one policy can take over from another, and how long CPUs wait when one does
    Upgrade(upgrade::UpgradeBench),
    /// What it costs one policy that others are there too, that states of tasks are checked, and that control groups have limits
    Policies(policies::PoliciesBench),
    /// What hints cost, and what they are good for
    Hints(hints::HintsBench),
    /// What it costs to watch a kernel and to record what its scheduler does
    Watch(watch::WatchBench),
    /// How fast the simulator is
    Sim(sim::SimBench),
    /// How much unsafe code there is, and where
    CountUnsafe(count_unsafe::CountUnsafe),
    /// From a change in a policy's source until it runs in a virtual machine that is booted
    Edit(edit::EditBench),
}

impl Bench {
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
            Which::Hints(bench) => bench.run(),
            Which::Watch(bench) => bench.run(),
            Which::Sim(bench) => bench.run(),
            Which::CountUnsafe(bench) => bench.run(),
            Which::Edit(bench) => bench.run(),
        }
    }
}

/// What every bench has.
#[derive(Args, Clone, Debug)]
pub(crate) struct Output {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Exit with 116 if a limit is missed, with 101 if a policy was thrown out
    #[arg(long)]
    check: bool,
    /// What a nanosecond of the figures is
    #[arg(long, hide = true, value_enum, default_value_t = Unit::Ns)]
    pub(crate) unit: Unit,
}

/// What the clock counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Unit {
    Ns,
    Instructions,
}

impl Unit {
    /// Of a thousand million.
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

/// What there is to judge.
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

    /// An exit code for whoever wants to know.
    pub(crate) fn exit(&self) -> Option<Exit> {
        match self {
            Self { all_stayed: false, .. } => Some(Exit::ThrownOut),
            Self { limits_met: false, .. } => Some(Exit::LimitMissed),
            Self { .. } => None,
        }
    }
}

impl Output {
    /// Whether a nanosecond is an instruction.
    pub(crate) fn counts(&self) -> bool {
        self.unit == Unit::Instructions
    }

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
                let what = if exit == Exit::ThrownOut { "a policy was thrown out" } else { "a limit was missed" };
                eprintln!("ekiden: {what}");
                Ok(exit.into())
            }
        }
    }
}
