//! `ekiden agent`: a policy in a process of this machine.

pub(crate) mod control;

use std::{cell::RefCell, ffi::OsString, os::fd::AsRawFd, path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Args;
use ekiden_agent::{Agent, Config, Counts, Next};
use ekiden_host::Figure;
use ekiden_loader::LoadError;
use serde::Serialize;

use crate::{
    child::{self, Events},
    failure::{Exit, Failure},
    figures, flights,
    own::{AsRoot, Needs},
    policies, record,
    recording::{RECORDING_KIB, ToFile, in_words},
    session::{self, Flight, LastFault},
};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden agent wfq
      all tasks, until Ctrl-C
  ekiden agent wfq --set slice_min_us=1000 -- make
      while a command runs; its exit code is passed on
  ekiden agent wfq --record out.ekirec -- make -j8
      records every call, for ekiden replay
  ekiden agent fifo --json -- perf bench sched pipe
      and what the agent has done, as JSON

No kernel module is loaded: the policy runs in this process, and BPF carries out
what it decides. However the process ends, the kernel's own scheduler has all
tasks again; if it stops answering, some 20 to 40 ms later, or a second where a
hypervisor takes the CPU's time. A policy that is taken out ends the command,
and the exit code is 101. Meanwhile `ekiden upgrade` lets another policy take
over, and `ekiden status` and `ekiden top` show how it fares. What else `ekiden
run` can do is not there: see docs/agent.md. See also: ekiden vm agent")]
pub(crate) struct AgentCommand {
    #[command(flatten)]
    options: AgentOptions,
    /// Room for this many messages that the agent has not taken yet, a power of two; if there are more, it looks at
    /// all tasks anew
    #[arg(long, value_name = "N", default_value_t = 16_384)]
    #[arg(value_parser = clap::value_parser!(u32).range(1_024..=1_048_576))]
    messages: u32,
    /// Memory for the newest calls, which are saved if the policy is taken out; 0 for none
    #[arg(long, value_name = "KIB", default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(0..=262_144))]
    flight_kib: u64,
    /// Where its last calls are saved if it is taken out
    #[arg(long, value_name = "DIR", default_value_os_t = flights::usual())]
    flights: PathBuf,
    /// Record every call to this file, from the first one on; there are 16 MiB of memory for that
    #[arg(long, value_name = "FILE", conflicts_with = "flight_kib")]
    record: Option<PathBuf>,
    #[command(flatten)]
    as_root: AsRoot,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Options that `ekiden agent` and `ekiden vm agent` have in common.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentOptions {
    /// The policy: one that comes with Ekiden, or of the project in the current directory
    pub(crate) policy: String,
    /// A parameter of the policy
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,
    /// Room for this many tasks; if there are more, those share a part of each CPU, and the policy does not have them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=1_048_576))]
    max_tasks: Option<u32>,
    /// If the policy is taken out, let the command continue under the kernel's own scheduler
    #[arg(long)]
    keep_going: bool,
    /// Print what the agent has done as JSON
    #[arg(long)]
    json: bool,
}

impl AgentOptions {
    /// These options as words, which `ekiden agent` reads.
    pub(crate) fn argv(&self) -> Vec<String> {
        let Self { policy, set, max_tasks, keep_going, json } = self;
        let mut argv = vec![policy.clone()];
        argv.extend(set.iter().map(|set| format!("--set={set}")));
        argv.extend(max_tasks.map(|tasks| format!("--max-tasks={tasks}")));
        argv.extend(keep_going.then(|| "--keep-going".to_owned()));
        argv.extend(json.then(|| "--json".to_owned()));
        argv
    }
}

/// The summary that is printed at the end.
#[derive(Serialize)]
struct Ended<'a> {
    policy: &'a str,
    /// Whether the policy was the scheduler to the end.
    was_scheduler: bool,
    #[serde(flatten)]
    counts: Counts,
    /// What the policy has counted itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    figures: Vec<Figure>,
}

impl AgentCommand {
    /// The policies that have to be in this process.
    pub(crate) fn needs(&self) -> Needs {
        Needs::of([&self.options.policy], self.as_root).for_root()
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        let params = self.options.set.join(" ");
        policies::check_params(&self.options.policy, &params)?;
        let make = policies::make(&self.options.policy)?;
        if !self.messages.is_power_of_two() {
            return Err(Failure::new(Exit::Usage, "--messages has to be a power of two, such as 16384").into());
        }
        let usual = Config::new(&self.options.policy);
        let max_tasks = self.options.max_tasks.unwrap_or(usual.max_tasks);
        let flight_kib = if self.record.is_some() { RECORDING_KIB } else { self.flight_kib };
        let call_log_records = session::records_in(flight_kib);
        let config = Config { params, max_tasks, messages: self.messages, call_log_records, ..usual };
        let events = Events::listen()?;
        let agent = RefCell::new(Agent::start(&config, make)?);
        let flight = self.flight(&agent.borrow())?;
        let recording = self.recording(&agent.borrow())?;
        let what =
            format!("{} schedules all tasks of this machine from this process; Ctrl-C ends it", self.options.policy);
        let listening = control::Listening::begin(events.asked())?;
        let watch = || {
            let Err(error) = agent.borrow().check() else { return Ok(()) };
            if let LoadError::TakenOut(reason) = &error {
                // Another one may have taken over from the policy that was started.
                let newest = agent.borrow().header("flight recorder").ok();
                let mut fault = LastFault::now(&agent.borrow().instance().policy, reason);
                fault.recording = flight.as_ref().and_then(|flight| flight.save(&fault, newest.as_ref()));
                // The message is the same without it.
                let _ = fault.keep();
            }
            Err(error.into())
        };
        let answer = |stream| control::answer(stream, |request| answer_of(&agent.borrow(), request));
        let code = child::answering(&events, &self.command, &what, self.options.keep_going, watch, answer);
        drop(listening);
        let agent = agent.into_inner();
        let (was_scheduler, counts, figures) = (agent.is_running(), agent.counts(), agent.figures());
        let ended = Ended { policy: &agent.instance().policy, was_scheduler, counts, figures };
        drop(agent);
        if let (Some(recording), Some(path)) = (recording, &self.record) {
            record::tell(path, recording.stop()?);
        }
        self.tell(&ended)?;
        let code = code?;
        if !ended.was_scheduler && !self.options.keep_going {
            return Err(LoadError::TakenOut("it was not the scheduler any more at the end".into()).into());
        }
        Ok(code)
    }

    /// The flight recorder, to save if the policy is taken out.
    fn flight(&self, agent: &Agent) -> Result<Option<Flight>> {
        let Some(call_log) = agent.call_log()? else { return Ok(None) };
        let (call_log, header) = (RefCell::new(call_log), agent.header("flight recorder")?);
        Ok(Some(Flight { call_log, header, directory: self.flights.clone() }))
    }

    /// What goes to a file from the beginning.
    fn recording(&self, agent: &Agent) -> Result<Option<ToFile>> {
        let (Some(path), Some(call_log)) = (&self.record, agent.call_log()?) else { return Ok(None) };
        let header = agent.header(&in_words(&self.command))?;
        Ok(Some(ToFile::of(path, call_log, &header, agent.successors())?))
    }

    fn tell(&self, ended: &Ended<'_>) -> Result<()> {
        if self.options.json {
            println!("{}", serde_json::to_string(ended)?);
            return Ok(());
        }
        let Counts { messages, decisions, stale, batches, lost, .. } = ended.counts;
        let was = if ended.was_scheduler { "was the scheduler to the end" } else { "was not the scheduler any more" };
        eprintln!(
            "{} {was}: {messages} messages, {decisions} decisions in {batches} batches, {stale} of them stale, {lost} \
             messages lost; the kernel's own scheduler is back",
            ended.policy
        );
        eprint!("{}", figures::in_words(&ended.figures, ""));
        Ok(())
    }
}

/// What an agent says when it is asked, as JSON.
fn answer_of(agent: &Agent, request: control::Request) -> Result<serde_json::Value> {
    match request {
        control::Request::Status => {
            let (pid, counts, status) = (std::process::id(), agent.counts(), agent.status()?);
            let call_log = agent.call_log_file().map(AsRawFd::as_raw_fd);
            Ok(serde_json::to_value(control::Running { pid, counts, status, call_log })?)
        }
        control::Request::Upgrade { policy, params, start_over } => {
            let make = policies::make_next(&policy)?;
            let calls = policies::find(&policy).map_or(0, |linked| linked.calls.0);
            policies::check_params(&policy, &params)?;
            let from = agent.instance().policy;
            let done = agent.upgrade(&Next { policy, params, start_over }, make).map_err(|error| match error {
                LoadError::TakenOut(_) => error.into(),
                error => anyhow::Error::from(Failure::new(Exit::OldGoesOn, format!("{from} keeps running: {error}"))),
            })?;
            Ok(serde_json::to_value(control::Upgraded { from, done, calls })?)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{Cli, Command};

    #[test]
    fn what_a_guest_is_told_is_read_as_it_was_meant() {
        let all = AgentOptions {
            policy: "wfq".into(),
            set: vec!["slice_min_us=1000".into(), "slice_max_us=9000".into()],
            max_tasks: Some(64),
            keep_going: true,
            json: true,
        };
        let none = AgentOptions { set: Vec::new(), max_tasks: None, keep_going: false, json: false, ..all.clone() };
        for options in [all, none] {
            let line = ["ekiden".to_owned(), "agent".to_owned()].into_iter().chain(options.argv());
            let Command::Agent(read) = Cli::try_parse_from(line).unwrap().command else { panic!("another command") };
            assert_eq!(read.options, options);
        }
    }
}
