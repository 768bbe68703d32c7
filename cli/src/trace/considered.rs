//! `ekiden trace considered`: the CPUs that a policy looked at, which are not recorded while it runs. A replay of its calls tells
//! them, and they go into a trace of the same time.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::{
    considered,
    output::Output,
    own::{AsRoot, Needs},
    progress::Progress,
    replay,
};

#[derive(Args)]
#[command(after_help = "\
A policy does not say at which CPUs it looks when it places a task, balances or
picks one. But the same code with the same calls looks at the same CPUs, so a
replay of the recording knows them, and they go into a trace of the kernel that
was recorded at the same time, for `ekiden view`.
Example:
  sudo ekiden run cfs --record calls.ekirec -- \\
      ekiden trace record out -- make -j4
  ekiden trace considered out calls.ekirec -o both
  ekiden view both
Nothing is told of calls that the replay does not answer as they were answered.")]
pub(super) struct ConsideredCommand {
    /// A trace of the kernel under the policy
    trace: PathBuf,
    /// A recording of the policy's calls at that time
    recording: PathBuf,
    /// The file to write
    #[arg(short, value_name = "OUT")]
    output: PathBuf,
    #[command(flatten)]
    as_root: AsRoot,
}

impl ConsideredCommand {
    /// The policies that have to be in this process.
    pub(super) fn needs(&self) -> Needs {
        Needs::of(replay::recorded(&self.recording), self.as_root)
    }

    pub(super) fn run(&self) -> Result<()> {
        let output = Output::create(&self.output)?;
        let busy = Progress::brief(format!("replaying {}", self.recording.display()));
        let (decisions, outcome) = considered::put(&self.trace, &self.recording, output.clone())?;
        output.finish()?;
        drop(busy);
        if outcome.differences > 0 {
            eprintln!(
                "{} calls were answered differently in the replay; they and what followed are left out",
                outcome.differences
            );
        }
        // What the recording lacks, too.
        outcome.remarks.iter().for_each(|remark| eprintln!("{remark}"));
        eprintln!("{decisions} decisions that looked at other CPUs\nnext: ekiden view {}", self.output.display());
        Ok(())
    }
}
