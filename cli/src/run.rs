//! `ekiden run`: a policy in the kernel of this machine.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use ekiden_loader::{Access, Beside};
use ekiden_recording::Instance;

use crate::{
    agent::{MESSAGES, control},
    child::{self, Events},
    guest_run::RunOptions,
    hosted::{Hosted, Options, Recorder},
    modules::{self, Allowed},
    policies,
    progress::Progress,
    record,
    recording::ToFile,
    session::{self, Plan},
    share::Shares,
};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden run wfq
      all tasks, until Ctrl-C
  ekiden run wfq --set slice_min_us=1000 -- make
      while a command runs; its exit code is passed on
  ekiden run wfq --record out.ekirec -- make
      for ekiden replay
  ekiden run fifo --attached -- stress-ng --cpu 4
      only the command and what it starts
  ekiden run fifo --beside -- make
      beside a policy that runs already; only the command
  ekiden run fifo --beside --cpus 0-1 --strict
      on two CPUs that no other policy uses
  ekiden run fifo --beside --group audio
      members of that group may choose it: ekiden exec -p fifo -- CMD

If the policy is taken out, be it for a fault of its own, that is said at once,
the command is ended (unless --keep-going), and the exit code is 101. `ekiden
status` has the reason. See also: ekiden vm run")]
pub(crate) struct Run {
    #[command(flatten)]
    options: RunOptions,
    /// Come beside the policies that run already: this one is asked last, and gets the command, or whatever is given to it with
    /// `ekiden attach`
    #[arg(long, conflicts_with = "attached")]
    beside: bool,
    /// With --beside: all tasks for which no policy was chosen
    #[arg(long, requires = "beside")]
    default: bool,
    /// Every user may choose it for their tasks; by default only root may, unless it is the default policy
    #[arg(long)]
    open: bool,
    /// The members of this group of users may, by its name or number
    #[arg(long, value_name = "GROUP", conflicts_with = "open", value_parser = group_of_users)]
    group: Option<u32>,
    /// Only root may; this is the default
    #[arg(long, conflicts_with_all = ["open", "group"])]
    root_only: bool,
    #[command(flatten)]
    share: Shares,
    #[command(flatten)]
    recorder: Recorder,
    /// Take the modules from this directory instead of building them
    #[arg(long, value_name = "DIR", env = modules::DIRECTORY)]
    modules: Option<PathBuf>,
    #[command(flatten)]
    allowed: Allowed,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Run {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let RunOptions { policy, set, attached, max_tasks, arena_mib, keep_going } = &self.options;
        let (attached, keep_going) = (*attached, *keep_going);
        let params = set.join(" ");
        policies::check_params(policy, &params)?;
        let beside = match (self.beside, self.default) {
            (false, _) => Beside::Nobody,
            (true, false) => Beside::Others,
            (true, true) => Beside::OthersAsDefault,
        };
        session::preflight(beside)?;
        let modules = modules::for_this_machine(self.modules.as_deref(), policy, &self.allowed, &mut Progress::new())?;
        let events = Events::listen()?;
        let options = Options {
            max_tasks: *max_tasks,
            arena_mib: *arena_mib,
            messages: MESSAGES,
            every_wakeup: false,
            access: match self.group {
                Some(group) => Access::Group(group),
                None if self.open => Access::Open,
                None => Access::Root,
            },
            recorder: self.recorder.clone(),
            look: events.look_again(),
        };
        let first = Instance { policy: policy.clone(), params };
        let plan = Plan { attached, beside, ..options.plan(&first, &modules) };
        let held = plan.start()?;
        self.share.give(held.slot())?;
        let (slot, command) = (held.slot(), self.wrapped(held.number()?)?);
        let hosted = Hosted::in_kernel(held, modules, options)?;
        let recording = match &self.recorder.record {
            Some(path) => Some(ToFile::start(path, Some(slot), false, &self.command)?),
            None => None,
        };
        let tasks = match (attached, beside) {
            (true, _) => "the tasks in class SCHED_EXT",
            (false, Beside::Nobody) => "all tasks of this machine",
            (false, Beside::Others) => "what `ekiden attach` gives to it",
            (false, Beside::OthersAsDefault) => "all tasks for which no policy was chosen",
        };
        let what = format!("{policy} schedules {tasks}; Ctrl-C ends it, `ekiden status` shows how it fares");
        // One that has all tasks can move into this process.
        let has_all = !attached && beside == Beside::Nobody;
        let listening = has_all.then(|| control::Listening::begin(events.asked()));
        let listening = listening.and_then(|listening| {
            listening
                .inspect_err(|error| eprintln!("ekiden: `ekiden upgrade --to agent` will not work: {error:#}"))
                .ok()
        });
        let answer = |stream| control::answer(stream, |request| hosted.answer(request));
        let code = child::answering(&events, &command, &what, keep_going, || hosted.check(), answer);
        drop(listening);
        if let (Some(recording), Some(path)) = (recording, &self.recorder.record) {
            record::tell(path, recording.stop()?);
        }
        let code = code?;
        if self.command.is_empty() {
            match beside {
                Beside::Nobody => eprintln!("the kernel's own scheduler is back"),
                _ => eprintln!("the other policies have its tasks"),
            }
        }
        Ok(code)
    }

