//! `ekiden`: the command line. It is a library so that a program can have policies of its own besides: `hosts/kernel/build/src/runner.rs` makes
//! such programs of projects, where `lab/command/src/own.rs` says that one is needed.
#![forbid(unsafe_code)]

mod agent;
mod attach;
mod build;
mod check;
mod child;
mod doctor;
mod exec;
mod explain;
mod explore;
mod figures;
mod hints;
mod hosted;
#[cfg(test)]
mod house_rules;
mod live;
mod modes;
mod new;
mod order;
mod prometheus;
mod record;
mod replay;
mod run;
mod runqlat;
mod share;
mod sim;
mod status;
mod sweep;
mod top;
mod trace;
mod transitions;
mod upgrade;
mod view;
mod vm;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
// What commands share, by the names that its modules have in the commands: `crate::failure` and so on.
use ekiden_command::{
    booted, considered, failure, flights, guest_run, invoker, loads, machine, models, modules, output, own, parallel,
    policies, progress, recording, report, session, signals,
};
use ekiden_linked::Linked;
use ekiden_measure as measure;

use crate::{failure::Exit, own::Needs};

#[derive(Parser)]
#[command(
    name = "ekiden",
    version,
    about = "Linux CPU schedulers in safe Rust: in the kernel, in a virtual machine, in a simulator",
    after_help = failure::AFTER_HELP
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a policy project
    New(new::New),
    /// Make kernel modules of policies
    Build(build::Build),
    /// Run a load on a simulated machine
    Sim(Box<sim::Sim>),
    /// Record what the kernel's scheduler does; say what is in a trace, cut it, write it in other formats
    Trace(trace::TraceCommand),
    /// Show a trace in the browser: run queues, loads, tasks, violations over time
    View(view::View),
    /// Measure again what papers measured, in the simulator
    Reproduce(measure::Reproduce),
    /// Check a trace, or this machine as it runs: idle CPUs while tasks wait, and what else schedulers promise
    Check(check::Check),
    /// Measure how far the simulator is from the real kernel, and what things cost there
    Fidelity(measure::Fidelity),
    /// Record every call of the policy that runs, to replay them
    Record(record::Record),
    /// Give a policy the calls of a recording again, and say where it answers differently
    Replay(replay::ReplayCommand),
    /// Run a policy's calls in every order that its locks allow, and replay the one that goes wrong
    Explore(explore::Explore),
    /// Run a policy in the kernel of this machine, while a command runs or until Ctrl-C
    Run(run::Run),
    /// Run a policy in a process of this machine instead, without any kernel module
    Agent(agent::AgentCommand),
    /// Let another policy, or another version of it, take over from the one that runs
    Upgrade(upgrade::Upgrade),
    /// Say what runs, how it fares, and why the last policy was taken out
    Status(status::Status),
    /// Say why programs were slower or faster under one scheduler than under another, from a trace of each
    Explain(explain::Explain),
    /// Count how long tasks wait for a CPU, under whichever scheduler, or several side by side
    Runqlat(runqlat::Runqlat),
    /// Show what runs and how it fares, again and again
    Top(top::Top),
    /// Run a command under one of the policies that run
    Exec(exec::Exec),
    /// Give a thread, a program or a control group to one of the policies that run
    Attach(attach::Attach),
    /// Give it back to the default policy
    Detach(attach::Detach),
    /// Tell a policy something, as a program does by a queue of hints
    Hint(hints::Hint),
    /// Say what programs may tell a policy, as a header for C
    Hints(hints::Hints),
    /// Choose whether a policy ends when a task changes its state unexpectedly
    #[command(alias = "checks")]
    Transitions(transitions::TransitionsCommand),
    /// Say, or change, in which order the policies that run are asked
    Order(order::Order),
    /// Give a policy CPUs, or a weight beside others, while it runs
    Share(share::ShareCommand),
    /// Do the same in a virtual machine of a stock kernel
    Vm(vm::VmCommand),
    /// Fetch a kernel, build the policies, boot, measure, and show one table
    Demo(measure::Demo),
    /// Measure policies side by side with the kernel's own scheduler
    Bench(measure::Bench),
    #[command(hide = true)]
    MeasureRequest(measure::MeasureRequest),
    #[command(hide = true)]
    Sleepers(measure::Sleepers),
    /// Have a policy go wrong in every way there is, and say what came of it
    Faults(measure::Faults),
    /// Put policies through everything at once for as long as one likes, and say what was found
    Soak(measure::Soak),
    /// Say what this machine lacks, and how to get it
    Doctor(doctor::Doctor),
}

