//! `ekiden agent`: a policy in a process of this machine.

pub(crate) mod control;

use std::{ffi::OsString, process::ExitCode};

use anyhow::Result;
use clap::Args;
use ekiden_agent::{Agent, Counts};
use ekiden_loader::{Access, LoadError};
use ekiden_recording::Instance;

use crate::{
    child::{self, Events},
    failure::{Exit, Failure},
    figures,
    hosted::{End, Hosted, InProcess, Options, Place, Recorder},
    own::{AsRoot, Needs},
    policies, record,
    recording::{ToFile, in_words},
};

/// Room for messages, if nothing else is said.
pub(crate) const MESSAGES: u32 = 16_384;

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
    #[arg(long, value_name = "N", default_value_t = MESSAGES)]
    #[arg(value_parser = clap::value_parser!(u32).range(1_024..=1_048_576))]
    messages: u32,
    #[command(flatten)]
    recorder: Recorder,
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
    /// Have the policy decide for each task that wakes up, also where a CPU is idle and nothing waits; otherwise BPF places it
    /// there, if the policy leaves to the kernel where tasks go
    #[arg(long)]
    every_wakeup: bool,
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
        let Self { policy, set, max_tasks, every_wakeup, keep_going, json } = self;
        let mut argv = vec![policy.clone()];
        argv.extend(set.iter().map(|set| format!("--set={set}")));
        argv.extend(max_tasks.map(|tasks| format!("--max-tasks={tasks}")));
        argv.extend(every_wakeup.then(|| "--every-wakeup".to_owned()));
        argv.extend(keep_going.then(|| "--keep-going".to_owned()));
        argv.extend(json.then(|| "--json".to_owned()));
        argv
    }
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
        let events = Events::listen()?;
        let options = Options {
            max_tasks: self.options.max_tasks,
            arena_mib: None,
            messages: self.messages,
            every_wakeup: self.options.every_wakeup,
            access: Access::Root,
            recorder: self.recorder.clone(),
            look: events.look_again(),
        };
        let first = Instance { policy: self.options.policy.clone(), params };
        let agent = Agent::start(&options.config(&first), make)?;
        let recording = self.recording(&agent)?;
        let what =
            format!("{} schedules all tasks of this machine from this process; Ctrl-C ends it", self.options.policy);
        let hosted = Hosted::in_agent(InProcess::new(agent, &options)?, options);
        let listening = control::Listening::begin(events.asked())?;
        let answer = |stream| control::answer(stream, |request| hosted.answer(request));
        let keep_going = self.options.keep_going;
        let code = child::answering(&events, &self.command, &what, keep_going, || hosted.check(), answer);
        drop(listening);
        let ended = hosted.end();
        if let (Some(recording), Some(path)) = (recording, &self.recorder.record) {
            record::tell(path, recording.stop()?);
        }
        self.tell(&ended)?;
        let code = code?;
        if !ended.was_scheduler && !self.options.keep_going {
            return Err(LoadError::TakenOut("it was not the scheduler any more at the end".into()).into());
        }
        Ok(code)
    }

    /// What goes to a file from the beginning.
    fn recording(&self, agent: &Agent) -> Result<Option<ToFile>> {
        let (Some(path), Some(call_log)) = (&self.recorder.record, agent.call_log()?) else { return Ok(None) };
        let header = agent.header(&in_words(&self.command))?;
        Ok(Some(ToFile::of(path, call_log, &header, agent.tells_instances())?))
    }

    fn tell(&self, ended: &End) -> Result<()> {
        if self.options.json {
            println!("{}", serde_json::to_string(ended)?);
            return Ok(());
        }
        let Counts { messages, decisions, stale, batches, lost, .. } = ended.counts;
        let was = if ended.was_scheduler { "was the scheduler to the end" } else { "was not the scheduler any more" };
        let place = if ended.place == Place::Kernel { ", in the kernel; in this process there were" } else { ":" };
        eprintln!(
            "{} {was}{place} {messages} messages, {decisions} decisions in {batches} batches, {stale} of them stale, {lost} \
             messages lost; the kernel's own scheduler is back",
            ended.policy
        );
        eprint!("{}", figures::in_words(&ended.figures, ""));
        Ok(())
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
            every_wakeup: true,
            keep_going: true,
            json: true,
        };
        let none = AgentOptions {
            set: Vec::new(),
            max_tasks: None,
            every_wakeup: false,
            keep_going: false,
            json: false,
            ..all.clone()
        };
        for options in [all, none] {
            let line = ["ekiden".to_owned(), "agent".to_owned()].into_iter().chain(options.argv());
            let Command::Agent(read) = Cli::try_parse_from(line).unwrap().command else { panic!("another command") };
            assert_eq!(read.options, options);
        }
    }
}
