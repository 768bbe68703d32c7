//! `ekiden record`: the calls of the policy that runs, in a file that can be replayed.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use clap::Args;
use ekiden_loader::{CallLog, Kept, LoadError, Status, dump, header, needs_root};
use serde::Serialize;

use crate::{
    agent::control::{self, Running},
    child::{self, Events},
    recording::{ToFile, create, in_words},
    session::JUDGED,
};

#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo ekiden record -o out.ekirec -- make -j4
      while a command runs, beside an `ekiden run` or `ekiden agent` in another
      terminal
  sudo ekiden record -o out.ekirec
      until Ctrl-C
  sudo ekiden record -o out.ekirec --dump
      what the flight recorder has: the newest calls of each CPU
  sudo ekiden run wfq --record out.ekirec -- make
      from the policy's first call on, so that its replay is exact throughout
  ekiden replay out.ekirec

Every call into the policy is kept, with its answer, what it learnt and the
order of its locks. A recording that begins while the policy runs does not know
its state: `ekiden replay` says from where on it is exact. For a trace of what
the kernel does, under any scheduler, see ekiden trace record --help")]
pub(crate) struct Record {
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Which of the policies that run, by its name or number; the default one if it is left out
    #[arg(short, long, value_name = "POLICY")]
    policy: Option<String>,
    /// Save what the flight recorder has now, and end
    #[arg(long, conflicts_with = "command")]
    dump: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Counts of what was kept, for programs.
#[derive(Serialize)]
struct Report<'a> {
    file: &'a Path,
    records: u64,
    lost: u64,
    bytes: u64,
    reader_ns: u64,
}

impl Record {
    pub(crate) fn run(self) -> Result<ExitCode> {
        needs_root()?;
        if let Some(agent) = control::running() {
            return self.of_agent(agent);
        }
        let status = Status::read()?.unwrap_or_default();
        let policy = status.find(self.policy.as_deref())?;
        // Before the file: if there is nothing to record, one that is there already stays as it is.
        let mut call_log = CallLog::open(policy)?;
        if self.dump {
            let (header, instances) = header(Some(policy.slot), "flight recorder")?;
            self.tell(dump(&mut call_log, &header, &instances, create(&self.output)?, false)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        drop(call_log);
        self.to_the_end(ToFile::start(&self.output, Some(policy.slot), true, &self.command)?)
    }

    fn of_agent(&self, mut agent: Running) -> Result<ExitCode> {
        let workload = if self.dump { "flight recorder".to_owned() } else { in_words(&self.command) };
        loop {
            let policy = agent.status.find(self.policy.as_deref())?;
            let (mut call_log, header) = agent.call_log(policy, &workload)?;
            if self.dump {
                let file = create(&self.output)?;
                self.tell(dump(&mut call_log, &header, &policy.all_instances(), file, false)?)?;
                return Ok(ExitCode::SUCCESS);
            }
            call_log.skip();
            let now = control::running().ok_or(LoadError::NothingRuns)?;
            // What is skipped tells of no policy that takes over meanwhile.
            if now.status.find(self.policy.as_deref())?.instance == policy.instance {
                return self.to_the_end(ToFile::of(&self.output, call_log, &header, control::tells_instances())?);
            }
            agent = now;
        }
    }

    /// Records while the command runs, or until a signal comes.
    fn to_the_end(&self, recording: ToFile) -> Result<ExitCode> {
        let events = Events::listen()?;
        let code = child::run(&events, &self.command, "recording; Ctrl-C ends it", true, || recording.check());
        let kept = recording.stop()?;
        self.tell(kept)?;
        code
    }

    fn tell(&self, kept: Kept) -> Result<()> {
        let Kept { records, lost, bytes, reader_ns } = kept;
        if self.json {
            let report = Report { file: &self.output, records, lost, bytes, reader_ns };
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            tell(&self.output, kept);
        }
        Ok(())
    }
}

/// Says what was kept, and what to do with it.
pub(crate) fn tell(path: &Path, kept: Kept) {
    let Kept { records, lost, bytes, .. } = kept;
    let path = path.display();
    eprintln!("{records} records in {} KiB", bytes / 1024);
    if lost > 0 {
        eprintln!(
            "{lost} records were overwritten before they were read, and are marked as missing: larger rings help, --flight-kib"
        );
    }
    if records == 0 {
        return eprintln!("the policy was asked for nothing: `ekiden status` says whether it schedules");
    }
    if std::env::var_os(JUDGED).is_none() {
        // In a guest the path is another one; `ekiden vm run` prints that of the host.
        eprintln!("next: ekiden replay {path}");
    }
}
