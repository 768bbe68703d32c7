//! What all benches have in common that are measured here or in a guest.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use ekiden_bench::Comparison;
use ekiden_vm::Vm;

use super::{
    Output, Unit, Verdict,
    candidates::Candidates,
    guest::{Clock, InVm},
};
use crate::{
    machine::Shape,
    progress::Progress,
    request::{Measurement, ask},
};

/// A measurement that is a command of its own.
pub(crate) trait Benchmark: Measurement<Figures: Shown> + Args {
    /// As progress says it.
    const NAME: &'static str;

    /// How the clock of its guest goes.
    const CLOCK: Clock;

    /// The policies whose modules it takes, and where those are.
    fn candidates(&self) -> Candidates;

    /// Makes a guest as large as it has to be.
    fn fit(&self, _shape: &mut Shape) {}

    /// Measures in a guest of its own.
    fn in_guest(&self, machine: &InVm) -> Result<Self::Figures> {
        let candidates = self.candidates();
        machine.with_guest(candidates.source(), candidates.policies(), Self::CLOCK, |vm, _, unit, progress| {
            self.ask(vm, unit, progress)
        })
    }

    /// Measures in a guest that runs.
    fn ask(&self, vm: &Vm, unit: Unit, progress: &mut Progress) -> Result<Self::Figures> {
        progress.step(format!("measuring {}", Self::NAME));
        ask(vm, self, unit, &mut |line| progress.note(line))
    }
}

/// Findings, for people.
pub(crate) trait Shown {
    /// The figures, and what is to be said of them.
    fn text(&self) -> String;

    /// Whether it is as it has to be.
    fn verdict(&self) -> Verdict;
}

impl Shown for Comparison {
    fn text(&self) -> String {
        self.to_text()
    }

    fn verdict(&self) -> Verdict {
        Verdict::of_comparison(self)
    }
}

/// A bench as it is asked for on the command line: what is measured, where, and how it is shown.
#[derive(Args, Clone, Debug)]
pub(crate) struct Asked<M: Benchmark> {
    #[command(flatten)]
    what: M,
    #[command(flatten)]
    vm: InVm,
    #[command(flatten)]
    output: Output,
}

impl<M: Benchmark> Asked<M> {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        let figures = if self.vm.vm {
            self.what.fit(&mut self.vm.shape);
            self.what.in_guest(&self.vm)?
        } else {
            self.what.measure(Unit::Ns)?
        };
        self.output.show(&figures, &figures.text(), &figures.verdict())
    }
}