/// Runs the command that the arguments of this program are. `own` are policies besides those that come with Ekiden, as
/// [`ekiden_linked::policies!`] makes them; with none, commands in a project that name one of its policies build a program that has them.
pub fn main(own: &'static [Linked]) -> ExitCode {
    failure::end_quietly_without_a_reader();
    if let Err(error) = ekiden_linked::add(own) {
        eprintln!("ekiden: {error}");
        return Exit::Usage.into();
    }
    let matches = Cli::command().get_matches();
    if let Some(why) = modes::refuse(&Cli::command(), &matches) {
        eprintln!("ekiden: {why}");
        return Exit::Usage.into();
    }
    let command = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command;
    match needs(&command).fetch().and_then(|code| code.map_or_else(|| dispatch(command), Ok)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ekiden: {}", failure::explain(&error));
            Exit::of(&error).into()
        }
    }
}

/// The policies that a command needs in this process.
fn needs(command: &Command) -> Needs {
    match command {
        Command::Sim(sim) => sim.needs(),
        Command::Explore(explore) => explore.needs(),
        Command::Replay(replay) => replay.needs(),
        Command::Agent(agent) => agent.needs(),
        Command::Hint(hint) => hint.needs(),
        Command::Hints(hints) => hints.needs(),
        Command::Trace(trace) => trace.needs(),
        Command::Vm(vm) => vm.needs(),
        Command::Fidelity(fidelity) => fidelity.needs(),
        Command::Bench(bench) => bench.needs(),
        Command::Soak(soak) => soak.needs(),
        // Policies of these are in the kernel or come with Ekiden, or there are none.
        Command::New(_)
        | Command::Build(_)
        | Command::View(_)
        | Command::Reproduce(_)
        | Command::Check(_)
        | Command::Record(_)
        | Command::Run(_)
        | Command::Upgrade(_)
        | Command::Status(_)
        | Command::Explain(_)
        | Command::Runqlat(_)
        | Command::Top(_)
        | Command::Exec(_)
        | Command::Attach(_)
        | Command::Detach(_)
        | Command::Transitions(_)
        | Command::Order(_)
        | Command::Share(_)
        | Command::Demo(_)
        | Command::MeasureRequest(_)
        | Command::Sleepers(_)
        | Command::Faults(_)
        | Command::Doctor(_) => Needs::default(),
    }
}

fn dispatch(command: Command) -> Result<ExitCode> {
    match command {
        Command::New(new) => new.run(),
        Command::Build(build) => build.run(),
        Command::Sim(sim) => sim.run(),
        Command::Trace(trace) => trace.run(),
        Command::View(view) => view.run(),
        Command::Reproduce(reproduce) => reproduce.run(),
        Command::Check(check) => check.run(),
        Command::Fidelity(fidelity) => fidelity.run(),
        Command::Record(record) => record.run(),
        Command::Replay(replay) => replay.run(),
        Command::Explore(explore) => explore.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Run(run) => run.run(),
        Command::Agent(agent) => agent.run(),
        Command::Upgrade(upgrade) => upgrade.run(),
        Command::Status(status) => status.run(),
        Command::Explain(explain) => explain.run(),
        Command::Runqlat(runqlat) => runqlat.run(),
        Command::Top(top) => top.run(),
        Command::Exec(exec) => exec.run(),
        Command::Attach(attach) => attach.run(),
        Command::Detach(detach) => detach.run(),
        Command::Hint(hint) => hint.run(),
        Command::Hints(hints) => hints.run(),
        Command::Transitions(transitions) => transitions.run(),
        Command::Order(order) => order.run(),
        Command::Share(share) => share.run(),
        Command::Demo(demo) => demo.run(),
        Command::Vm(vm) => vm.run(),
        Command::MeasureRequest(request) => request.run(),
        Command::Sleepers(sleepers) => sleepers.run(),
        Command::Bench(bench) => bench.run(),
        Command::Faults(faults) => faults.run(),
        Command::Soak(soak) => soak.run(),
    }
}
