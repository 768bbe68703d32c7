//! `ekiden bench messaging`: what hackbench does.

use anyhow::Result;
use clap::Args;
use ekiden_bench::{BPF, BPF_SHARED, Comparison, Limit, Measurements};
use serde::{Deserialize, Serialize};

use super::{
    Unit,
    asked::Benchmark,
    candidates::{Candidate, Candidates},
    guest::Clock,
    load,
};
use crate::request::Measurement;

/// Without the flight recorder.
const SHARED_OFF: &str = "global-fifo, recorder off";

/// Where the tasks are.
const PLACE: &str = "all_cpus";

/// Defaults of the load.
const GROUPS: u32 = 4;
const PAIRS: u32 = 5;
const LOOPS: u64 = 20;

/// What must be reached: a policy in Rust is as cheap as the same one in plain BPF.
const LIMITS: &[(Limit, &str, &str, &str)] = &[
    (Limit { name: "fifo, recorder off ÷ plain BPF", at_most: 1.05 }, "fifo, recorder off", PLACE, BPF),
    (Limit { name: "global-fifo, recorder off ÷ BPF of one queue", at_most: 1.05 }, SHARED_OFF, PLACE, BPF_SHARED),
];

#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[command(after_help = "\
Examples:
  ekiden bench messaging --vm --check
  sudo ekiden bench messaging --groups 10 --pairs 20 --loops 1000
      on this machine, as large as hackbench's own")]
pub(crate) struct MessagingBench {
    #[command(flatten)]
    candidates: Candidates,
    /// How often each scheduler gets its turn; one more turn comes before and does not count
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// Groups, independent of each other
    #[arg(long, value_name = "N", default_value_t = GROUPS, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    groups: u32,
    /// Senders, and as many receivers, in each group
    #[arg(long, value_name = "N", default_value_t = PAIRS, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pairs: u32,
    /// Messages from each sender to each receiver
    #[arg(long, value_name = "N", default_value_t = LOOPS, value_parser = clap::value_parser!(u64).range(1..))]
    loops: u64,
}

impl Benchmark for MessagingBench {
    const NAME: &'static str = "messaging";
    const CLOCK: Clock = Clock::Exact;

    fn candidates(&self) -> Candidates {
        self.candidates.clone()
    }
}

impl Measurement for MessagingBench {
    type Figures = Comparison;

    fn measure(&self, unit: Unit) -> Result<Comparison> {
        let mut measurements = Measurements::default();
        self.candidates
            .interleave(self.repeat, &mut measurements, &|candidate| Ok(vec![(PLACE, self.time(candidate)?)]))?;
        let limits: Vec<_> =
            LIMITS.iter().copied().filter(|(_, policy, ..)| self.candidates.has_one_called(policy)).collect();
        let unit = unit.million();
        Ok(Comparison::new("messaging", unit, &load::kernel_release()?, &measurements, &limits))
    }
}

impl MessagingBench {
    /// A bench with the default number of messages.
    pub(crate) fn new(candidates: Candidates, repeat: u32) -> Self {
        Self { candidates, repeat, groups: GROUPS, pairs: PAIRS, loops: LOOPS }
    }

    fn time(&self, candidate: &Candidate) -> Result<f64> {
        let size = self.size();
        let args: Vec<&str> =
            ["messaging"].into_iter().chain(size.iter().map(String::as_str)).chain(["--json"]).collect();
        load::time(candidate, &args)
    }

    fn size(&self) -> [String; 3] {
        [format!("--groups={}", self.groups), format!("--pairs={}", self.pairs), format!("--loops={}", self.loops)]
    }
}
