//! `ekiden upgrade`: another policy, or another version of it, takes over while everything runs.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use ekiden::{Call, Calls};
use ekiden_loader::{
    Control, Moved as How, Status, Succession, Upgrade as Done, load_beside, load_copy, needs_root, unload,
};
use serde::Serialize;

use crate::{
    agent::control::{self, MovedTo, Request, Upgraded},
    failure::{Exit, Failure},
    hosted::Place,
    modules::{self, Allowed},
    policies,
    progress::Progress,
    session,
};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden upgrade wfq
      all tasks go over to wfq, beside an `ekiden run` that keeps running
  ekiden upgrade wfq --set slice_min_us=1000
  ekiden upgrade my-policy
      after a change: the new version of the policy that runs
  ekiden upgrade my-policy ekiden_my_policy.ko
      the same with a module that is built already
  ekiden upgrade wfq --to kernel
      wfq in the kernel takes over from a policy in an agent

A new version of the same policy takes over the state as it is in memory if its
layout is the same, or else what the old one saves for it. If it saves nothing,
the new one is refused, unless --start-over makes all tasks new to it, as they
are to another policy. With the state it takes over the parameters, unless --set
says otherwise and the policy reads them anew. Whatever is refused leaves the
old policy running, and the exit code is 120. Tasks are never under the kernel's
own scheduler in between. What sched_ext calls the scheduler stays the name of
the first policy; `ekiden status` says which one runs.

While `ekiden agent` has the tasks, one of the policies in its program takes
over there: no module is built, and MODULE.ko, --from and --arena-mib are
refused.

With --to the policy takes over in the other place: in the kernel from one in an
agent, or the other way. All tasks are new to it; the same policy keeps its
parameters, and continues from what it saves, if anything. The command that runs
under it keeps running. While one lets go and the other begins, the kernel's own
scheduler has the tasks, for some tenths of a second. What is refused leaves the
old policy where it is.")]
pub(crate) struct Upgrade {
    /// The policy that takes over
    policy: String,
    /// Its module; by default it is built
    #[arg(value_name = "MODULE.ko")]
    module: Option<PathBuf>,
    /// The policy that it takes over from, by its name or number; the default one if it is left out
    #[arg(long, value_name = "POLICY")]
    from: Option<String>,
    /// Where it takes over; by default where the old one is
    #[arg(long, value_name = "PLACE", conflicts_with_all = ["module", "from", "arena_mib"])]
    to: Option<Place>,
    /// A parameter of the policy
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Take over no state, even from a version with the same layout
    #[arg(long)]
    start_over: bool,
    /// Memory for the policy itself; by default as much as the old one has
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=2_048))]
    arena_mib: Option<u64>,
    /// Take the modules from this directory instead of building them
    #[arg(long, value_name = "DIR", env = modules::DIRECTORY)]
    modules: Option<PathBuf>,
    #[command(flatten)]
    allowed: Allowed,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result of an upgrade.
#[derive(Serialize)]
struct Report<'a> {
    from: &'a str,
    to: &'a str,
    /// The module of the successor, which one in an agent does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<&'a str>,
    #[serde(flatten)]
    done: Done,
    /// Parameters that were asked for, and that the policy has not read.
    unread: Vec<String>,
}

/// A policy that took over in the other place.
#[derive(Serialize)]
struct Moved<'a> {
    from: &'a str,
    to: &'a str,
    place: Place,
    moved: How,
    tasks: u64,
    between_ns: u64,
}

impl std::fmt::Display for Moved<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { from, to, place, moved, tasks, between_ns } = self;
        let ms = *between_ns as f64 / 1e6;
        let how = if *moved == How::Converted { "; it continues from what was saved for it" } else { "" };
        writeln!(f, "{to} in {place} took over from {from}: {tasks} tasks, all new to it{how}")?;
        write!(f, "the kernel's own scheduler had them for {ms:.1} ms in between; `ekiden status` shows how it fares")
    }
}

/// Parameters in `set` that have no effect: the successor has the state as it is in memory, and the values in it, as the
/// `reregister_init` that `#[policy]` fills in looks at no parameters.
fn unread(set: &[String], moved: How, calls: Calls) -> Vec<String> {
    let is_kept = moved == How::ByPointer && !calls.has(Call::ReregisterInit);
    if is_kept { set.to_vec() } else { Vec::new() }
}

