//! Schedulers that are measured in turns in one boot of a stock kernel: in a virtual machine, or on this machine.

use anyhow::Result;
use clap::Args;
use ekiden_bench::{Comparison, Limit, Measurements};
use serde::{Deserialize, Serialize};

use crate::{
    bench::{
        Output, Unit,
        candidates::{Candidate, Candidates, PolicyArgs, Values, Variant, in_turns},
        guest::{Clock, InVm},
        load,
    },
    progress::Progress,
    request::{Measurement, ask},
};

/// The guest: two sets of threads have room to be apart, and the load has CPUs besides.
const CPUS: u32 = 4;
const MEMORY_MIB: u32 = 1_024;

/// How long a message thread sleeps when it has all answers, and up to a quarter more: what schbench did by default when papers/000 was written.
pub(super) const SLEEP_US: u64 = 10_000;

/// Where it is measured, and how often. A guest that is asked to measure is told how often.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Turns {
    /// Measure in the kernel of this machine, as root, instead of in a virtual machine
    #[arg(long)]
    #[serde(skip)]
    here: bool,
    /// How often each scheduler gets its turn; one more turn comes before and does not count
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// The guest's kernel: its release, or the beginning of one, as in 7.2.13; by default the newest that works
    #[arg(long, value_name = "RELEASE")]
    #[serde(skip)]
    kernel: Option<String>,
    #[command(flatten)]
    source: PolicyArgs,
    #[command(flatten)]
    #[serde(skip)]
    pub(super) output: Output,
}

/// Runs a load once under a scheduler; it is also told how fast the work loop is.
pub(super) type Work<'a> = Box<dyn Fn(&Variant, &str) -> Result<Values> + 'a>;

/// A load that is run under each.
pub(super) struct Load<'a> {
    /// The command's name.
    pub(super) name: &'static str,
    pub(super) variants: Vec<Variant>,
    /// Limit, scheduler, place, reference.
    pub(super) limits: &'a [(Limit, &'a str, &'a str, &'a str)],
    pub(super) work: Work<'a>,
}

impl Load<'_> {
    /// The policies under which it is run.
    fn candidates(&self, source: &PolicyArgs) -> Candidates {
        let mut policies: Vec<String> = Vec::new();
        for variant in &self.variants {
            if let Candidate::Policy(policy) = &variant.candidate {
                if !policies.contains(policy) {
                    policies.push(policy.clone());
                }
            }
        }
        Candidates::new(&policies, source)
    }
}

impl Turns {
    /// Measures `what`, which has this load and these turns, where the options say. Medians are of all turns; figures are microseconds, or
    /// thousands of instructions.
    pub(super) fn measure<M>(&self, what: &M, load: &Load<'_>) -> Result<Comparison>
    where
        M: Measurement<Figures = Comparison>,
    {
        if self.here {
            return what.measure(Unit::Ns);
        }
        let machine = InVm::of(CPUS, 1, MEMORY_MIB, self.kernel.clone(), Vec::new());
        let candidates = load.candidates(&self.source);
        machine.with_guest(candidates.source(), candidates.policies(), Clock::Fair, |vm, _, unit, progress| {
            progress.step(format!("measuring {} in turns", load.variants.len()));
            ask(vm, what, unit, &mut |line| progress.note(line))
        })
    }

    /// Measures a load on this machine.
    pub(super) fn measure_here(&self, load: &Load<'_>, unit: Unit) -> Result<Comparison> {
        let mut progress = Progress::new();
        let modules = load.candidates(&self.source).prepare_policies(&mut progress)?;
        progress.step("measuring the work loop");
        let speed = load::calibrate()?;
        let mut measurements = Measurements::default();
        let work = |variant: &Variant| (load.work)(variant, &speed);
        in_turns(&load.variants, &modules, self.repeat, &mut measurements, &mut progress, &work)?;
        Ok(Comparison::new(load.name, unit.thousand(), &load::kernel_release()?, &measurements, load.limits))
    }
}

/// What a unit of the figures is, in words.
pub(super) fn clock(measured: &Comparison) -> &'static str {
    if measured.unit == Unit::Instructions.thousand() {
        "A us is a thousand instructions of an emulator: compare ratios, not times."
    } else {
        "A us is one of this machine's clock."
    }
}
