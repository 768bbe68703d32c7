//! `ekiden status`: what runs and how it fares.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Args;
use ekiden_loader::{HintCounts, PolicyStatus, sysfs};
use indicatif::HumanDuration;
use nix::unistd::geteuid;
use serde::Serialize;

use crate::{
    agent::control::{self, Running},
    figures, prometheus,
    session::LastFault,
};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden status          for people
  ekiden status --json   for programs: kernel, policy, counters, last fault
  ekiden status --prometheus | \\
      sponge /var/lib/prometheus/node-exporter/ekiden.prom
      for node_exporter, which reads the files there
      (--collector.textfile.directory)

See also: ekiden top")]
pub(crate) struct Status {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print what Prometheus reads
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

/// What can be said of the scheduler at one moment.
#[derive(Serialize)]
pub(crate) struct Everything {
    pub(crate) sched_ext: SchedExt,
    /// What `ekiden.ko` says, or an agent of its policy; absent while it is not loaded, and no agent runs.
    pub(crate) ekiden: Option<ekiden_loader::Status>,
    /// The agent that has the tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) agent: Option<InAgent>,
    /// Why the last policy was taken out.
    pub(crate) last_fault: Option<LastFault>,
}

/// An agent that has the tasks, and what it has done so far.
#[derive(Serialize)]
pub(crate) struct InAgent {
    /// Its process.
    pid: u32,
    #[serde(flatten)]
    counts: ekiden_agent::Counts,
}

/// What the kernel says.
#[derive(Default, Serialize)]
pub(crate) struct SchedExt {
    pub(crate) supported: bool,
    pub(crate) state: Option<String>,
    pub(crate) scheduler: Option<String>,
    pub(crate) enable_seq: Option<u64>,
}

impl SchedExt {
    /// Which scheduler there is.
    pub(crate) fn in_words(&self) -> String {
        match (&self.scheduler, &self.state) {
            (Some(scheduler), _) => format!("{scheduler} (sched_ext)"),
            (None, Some(state)) => format!("the kernel's own (sched_ext is {state})"),
            (None, None) => "the kernel's own (this kernel has no sched_ext)".into(),
        }
    }
}

impl Everything {
    pub(crate) fn read() -> Result<Self> {
        let (ekiden, agent) = match control::running() {
            Some(Running { pid, counts, status, .. }) => (Some(status), Some(InAgent { pid, counts })),
            // `ekiden.ko` may be loaded, but has no tasks.
            None if control::has_the_tasks() => (None, None),
            None => (ekiden_loader::Status::read()?, None),
        };
        Ok(Self {
            sched_ext: SchedExt {
                supported: sysfs::supported(),
                state: sysfs::state(),
                scheduler: sysfs::scheduler(),
                enable_seq: sysfs::enable_seq(),
            },
            ekiden,
            agent,
            last_fault: LastFault::read(),
        })
    }
}

impl Status {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let everything = Everything::read()?;
        if self.prometheus {
            print!("{}", prometheus::text(&everything)?);
        } else if self.json {
            println!("{}", serde_json::to_string_pretty(&everything)?);
        } else {
            print!("{everything}");
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl std::fmt::Display for Everything {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "scheduler   {}", self.sched_ext.in_words())?;
        if let Some(status) = &self.ekiden {
            if status.policies.is_empty() {
                writeln!(f, "policy      none")?;
            }
            for policy in &status.policies {
                policy_in_words(f, policy, status.attached, status.policies.len() > 1)?;
            }
            writeln!(f, "tasks       {} of {}", status.counts.tasks, status.capacity)?;
            if status.beyond > 0 {
                writeln!(
                    f,
                    "beyond      {}: no policy has these tasks, and no cpu.max holds them, until there is room; more: --max-tasks",
                    status.beyond
                )?;
            }
            if status.groups_without_room > 0 {
                let (groups, without_room) = (status.groups, status.groups_without_room);
                writeln!(
                    f,
                    "groups      {groups}; for {without_room} there was no room: they share the time of the group above them"
                )?;
            }
            if status.stops.slow > 0 {
                let (slow, cpu) = (status.stops.slow, status.stops.late_cpu);
                let ms = status.stops.took_ns_max as f64 / 1e6;
                // The longest one may have been slow for another reason.
                let longest = status.stops.took_max_cpu;
                let for_longest = if longest < 0 { String::new() } else { format!(", for CPU {longest}") };
                writeln!(
                    f,
                    "late CPUs   {slow} times all CPUs had to wait for one, the last time for CPU {cpu}; {ms:.1} ms at most{for_longest}"
                )?;
            }
            if let Some(fault) = &status.fault {
                writeln!(f, "fault       {fault}")?;
            }
            match &self.agent {
                Some(agent) => agent.in_words(f)?,
                None => writeln!(f, "loaded      {}", status.loaded.join(", "))?,
            }
        } else if control::has_the_tasks() {
            let why = if geteuid().is_root() { "it does not answer" } else { "only root may ask how it fares" };
            writeln!(f, "agent       {why}")?;
        } else {
            writeln!(f, "ekiden.ko   not loaded; `ekiden run POLICY` loads it")?;
        }
        if let Some(LastFault { policy, reason, recording, .. }) = &self.last_fault {
            let ago = ago(self.last_fault.as_ref().and_then(LastFault::ago));
            writeln!(f, "last fault  {policy}: {reason}{ago}")?;
            if let Some(recording) = recording {
                writeln!(f, "            its last calls: ekiden replay {}", recording.display())?;
            }
        }
        Ok(())
    }
}

impl InAgent {
    fn in_words(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ekiden_agent::Counts { messages, decisions, stale, lost, .. } = self.counts;
        writeln!(
            f,
            "agent       process {}; {messages} messages, {lost} lost; {decisions} decisions, {stale} stale",
            self.pid
        )
    }
}

fn policy_in_words(
    f: &mut std::fmt::Formatter<'_>,
    policy: &PolicyStatus,
    attached: bool,
    is_one_of_several: bool,
) -> std::fmt::Result {
    let PolicyStatus { policy: name, instance, params, counts, .. } = policy;
    let state = match (policy.alive, attached) {
        (true, true) => "",
        (true, false) => " (not attached)",
        (false, _) => " (taken out)",
    };
    let tasks = match (is_one_of_several, policy.default) {
        (false, _) => "",
        (true, true) => "; has the tasks for which no policy was chosen",
        (true, false) => "; has what is given to it",
    };
    let blank = if params.is_empty() { "" } else { " " };
    writeln!(f, "policy      {name}{blank}{params}, number {instance}{state}{tasks}")?;
    if policy.upgrades > 0 {
        let longest = policy.upgrade_wait_ns_max as f64 / 1000.0;
        writeln!(f, "  upgrades    {}; no CPU waited longer than {longest:.1} µs", policy.upgrades)?;
    }
    if let Some(share) = crate::share::in_words(policy) {
        writeln!(f, "  share       {share}")?;
    }
    if is_one_of_several && !policy.default {
        let who = match policy.open_to_group {
            Some(group) => format!("root and the members of group {group} may choose it"),
            None if policy.open => "every user may choose it for their tasks".to_owned(),
            None => "only root may choose it".to_owned(),
        };
        writeln!(f, "  access      {who}")?;
    }
    writeln!(f, "  tasks       {}", counts.tasks)?;
    writeln!(f, "  picks       {}; {} times there was nothing to pick", counts.picks, counts.idles)?;
    writeln!(f, "  migrations  {}", counts.migrations)?;
    writeln!(f, "  refusals    {}", counts.refusals)?;
    write!(f, "{}", figures::in_words(&policy.figures, "  "))?;
    if let Some(queues) = &policy.queues {
        writeln!(f, "  queues      {} opened, {} open; {}", queues.opened, queues.open, said_in(&queues.counts))?;
        for queue in &queues.list {
            writeln!(f, "    queue {:<4}of process {}: {}", queue.queue, queue.owner, said_in(&queue.counts))?;
        }
        let more = queues.open.saturating_sub(queues.list.len() as u64);
        if more > 0 {
            writeln!(f, "    and {more} more")?;
        }
    }
    if counts.slowed > 0 {
        writeln!(f, "  slowed      {} times it wanted more kicks, timers or picks than it may have", counts.slowed)?;
    }
    if counts.turns > 0 {
        writeln!(
            f,
            "  turns       {} that tasks had without it, as their fair share was too long a wait",
            counts.turns
        )?;
    }
    writeln!(f, "  violations  {}{}", counts.contract_violations, in_words(counts.last_contract_violation.as_deref()))?;
    match policy.fault.as_ref().or(counts.engine_fault.as_ref()) {
        Some(fault) => writeln!(f, "  fault       {fault}{}", ago(policy.faulted_ago())),
        None => Ok(()),
    }
}

/// What queues of hints have counted, in words.
pub(crate) fn said_in(counts: &HintCounts) -> String {
    let HintCounts { hints, refused, nonsense, full, notices, lost } = counts;
    let nonsense = match nonsense {
        0 => String::new(),
        times => format!("; {times} times an index made no sense"),
    };
    format!("{hints} hints, {refused} refused, {full} had no room; {notices} notices, {lost} had no room{nonsense}")
}

fn ago(time: Option<Duration>) -> String {
    time.map_or(String::new(), |time| format!("; {} ago", HumanDuration(time)))
}

fn in_words(last: Option<&str>) -> String {
    last.map_or(String::new(), |last| format!("; the last: {last}"))
}