impl Upgrade {
    pub(crate) fn run(self) -> Result<ExitCode> {
        needs_root()?;
        let place = if control::has_the_tasks() { Place::Agent } else { Place::Kernel };
        if let Some(to) = self.to.filter(|to| *to != place) {
            return self.moves_to(to);
        }
        if place == Place::Agent {
            return self.in_agent();
        }
        let before = Status::read()?.unwrap_or_default();
        let from = before.find(self.from.as_deref())?;
        let params = self.set.join(" ");
        policies::check_params(&self.policy, &params)?;
        let file = match &self.module {
            Some(file) => file.clone(),
            None => {
                let given = self.modules.as_deref();
                let directory = modules::for_this_machine(given, &self.policy, &self.allowed, &mut Progress::new())?;
                modules::file(&directory, &self.policy)
            }
        };
        // One module runs one instance.
        let module = if self.start_over { load_copy(&file) } else { load_beside(&file) }?;
        let succession = Succession {
            slot: Some(from.slot),
            module: Some(&module),
            policy: Some(&self.policy),
            params: &params,
            start_over: self.start_over,
            arena_bytes: self.arena_mib.unwrap_or_default() << 20,
        };
        let done = Control::open().and_then(|control| control.upgrade(&succession));
        // The module that is not needed any more: the old one, or the new one if it was refused. If it stays, `rmmod` can remove it later.
        let runs = Status::read()?.unwrap_or_default().policies;
        for name in [&from.module, &module].into_iter().filter(|name| runs.iter().all(|now| now.module != **name)) {
            let _ = unload(name, Duration::from_secs(1));
        }
        let done = done?;
        let calls = runs.iter().find(|now| now.module == module).map_or(Calls::ALL, |now| Calls(now.calls));
        let unread = unread(&self.set, done.moved, calls);
        self.tell(&Report { from: &from.policy, to: &self.policy, module: Some(&module), done, unread })
    }

    /// The policy is to take over in an agent, which has it already.
    fn in_agent(&self) -> Result<ExitCode> {
        let of_kernel = [
            (self.module.is_some(), "MODULE.ko"),
            (self.from.is_some(), "--from"),
            (self.arena_mib.is_some(), "--arena-mib"),
        ];
        if let Some((_, option)) = of_kernel.iter().find(|(is_given, _)| *is_given) {
            let message = format!("{option} is for policies in the kernel, and an agent has the tasks; leave it out");
            return Err(Failure::new(Exit::Usage, message).into());
        }
        let params = self.set.join(" ");
        let Upgraded { from, done, calls } = control::upgrade(&self.policy, &params, self.start_over)?;
        let unread = unread(&self.set, done.moved, Calls(calls));
        self.tell(&Report { from: &from, to: &self.policy, module: None, done, unread })
    }

    /// The policy is to take over in the other place.
    fn moves_to(&self, to: Place) -> Result<ExitCode> {
        let (policy, params, start_over) = (self.policy.clone(), self.set.join(" "), self.start_over);
        policies::check_params(&policy, &params)?;
        let request = match to {
            Place::Agent => {
                Status::read()?.unwrap_or_default().find(None)?;
                Request::ToAgent { policy, params, start_over }
            }
            Place::Kernel => {
                session::kernel_is_right()?;
                let given = self.modules.as_deref();
                let modules = modules::for_this_machine(given, &policy, &self.allowed, &mut Progress::new())?;
                let modules = modules.canonicalize().with_context(|| format!("cannot find {}", modules.display()))?;
                Request::ToKernel { policy, params, start_over, modules }
            }
        };
        let waiting = Progress::brief(format!("{} is to take over in {to}", self.policy));
        let MovedTo { from, moved, tasks, between_ns } = control::move_to(&request)?;
        drop(waiting);
        let report = Moved { from: &from, to: &self.policy, place: to, moved, tasks, between_ns };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            println!("{report}");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn tell(&self, report: &Report<'_>) -> Result<ExitCode> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(report)?);
        } else {
            println!("{report}");
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl std::fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { from, to, done: Done { moved, wait_ns, tasks }, unread, .. } = self;
        let how = match moved {
            How::ByPointer => "took over the state as it is in memory",
            How::Converted => "continues from what was saved for it, and was told of all tasks anew",
            How::StartedOver => "started over with all tasks",
        };
        writeln!(f, "{to} took over from {from}: {tasks} tasks; it {how}")?;
        if !unread.is_empty() {
            let params = unread.join(" ");
            writeln!(
                f,
                "{params} had no effect: {to} has no `reregister_init` of its own, and goes on with the parameters in its"
            )?;
            writeln!(
                f,
                "state. To have it read them, write one, or start over: ekiden upgrade {to} --start-over --set {}",
                unread.join(" --set ")
            )?;
        }
        write!(
            f,
            "no CPU waited longer than {:.1} µs at once; `ekiden status` shows how it fares",
            *wait_ns as f64 / 1000.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_a_successor_does_not_read_are_reported() {
        let set = ["slice_us=500".to_owned()];
        let reads = Calls::NONE.with(Call::ReregisterInit);
        assert!(unread(&set, How::ByPointer, reads).is_empty());
        assert!(unread(&set, How::StartedOver, Calls::NONE).is_empty());
        let unread = unread(&set, How::ByPointer, Calls::NONE);
        let done = Done { moved: How::ByPointer, wait_ns: 1_500, tasks: 3 };
        let shown = Report { from: "mine", to: "mine", module: Some("m"), done, unread }.to_string();
        assert!(shown.contains("slice_us=500 had no effect: mine has no `reregister_init`"), "{shown}");
        assert!(shown.contains("ekiden upgrade mine --start-over --set slice_us=500"), "{shown}");
    }
}
