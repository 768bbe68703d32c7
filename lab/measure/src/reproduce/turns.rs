//! Schedulers that are measured in turns in one boot of a stock kernel: in a virtual machine, or on this machine.

use anyhow::Result;
use clap::Args;
use ekiden_bench::{Comparison, Limit, Measurements};
use serde::Deserialize;

use crate::{
    bench::{
        Output, Unit,
        contest::{Contest, Contestant, PolicyArgs, Values, Variant, in_turns},
        guest::{Clock, InVm, measure_in},
        load,
    },
    progress::Progress,
};

/// The guest: two sets of threads have room to be apart, and the load has CPUs besides.
const CPUS: u32 = 4;
const MEMORY_MIB: u32 = 1_024;

/// How long a message thread sleeps when it has all answers, and up to a quarter more: what schbench did by default when papers/000 was written.
pub(super) const SLEEP_US: u64 = 10_000;

/// Where it is measured, and how often.
#[derive(Args, Clone, Debug)]
pub(super) struct Turns {
    /// Measure in the kernel of this machine, as root, instead of in a virtual machine
    #[arg(long)]
    here: bool,
    /// How often each scheduler gets its turn; one more turn comes before and does not count
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// The guest's kernel: its release, or the beginning of one, as in 7.2.13; by default the newest that works
    #[arg(long, value_name = "RELEASE")]
    kernel: Option<String>,
    #[command(flatten)]
    source: PolicyArgs,
    #[command(flatten)]
    pub(super) output: Output,
}

/// A load that is run under each: `work` is also told how fast the work loop is.
pub(super) struct Load<'a> {
    /// The command's name, and its options besides those of [`Turns`].
    pub(super) name: &'static str,
    pub(super) options: Vec<String>,
    pub(super) variants: Vec<Variant>,
    /// Limit, scheduler, place, reference.
    pub(super) limits: &'a [(Limit, &'a str, &'a str, &'a str)],
    pub(super) work: &'a dyn Fn(&Variant, &str) -> Result<Values>,
}

/// What both commands print, of which the guest's is read again.
#[derive(Deserialize)]
struct Measured {
    measured: Comparison,
}

impl Turns {
    /// Medians are of all turns; figures are microseconds, or thousands of instructions.
    pub(super) fn measure(&self, load: &Load<'_>) -> Result<Comparison> {
        let mut policies: Vec<String> = Vec::new();
        for variant in &load.variants {
            if let Contestant::Policy(policy) = &variant.contestant {
                if !policies.contains(policy) {
                    policies.push(policy.clone());
                }
            }
        }
        let contest = Contest::new(&policies, &self.source);
        if self.here { self.measure_here(load, &contest) } else { self.measure_in_guest(load, &contest) }
    }

    fn measure_here(&self, load: &Load<'_>, contest: &Contest) -> Result<Comparison> {
        let mut progress = Progress::new();
        let modules = contest.prepare_policies(&mut progress)?;
        progress.step("measuring the work loop");
        let speed = load::calibrate()?;
        let mut measurements = Measurements::default();
        let work = |variant: &Variant| (load.work)(variant, &speed);
        in_turns(&load.variants, &modules, self.repeat, &mut measurements, &mut progress, &work)?;
        let (unit, kernel) = (self.output.unit.thousand(), load::kernel_release()?);
        Ok(Comparison::new(load.name, unit, &kernel, &measurements, load.limits))
    }

    fn measure_in_guest(&self, load: &Load<'_>, contest: &Contest) -> Result<Comparison> {
        let machine = InVm::of(CPUS, 1, MEMORY_MIB, self.kernel.clone(), Vec::new());
        let mut args = load.options.clone();
        args.extend(["--here".to_owned(), format!("--repeat={}", self.repeat)]);
        machine.with_guest(contest.modules(), contest.policies(), Clock::Fair, |vm, _, counts, progress| {
            progress.step(format!("measuring {} in turns", load.variants.len()));
            let command = ["reproduce", load.name];
            let told = &mut |line: &str| progress.note(line);
            let Measured { measured } = measure_in(vm, &command, &args, counts, told)?;
            Ok(measured)
        })
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
