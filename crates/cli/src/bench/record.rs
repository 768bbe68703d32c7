//! `ekiden bench record`: what it costs to write down every call.

use std::{path::Path, process::ExitCode};

use anyhow::Result;
use clap::Args;
use ekiden_bench::{Comparison, Limit, Measurements};

use super::{
    Output, Verdict,
    contest::{Contest, Contestant, PolicyArgs, Values, under},
    guest::{Clock, InVm},
    load,
};
use crate::{progress::Progress, session::Plan};

/// Where the two processes are.
const PLACES: [(&str, &str); 2] = [("one_cpu", "0,0"), ("two_cpus_across", "0,1")];

/// What must be reached: limit, variant, place, reference.
const LIMITS: &[(Limit, &str, &str, &str)] = &[
    (Limit { name: "fifo, one CPU: flight recorder on ÷ off", at_most: 1.05 }, "fifo, flight", "one_cpu", "fifo"),
    (
        Limit { name: "fifo, across: flight recorder on ÷ off", at_most: 1.05 },
        "fifo, flight",
        "two_cpus_across",
        "fifo",
    ),
    (Limit { name: "wfq, one CPU: flight recorder on ÷ off", at_most: 1.05 }, "wfq, flight", "one_cpu", "wfq"),
    (Limit { name: "wfq, across: flight recorder on ÷ off", at_most: 1.05 }, "wfq, flight", "two_cpus_across", "wfq"),
];

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  ekiden bench record --vm --check     instructions, in a virtual machine of its own; exits with 116 if a limit is missed
  ekiden bench record --vm --json      one JSON object
  sudo ekiden bench record             nanoseconds, in the kernel of this machine")]
pub(crate) struct RecordBench {
    /// The policies to measure
    #[arg(long = "policy", value_name = "POLICY", default_values = ["fifo", "wfq"])]
    policies: Vec<String>,
    #[command(flatten)]
    source: PolicyArgs,
    /// How often each variant gets its turn; one more turn comes before and does not count
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// Round trips that are timed each time
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..))]
    round_trips: u64,
    #[command(flatten)]
    vm: InVm,
    #[command(flatten)]
    output: Output,
}

/// Whether calls are written down, and how they are called in the table.
const VARIANTS: [(&str, bool); 2] = [("", false), (", flight", true)];

impl RecordBench {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let contest = Contest::new(&self.policies, &self.source);
        let comparison = if self.vm.vm {
            let args = [
                "record".to_owned(),
                format!("--repeat={}", self.repeat),
                format!("--round-trips={}", self.round_trips),
            ];
            self.vm.bench(&contest, &args, Clock::Exact)?
        } else {
            self.measure(&contest)?
        };
        self.output.show(&comparison, &comparison.to_text(), &Verdict::of_comparison(&comparison))
    }

    fn measure(&self, contest: &Contest) -> Result<Comparison> {
        let mut progress = Progress::new();
        let (_, modules) = contest.prepare(&mut progress)?;
        progress.step("waiting until the machine has settled");
        load::settle();
        let mut measurements = Measurements::default();
        for turn in 0..=self.repeat {
            for policy in &self.policies {
                for (suffix, recorded) in VARIANTS {
                    let name = format!("{policy}{suffix}");
                    progress.step(format!("turn {turn} of {}: {name}", self.repeat));
                    let (values, stayed) = self.time(policy, recorded, &modules)?;
                    measurements.was_still_scheduler(&name, stayed);
                    // The first turn warms caches of all kinds.
                    for (place, value) in values.into_iter().flatten().filter(|_| turn > 0) {
                        measurements.add(&name, place, value);
                    }
                }
            }
        }
        let limits: Vec<_> =
            LIMITS.iter().copied().filter(|(.., policy)| self.policies.iter().any(|name| name == policy)).collect();
        let unit = format!("{} per pipe round trip", self.output.unit.name());
        Ok(Comparison::new("record", &unit, &load::kernel_release()?, &measurements, &limits))
    }

    fn time(&self, policy: &str, recorded: bool, modules: &Path) -> Result<(Option<Values>, bool)> {
        let mut plan = Plan::new(policy, modules);
        if !recorded {
            plan.flight_kib = 0;
        }
        let round_trips = self.round_trips.to_string();
        under(&plan, || {
            let time = |(place, cpus): &(&'static str, &str)| {
                let args = ["pipe", "--round-trips", &round_trips, "--cpus", cpus, "--json"];
                Ok((*place, load::time(&Contestant::Policy(policy.to_owned()), &args)?))
            };
            PLACES.iter().map(time).collect()
        })
    }
}
