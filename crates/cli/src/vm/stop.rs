//! `ekiden vm stop`: switches the machine off.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::Booted;

#[derive(Args)]
#[command(after_help = "Example: ekiden vm stop")]
pub(crate) struct Stop {}

impl Stop {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match Booted::find()? {
            Some(booted) => {
                let release = booted.note.release.clone();
                booted.stop()?;
                println!("Linux {release} is switched off");
            }
            None => println!("there is no machine"),
        }
        Ok(ExitCode::SUCCESS)
    }
}
