//! `ekiden bench pipe`: a byte to and fro between two processes.

use anyhow::Result;
use clap::Args;
use ekiden_bench::{BPF, BPF_SHARED, Comparison, DEFAULT, Limit, Measurements};
use serde::{Deserialize, Serialize};

use super::{
    Unit,
    asked::Benchmark,
    candidates::{Candidate, Candidates},
    guest::Clock,
    load,
};
use crate::request::Measurement;

/// Where the two processes are.
const PLACES: [(&str, Option<&str>); 2] = [("one_cpu", Some("0,0")), ("two_cpus_across", Some("0,1"))];

/// Anywhere. Only where an agent is compared, which is called less often then.
const ANY: (&str, Option<&str>) = ("any_cpu", None);

/// What must be reached, as policies run by default, with the flight recorder on, and without it: limit, scheduler, place,
/// reference.
const LIMITS: &[(Limit, &str, &str, &str)] = &[
    (Limit { name: "fifo, one CPU ÷ the kernel's own", at_most: 0.99 }, "fifo", "one_cpu", DEFAULT),
    (Limit { name: "fifo, one CPU ÷ plain BPF", at_most: 1.05 }, "fifo", "one_cpu", BPF),
    (Limit { name: "wfq, one CPU ÷ the kernel's own", at_most: 1.00 }, "wfq", "one_cpu", DEFAULT),
    (Limit { name: "wfq, two CPUs across ÷ the kernel's own", at_most: 1.12 }, "wfq", "two_cpus_across", DEFAULT),
    (Limit { name: "fifo off, one CPU ÷ the kernel's own", at_most: 0.98 }, FIFO_OFF, "one_cpu", DEFAULT),
    (Limit { name: "fifo off, one CPU ÷ plain BPF", at_most: 1.03 }, FIFO_OFF, "one_cpu", BPF),
    (Limit { name: "fifo off, two CPUs across ÷ plain BPF", at_most: 1.03 }, FIFO_OFF, "two_cpus_across", BPF),
    (Limit { name: "global-fifo off, one CPU ÷ BPF of one queue", at_most: 1.05 }, SHARED_OFF, "one_cpu", BPF_SHARED),
    (Limit { name: "wfq off, one CPU ÷ the kernel's own", at_most: 1.05 }, WFQ_OFF, "one_cpu", DEFAULT),
    (Limit { name: "wfq off, two CPUs across ÷ the kernel's own", at_most: 1.12 }, WFQ_OFF, "two_cpus_across", DEFAULT),
    (Limit { name: "fifo in an agent, one CPU ÷ the kernel's own", at_most: 2.00 }, IN_AGENT, "one_cpu", DEFAULT),
    (Limit { name: "fifo in an agent, any CPU ÷ the kernel's own", at_most: 1.15 }, IN_AGENT, "any_cpu", DEFAULT),
];

/// Without the flight recorder.
const FIFO_OFF: &str = "fifo, recorder off";
const WFQ_OFF: &str = "wfq, recorder off";
const SHARED_OFF: &str = "global-fifo, recorder off";

const IN_AGENT: &str = "agent, fifo";

#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[command(after_help = "\
Examples:
  ekiden bench pipe --vm --check
      instructions, in a virtual machine of its own; exits with 116 if a limit
      is missed
  ekiden bench pipe --vm --json   one JSON object
  sudo ekiden bench pipe          nanoseconds, in the kernel of this machine
  ekiden bench pipe --vm --policy my-policy
      a policy of the project in the current directory
  ekiden bench pipe --vm --policy fifo --agent fifo
      and the same policy in an agent")]
pub(crate) struct PipeBench {
    #[command(flatten)]
    candidates: Candidates,
    /// How often each scheduler gets its turn; one more turn comes before and does not count
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// Round trips that are timed each time
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..))]
    round_trips: u64,
}

impl Benchmark for PipeBench {
    const NAME: &'static str = "pipe";
    const CLOCK: Clock = Clock::Exact;

    fn candidates(&self) -> Candidates {
        self.candidates.clone()
    }
}

impl Measurement for PipeBench {
    type Figures = Comparison;

    fn measure(&self, unit: Unit) -> Result<Comparison> {
        let mut measurements = Measurements::default();
        self.candidates.interleave(self.repeat, &mut measurements, &|candidate| {
            let places = PLACES.into_iter().chain(self.candidates.has_agents().then_some(ANY));
            places.map(|(place, cpus)| Ok((place, self.time(candidate, cpus)?))).collect()
        })?;
        let limits: Vec<_> =
            LIMITS.iter().copied().filter(|(_, name, ..)| self.candidates.has_one_called(name)).collect();
        let unit = format!("{} per round trip", unit.name());
        Ok(Comparison::new("pipe", &unit, &load::kernel_release()?, &measurements, &limits))
    }
}

impl PipeBench {
    pub(crate) fn new(candidates: Candidates, repeat: u32, round_trips: u64) -> Self {
        Self { candidates, repeat, round_trips }
    }

    fn time(&self, candidate: &Candidate, cpus: Option<&str>) -> Result<f64> {
        let round_trips = self.round_trips.to_string();
        let mut args = vec!["pipe", "--round-trips", &round_trips, "--json"];
        args.extend(cpus.into_iter().flat_map(|cpus| ["--cpus", cpus]));
        load::time(candidate, &args)
    }
}