    /// The command, started through `ekiden exec` if the policy does not get it anyway.
    fn wrapped(&self, number: u32) -> Result<Vec<OsString>> {
        if !(self.options.attached || self.beside && !self.default) || self.command.is_empty() {
            return Ok(self.command.clone());
        }
        let this = std::env::current_exe().context("cannot find this program")?;
        let mut exec = vec![this.into_os_string(), "exec".into()];
        if self.beside {
            exec.extend(["-p".into(), number.to_string().into()]);
        }
        exec.push("--".into());
        Ok(exec.into_iter().chain(self.command.iter().cloned()).collect())
    }
}

/// A group of users, by its name or number.
fn group_of_users(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match nix::unistd::Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err("there is no such group of users; `getent group` lists them".to_owned()),
        Err(error) => Err(format!("groups of users cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::{Cli, Command, flights, guest_run::GuestRun};

    fn read(argv: &[String]) -> Run {
        match Cli::try_parse_from(argv).unwrap_or_else(|error| panic!("{argv:?}: {error}")).command {
            Command::Run(run) => run,
            _ => panic!("{argv:?} is another command"),
        }
    }

    #[test]
    fn what_is_to_run_in_a_guest_arrives_there_as_it_was_meant() {
        let options = RunOptions {
            policy: "my-policy".into(),
            set: vec!["slice_us=1000".into(), "wakeup_us=7".into()],
            attached: true,
            max_tasks: Some(4_096),
            arena_mib: Some(64),
            keep_going: true,
        };
        let all = GuestRun {
            options,
            flight_kib: Some(4_096),
            flights: Some("/host/recordings".into()),
            ..GuestRun::new("/host/bin/ekiden", "", ["sh", "-c", "exec \"$0\"", "--attached"])
        };
        let plain = GuestRun::new("ekiden", "wfq", Vec::<String>::new());
        let recorded = GuestRun { record: Some("/host/all calls.ekirec".into()), ..plain.clone() };
        for meant in [all, plain, recorded] {
            let argv = meant.argv();
            let run = read(&argv);
            assert_eq!(argv[0], meant.ekiden);
            assert_eq!(run.options, meant.options);
            assert_eq!(run.recorder.flight_kib, meant.flight_kib.unwrap_or(1_024));
            assert_eq!(run.recorder.flights, meant.flights.unwrap_or_else(flights::usual));
            assert_eq!(run.recorder.record, meant.record);
            assert_eq!(run.command, meant.command.iter().map(OsString::from).collect::<Vec<_>>());
        }
    }
}
