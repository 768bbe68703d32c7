//! `ekiden vm list`: all machines that were started.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use ekiden_bench::table;

use crate::booted::Seen;

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden vm list
  ekiden vm list --json")]
pub(crate) struct List {
    /// Print JSON, an array
    #[arg(long)]
    json: bool,
}

impl List {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let all = Seen::all()?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&all)?);
        } else if all.is_empty() {
            println!("there is no machine; `ekiden vm start` boots one");
        } else {
            let headings = ["machine", "Linux", "CPUs", "clock", "PID", "for", "used by"];
            let rows = all.iter().map(|seen| {
                let used_by = seen.used_by.as_ref().map_or_else(|| "none".into(), ToString::to_string);
                let Seen { note, pid, .. } = seen;
                [
                    note.name.clone(),
                    note.release.clone(),
                    note.cpus.to_string(),
                    note.clock.clone(),
                    pid.to_string(),
                    note.age(),
                    used_by,
                ]
            });
            println!("{}", table(&headings, rows));
        }
        Ok(ExitCode::SUCCESS)
    }
}
