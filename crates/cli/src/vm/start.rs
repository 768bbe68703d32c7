//! `ekiden vm start`: a machine that stays.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use ekiden_vm::Mode;

use super::Booted;
use crate::{machine::Shape, progress::Progress};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden vm start                          the newest stock kernel that works, 2 CPUs
  ekiden vm start --kernel 7.2.13 --cpus 8
Its time stands still between commands, so it costs nothing. Next: ekiden vm run wfq -- ekiden-load run weights")]
pub(crate) struct Start {
    #[command(flatten)]
    shape: Shape,
}

impl Start {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut progress = Progress::new();
        if let Some(booted) = Booted::find()? {
            println!("Linux {} runs already; `ekiden vm stop` switches it off", booted.note.release);
            return Ok(ExitCode::SUCCESS);
        }
        let kernel = self.shape.fetch(&mut progress)?;
        let mut spec = self.shape.spec(&Booted::share()?);
        progress.step(format!("booting Linux {} on {} CPUs", kernel.release(), spec.cpus));
        spec.mode = spec.mode.resolve(&kernel)?;
        let clock = match spec.mode {
            Mode::Kvm => "kvm".to_owned(),
            _ => format!("icount, {} ns each", 1_u32 << spec.icount_shift),
        };
        let booted = Booted::boot(&kernel, &spec, clock)?;
        progress.end_step();
        for problem in booted.vm.problems() {
            eprintln!("ekiden: in the guest: {problem}");
        }
        println!("Linux {} is booted; /host there is {}", booted.note.release, booted.note.share.display());
        println!("next: ekiden vm run wfq -- ekiden-load run fair-share --check");
        Ok(ExitCode::SUCCESS)
    }
}
