//! `ekiden status`: what runs and how it fares.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use ekiden_loader::sysfs;
use serde::Serialize;

use crate::session::LastFault;

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden status           for people
  ekiden status --json    for programs: kernel, policy, counters, last fault")]
pub(crate) struct Status {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Everything {
    sched_ext: SchedExt,
    /// What `ekiden.ko` says; absent while it is not loaded.
    ekiden: Option<ekiden_loader::Status>,
    /// Why the last policy was taken out.
    last_fault: Option<LastFault>,
}

#[derive(Serialize)]
struct SchedExt {
    supported: bool,
    state: Option<String>,
    scheduler: Option<String>,
    enable_seq: Option<u64>,
}

impl Status {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let everything = Everything {
            sched_ext: SchedExt {
                supported: sysfs::supported(),
                state: sysfs::state(),
                scheduler: sysfs::scheduler(),
                enable_seq: sysfs::enable_seq(),
            },
            ekiden: ekiden_loader::Status::read()?,
            last_fault: LastFault::read(),
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&everything)?);
        } else {
            print!("{everything}");
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl std::fmt::Display for Everything {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kernel = &self.sched_ext;
        match (&kernel.scheduler, &kernel.state) {
            (Some(scheduler), _) => writeln!(f, "scheduler   {scheduler} (sched_ext)")?,
            (None, Some(state)) => writeln!(f, "scheduler   the kernel's own (sched_ext is {state})")?,
            (None, None) => writeln!(f, "scheduler   the kernel's own (this kernel has no sched_ext)")?,
        }
        if let Some(status) = &self.ekiden {
            let policy = status.policy.as_deref().unwrap_or("none");
            writeln!(f, "policy      {policy}{}", if status.attached { "" } else { " (not attached)" })?;
            if status.upgrades > 0 {
                let longest = status.upgrade_wait_ns_max as f64 / 1000.0;
                writeln!(f, "upgrades    {}; no CPU waited longer than {longest:.1} µs", status.upgrades)?;
            }
            writeln!(f, "tasks       {} of {}", status.tasks, status.capacity)?;
            writeln!(f, "picks       {}; {} times there was nothing to pick", status.picks, status.idles)?;
            writeln!(f, "migrations  {}", status.migrations)?;
            writeln!(f, "refusals    {}", status.refusals)?;
            writeln!(f, "mistakes    {}{}", status.mistakes, in_words(status.last_mistake.as_deref()))?;
            if let Some(fault) = status.fault.as_ref().or(status.engine_fault.as_ref()) {
                writeln!(f, "fault       {fault}")?;
            }
            writeln!(f, "loaded      {}", status.loaded.join(", "))?;
        } else {
            writeln!(f, "ekiden.ko   not loaded; `ekiden run POLICY` loads it")?;
        }
        if let Some(LastFault { policy, reason, recording, .. }) = &self.last_fault {
            writeln!(f, "last fault  {policy}: {reason}")?;
            if let Some(recording) = recording {
                writeln!(f, "            its last calls: ekiden replay {}", recording.display())?;
            }
        }
        Ok(())
    }
}

fn in_words(last: Option<&str>) -> String {
    last.map_or(String::new(), |last| format!("; the last: {last}"))
}
