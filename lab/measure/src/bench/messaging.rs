//! `ekiden bench messaging`: what hackbench does.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use ekiden_bench::{BPF, BPF_SHARED, Comparison, Limit, Measurements};

use super::{
    Output, Verdict,
    contest::{Contest, Contestant},
    guest::{Clock, InVm},
    load,
};

/// Without the flight recorder.
const SHARED_OFF: &str = "global-fifo, recorder off";

/// Where the tasks are.
const PLACE: &str = "all_cpus";

/// What must be reached: a policy in Rust is as cheap as the same one in plain BPF.
const LIMITS: &[(Limit, &str, &str, &str)] = &[
    (Limit { name: "fifo, recorder off ÷ plain BPF", at_most: 1.05 }, "fifo, recorder off", PLACE, BPF),
    (Limit { name: "global-fifo, recorder off ÷ BPF of one queue", at_most: 1.05 }, SHARED_OFF, PLACE, BPF_SHARED),
];

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  ekiden bench messaging --vm --check
  sudo ekiden bench messaging --groups 10 --pairs 20 --loops 1000
      on this machine, as large as hackbench's own")]
pub(crate) struct MessagingBench {
    #[command(flatten)]
    contest: Contest,
    /// How often each scheduler gets its turn; one more turn comes before and does not count
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// Groups, independent of each other
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    groups: u32,
    /// Senders, and as many receivers, in each group
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pairs: u32,
    /// Messages from each sender to each receiver
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    loops: u64,
    #[command(flatten)]
    vm: InVm,
    #[command(flatten)]
    output: Output,
}

impl MessagingBench {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let comparison = if self.vm.vm {
            let mut args = args(self.repeat);
            args.extend(self.size());
            self.vm.bench(&self.contest, &args, Clock::Exact)?
        } else {
            self.measure()?
        };
        self.output.show(&comparison, &comparison.to_text(), &Verdict::of_comparison(&comparison))
    }

    fn measure(&self) -> Result<Comparison> {
        let mut measurements = Measurements::default();
        self.contest
            .take_turns(self.repeat, &mut measurements, &|contestant| Ok(vec![(PLACE, self.time(contestant)?)]))?;
        let limits: Vec<_> =
            LIMITS.iter().copied().filter(|(_, policy, ..)| self.contest.has_one_called(policy)).collect();
        let unit = self.output.unit.million();
        Ok(Comparison::new("messaging", unit, &load::kernel_release()?, &measurements, &limits))
    }

    fn time(&self, contestant: &Contestant) -> Result<f64> {
        let size = self.size();
        let args: Vec<&str> =
            ["messaging"].into_iter().chain(size.iter().map(String::as_str)).chain(["--json"]).collect();
        load::time(contestant, &args)
    }

    fn size(&self) -> [String; 3] {
        [format!("--groups={}", self.groups), format!("--pairs={}", self.pairs), format!("--loops={}", self.loops)]
    }
}

/// How to say the same to a guest.
pub(crate) fn args(repeat: u32) -> Vec<String> {
    vec!["messaging".into(), format!("--repeat={repeat}")]
}
