//! `ekiden vm status`: whether there is a machine.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::Name;
use crate::booted::Seen;

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden vm status
  ekiden vm status --json")]
pub(crate) struct Status {
    #[command(flatten)]
    name: Name,
    /// Print JSON; null without a machine
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let seen = Seen::of(&self.name)?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&seen)?);
            return Ok(ExitCode::SUCCESS);
        }
        match seen {
            Some(Seen { note, pid, used_by }) => {
                println!("name    {}", note.name);
                println!("kernel  Linux {}", note.release);
                println!("cpus    {}", note.cpus);
                println!("memory  {} MiB", note.memory_mib);
                println!("clock   {}", note.clock);
                println!("/host   {}", note.share.display());
                println!("qemu    PID {pid}, for {}", note.age());
                if let Some(holder) = used_by {
                    println!("used by {holder}");
                }
            }
            None => println!("there is no machine {}; `ekiden vm start` boots one", self.name.get()),
        }
        Ok(ExitCode::SUCCESS)
    }
}
