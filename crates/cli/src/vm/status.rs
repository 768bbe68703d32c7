//! `ekiden vm status`: whether there is a machine.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::booted::{Booted, Note};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden vm status
  ekiden vm status --json")]
pub(crate) struct Status {
    /// Print JSON; null without a machine
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(crate) fn run(self) -> Result<ExitCode> {
        // One that is in use is there, though nobody else can connect to it.
        let note = match Booted::find() {
            Ok(booted) => booted.map(|booted| booted.note.clone()),
            Err(_) => Note::of_booted()?,
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&note)?);
            return Ok(ExitCode::SUCCESS);
        }
        match note {
            Some(note) => {
                println!("kernel  Linux {}", note.release);
                println!("cpus    {}", note.cpus);
                println!("memory  {} MiB", note.memory_mib);
                println!("clock   {}", note.clock);
                println!("/host   {}", note.share.display());
            }
            None => println!("there is no machine; `ekiden vm start` boots one"),
        }
        Ok(ExitCode::SUCCESS)
    }
}
