//! `ekiden vm start`: a machine that stays.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use ekiden_vm::Mode;

use super::{Booted, Name};
use crate::{
    booted::Seen,
    machine::{Shape, warn},
    progress::Progress,
};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden vm start   the newest stock kernel that works, 2 CPUs
  ekiden vm start --kernel 7.2.13 --cpus 8
  ekiden vm start --name races --parallel --cpus 4
      CPUs that run at once; for correctness, not for costs
Its time stands still between commands, so it costs nothing. Next: ekiden vm run
wfq -- ekiden-load run weights")]
pub(crate) struct Start {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    shape: Shape,
}

impl Start {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut progress = Progress::new();
        if let Some(Seen { note, .. }) = Seen::of(&self.name)? {
            println!("Linux {} runs already as machine {}; `ekiden vm stop` switches it off", note.release, note.name);
            return Ok(ExitCode::SUCCESS);
        }
        let kernel = self.shape.fetch(&mut progress)?;
        let mut spec = self.shape.spec(&Booted::share(&self.name)?);
        progress.step(format!("booting Linux {} on {} CPUs", kernel.release(), spec.cpus));
        spec.mode = spec.resolve_mode(&kernel)?;
        let clock = match spec.mode {
            Mode::Kvm => "kvm".to_owned(),
            Mode::Parallel => "parallel".to_owned(),
            _ => format!("icount, {} ns each", 1_u32 << spec.icount_shift),
        };
        let booted = Booted::boot(&self.name, &kernel, &spec, clock)?;
        progress.end_step();
        warn(&booted.vm);
        let Booted { note, .. } = &booted;
        println!("Linux {} is booted as machine {}; /host there is {}", note.release, note.name, note.share.display());
        println!("next: ekiden vm run wfq -- ekiden-load run fair-share --check");
        Ok(ExitCode::SUCCESS)
    }
}
