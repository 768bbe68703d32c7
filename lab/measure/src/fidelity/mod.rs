//! `ekiden fidelity`: the same loads on the real kernel and in the simulator, under the same policies, and how far apart
//! they are.

mod calibrate;
mod compare;
mod loads;
mod measure;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use self::{calibrate::Calibration, compare::Comparison, measure::Measured};
pub(crate) use self::{
    compare::copy_traces,
    measure::{RING_BYTES, Real, keep_trace},
};
use crate::{
    bench::{
        Output, Unit, Verdict,
        candidates::{Candidates, PolicyArgs},
        guest::{Clock, InVm},
    },
    models::Models,
    own::Needs,
    request::{Measurement, ask},
};

/// `ekiden fidelity`: how far the simulator is from the kernel.
#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden fidelity --vm
      pipe, messaging, hogs, schbench, forks under wfq and fifo
  ekiden fidelity --vm --load pipe --policy wfq
      one load, one policy
  ekiden fidelity --vm --save real.json
      keep what the real kernel showed …
  ekiden fidelity --from real.json
      … and compare again, which takes no time
  ekiden fidelity --vm --usual
      with a simulated machine of usual costs, instead of what things cost there
  ekiden fidelity --vm --calibrate costs.json
      only find out what things cost there, for `ekiden sim --model costs.json`
  sudo ekiden fidelity
      on the kernel of this machine
With --vm a nanosecond is an instruction of an emulated machine, so that figures
repeat. A figure is off by its difference, in percent of what the real kernel
showed; --check exits with 116 if one is off by more than 15 %.")]
pub struct Fidelity {
    /// The policies
    #[arg(long = "policy", value_name = "POLICY", default_values = ["wfq", "fifo"])]
    policies: Vec<String>,
    /// A load, as `ekiden sim list` shows them; by default those that schedulers are judged by
    #[arg(long = "load", value_name = "LOAD")]
    loads: Vec<String>,
    /// How often to measure each; medians are compared
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// Write what the real kernel showed to this file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Take it from such a file instead of measuring
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "vm"])]
    from: Option<PathBuf>,
    /// Find out what things cost there, and write it to this file, for --model here and in `ekiden sim`
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    calibrate: Option<PathBuf>,
    /// Compare with a simulated machine of these costs; by default they are found out first, which takes ten small loads more
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Compare with a simulated machine of usual costs
    #[arg(long, conflicts_with_all = ["model", "calibrate"])]
    usual: bool,
    /// Put the table into this document, in the place that is marked there
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Keep the traces of both sides in this directory, for `ekiden check` and to be looked at
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    #[command(flatten)]
    source: PolicyArgs,
    #[command(flatten)]
    vm: InVm,
    #[command(flatten)]
    output: Output,
}

impl Fidelity {
    /// The policies that have to be in this process, to be simulated.
    pub fn needs(&self) -> Needs {
        let policies = match &self.from {
            // A mistake in the file is reported when the file is needed.
            Some(_) => self.measured().map_or_else(|_| Vec::new(), |measured| measured.policies()),
            None => self.policies.clone(),
        };
        Needs::of(policies, self.source.allowed().into())
    }

    /// Runs the command; the exit code is that of the program.
    pub fn run(self) -> Result<ExitCode> {
        let measured = self.measured()?;
        if let Some(path) = &self.save {
            fs::write(path, serde_json::to_string_pretty(&measured)?)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if let Some(path) = &self.calibrate {
            let calibration = Calibration::of(&measured)?;
            calibration.models.write(path)?;
            let verdict = Verdict { all_stayed: measured.all_stayed(), limits_met: true };
            let code = self.output.show(&calibration, &calibration.to_text(), &verdict)?;
            eprintln!("next: ekiden fidelity --vm --model {}", path.display());
            return Ok(code);
        }
        let models = match &self.model {
            Some(path) => Some(Models::read(path)?),
            None if !self.usual && Calibration::is_possible(&measured) => Some(Calibration::of(&measured)?.models),
            None => None,
        };
        if models.is_none() && !self.usual {
            eprintln!("what was measured does not tell what things cost there: the simulated machine has usual costs");
        }
        let model = |policy: &str| match &models {
            Some(models) => models.of(policy),
            None => Ok(ekiden_sim::Model::default()),
        };
        let comparison = Comparison::of(&measured, model, self.traces.as_deref())?;
        if let Some(path) = &self.markdown {
            comparison.write_into(path)?;
        }
        let verdict = Verdict { all_stayed: comparison.all_stayed, limits_met: comparison.passed };
        self.output.show(&comparison, &comparison.to_text(), &verdict)
    }

    fn measured(&self) -> Result<Measured> {
        if let Some(path) = &self.from {
            let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            return serde_json::from_str(&text)
                .with_context(|| format!("{} is not what `ekiden fidelity --save` wrote", path.display()));
        }
        let mut names = match self.loads.as_slice() {
            [] if self.calibrate.is_some() => Vec::new(),
            [] => loads::COMPARED.map(str::to_owned).to_vec(),
            loads => loads.to_vec(),
        };
        if self.model.is_none() && !self.usual {
            names.extend(calibrate::loads());
        }
        let candidates = Candidates::new(&self.policies, &self.source);
        let real = Real { candidates, loads: names, repeat: self.repeat, traces: self.traces.clone() };
        if !self.vm.vm {
            return real.measure(Unit::Ns);
        }
        let candidates = &real.candidates;
        self.vm.with_guest(candidates.source(), candidates.policies(), Clock::Exact, |vm, share, unit, progress| {
            progress.step("measuring the real kernel");
            let there = Real { traces: self.traces.as_ref().map(|_| "/host/traces".into()), ..real.clone() };
            let measured = ask(vm, &there, unit, &mut |line| progress.note(line))?;
            if let Some(traces) = &self.traces {
                compare::copy_traces(&share.join("traces"), traces)?;
            }
            Ok(measured)
        })
    }
}
