//! `--vm`: the same bench in a virtual machine of its own, where nothing has run before.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use ekiden_vm::{Mode, Scratch, Vm, VmSpec};

use super::{Unit, candidates::PolicyArgs};
use crate::{
    failure::{Exit, Failure},
    machine::{Shape, install_modules},
    modules,
    progress::Progress,
};

/// Whether, and in what kind of machine.
#[derive(Args, Clone, Debug)]
pub(crate) struct InVm {
    /// Measure in a virtual machine of its own instead of on this one
    #[arg(long)]
    pub(crate) vm: bool,
    #[command(flatten)]
    pub(crate) shape: Shape,
}

/// How the clock of an emulated machine goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// A nanosecond is an instruction: for costs.
    Exact,
    /// A nanosecond is an instruction, and no CPU waits long for its turn: for how long tasks wait.
    Fair,
    /// Eight times faster for the one who waits: for shares.
    Quick,
}

impl InVm {
    /// A machine whose shape is no option, with programs of this one besides ours.
    pub(crate) fn of(cpus: u32, nodes: u32, memory_mib: u32, kernel: Option<String>, others: Vec<PathBuf>) -> Self {
        let shape = Shape {
            cpus,
            memory_mib,
            nodes,
            kernel,
            kvm: false,
            icount: false,
            parallel: false,
            shift: None,
            others,
            disk: None,
        };
        Self { vm: true, shape }
    }

    /// Boots a guest that has the modules of these policies, for `work`, which is also told which directory is /host
    /// there, and what its clock counts.
    pub(crate) fn with_guest<T>(
        &self,
        source: &PolicyArgs,
        policies: &[String],
        clock: Clock,
        work: impl FnOnce(&Vm, &Path, Unit, &mut Progress) -> Result<T>,
    ) -> Result<T> {
        self.refuse_parallel()?;
        let mut progress = Progress::new();
        let kernel = match clock {
            Clock::Fair => self.shape.fetch_fair(&mut progress)?,
            Clock::Exact | Clock::Quick => self.shape.fetch(&mut progress)?,
        };
        let share = Scratch::new()?;
        if !policies.is_empty() {
            let directory = modules::for_kernel(source.modules(), &kernel, policies, source.allowed(), &mut progress)?;
            install_modules(&directory, share.path())?;
        }
        progress.step(format!("booting Linux {}", kernel.release()));
        let mut shape = self.shape.clone();
        // To count is what a measurement in a guest is for; the processor itself is used on request.
        shape.icount |= clock != Clock::Quick && !shape.kvm;
        let spec = Self { shape, ..*self }.spec(&kernel, share.path(), clock)?;
        let vm = Vm::boot(&kernel, &spec)?;
        let result = work(&vm, share.path(), unit_of(&spec), &mut progress)?;
        vm.shutdown()?;
        Ok(result)
    }

    /// Before anything is fetched or built for it.
    pub(crate) fn refuse_parallel(&self) -> Result<()> {
        if self.shape.parallel {
            let message = "with --parallel, what something costs says nothing: emulated CPUs run at once, by this machine's clock. \
                           Measure without it, or with --kvm; look for races with `ekiden vm run --parallel`";
            return Err(Failure::new(Exit::Usage, message).into());
        }
        Ok(())
    }

    pub(crate) fn spec(&self, kernel: &ekiden_vm::Kernel, share: &Path, clock: Clock) -> Result<VmSpec> {
        self.refuse_parallel()?;
        let mut spec = match clock {
            Clock::Exact => self.shape.exact_spec(share),
            Clock::Fair => VmSpec { fair_turns: true, ..self.shape.exact_spec(share) },
            Clock::Quick => self.shape.spec(share),
        };
        spec.mode = spec.resolve_mode(kernel)?;
        Ok(spec)
    }
}

/// What a nanosecond of a machine is.
pub(crate) fn unit_of(spec: &VmSpec) -> Unit {
    if spec.mode == Mode::Icount && spec.icount_shift == 0 { Unit::Instructions } else { Unit::Ns }
}
