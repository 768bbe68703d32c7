//! Every guest test, with what it may be told.

use std::{ffi::OsString, path::PathBuf};

use clap::Subcommand;
use serde::{Deserialize, Serialize};

use crate::{Panics, Part, StormOfAll, To};

/// A guest test, and how much of it.
#[derive(Clone, Debug, PartialEq, Subcommand, Serialize, Deserialize)]
pub enum GuestTest {
    /// Goes through all faults that have to be contained, beside another policy and alone.
    List {
        /// How often.
        #[arg(long, default_value_t = 1)]
        rounds: u32,
        /// Only those whose names contain one of these.
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// Only beside another policy, or only to one that is alone.
        #[arg(long)]
        beside: Option<bool>,
        /// Only this part of the list: `1/3` is every third of it, from the second on.
        #[arg(long, default_value = "0/1")]
        part: Part,
    },
    /// Goes through policies of the generator.
    Generated {
        /// The number of the first in the module.
        #[arg(long)]
        first: u64,
        /// The number of the one to begin with.
        #[arg(long)]
        from: u64,
        /// How many are in the module.
        #[arg(long)]
        count: u64,
    },
    /// Lets the same tasks run while nothing goes wrong: for how long does one stand still?
    Still {
        /// For how long.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// Plants a panic in each call of the trait, and checks that only the policy goes.
    Faults(Panics),
    /// Has a policy come beside another, be asked first, get a share and leave.
    Comings {
        /// How often.
        #[arg(long, default_value_t = 20)]
        rounds: u32,
    },
    /// Changes where tasks may run, as fast as it goes.
    Affinities {
        /// Which policy has the tasks.
        #[arg(long)]
        policy: String,
        /// For how long.
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
    /// Takes everything away while timers of a policy expire in which it panics.
    LastTimers {
        /// How often.
        #[arg(long, default_value_t = 20)]
        rounds: u32,
    },
    /// Loads modules, runs a policy under load and unloads everything, again and again.
    Reload {
        /// How often.
        #[arg(long, default_value_t = 100)]
        rounds: u32,
        /// Which policies take turns.
        #[arg(long, value_delimiter = ',', default_value = "fifo,wfq")]
        policies: Vec<String>,
    },
    /// Everything that a policy has to live with: forks, affinity, nice, yield, hotplug, its loader killed.
    Storm {
        /// The policy.
        #[arg(long)]
        policy: String,
        /// Beside a hostile neighbour, who does this.
        #[arg(long, value_name = "SEED")]
        neighbour: Option<u64>,
    },
    /// What a user's programs come to beside a hostile neighbour, under the kernel's own scheduler and under policies.
    Victim {
        /// The policies.
        #[arg(long, value_delimiter = ',')]
        policies: Vec<String>,
        /// How often each scheduler has a turn.
        #[arg(long, default_value_t = 2)]
        rounds: u32,
        /// How long each kind of program counts in it, by the guest's clock.
        #[arg(long, default_value_t = 1.0)]
        seconds: f64,
        /// What the neighbour does in the first round.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Has `/dev/ekiden` asked for anything by root and by others, while policies come, go and take over.
    Device {
        /// For how long, by the guest's clock.
        #[arg(long, default_value_t = 30)]
        seconds: u64,
        /// What is asked.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// One of those who ask.
    DeviceAsks {
        /// For what.
        #[arg(long)]
        seed: u64,
        /// Which of them it is.
        #[arg(long)]
        number: usize,
        /// Whose.
        #[arg(long)]
        user: u32,
    },
    /// The programs of that user.
    VictimWorks {
        /// Its control group.
        #[arg(long)]
        group: PathBuf,
    },
    /// That neighbour.
    NeighbourLives {
        /// What it does.
        #[arg(long)]
        seed: u64,
        /// Its control group.
        #[arg(long)]
        group: PathBuf,
    },
    /// Everything that happens to tasks, CPUs and policies, all at once, under stress-ng.
    AllAtOnce(StormOfAll),
    /// What this machine answers to things that cannot work.
    Refusals,
    /// Lets policies take over from each other under load, again and again.
    Upgrades {
        /// How often.
        #[arg(long, default_value_t = 1000)]
        rounds: u64,
        /// How long CPUs wait for the last one when all are to stand still, in microseconds.
        #[arg(long)]
        patience_us: Option<u32>,
        /// Which policies, two at least.
        #[arg(long, value_delimiter = ',', default_value = "fifo,wfq,cfs")]
        policies: Vec<String>,
    },
    /// Upgrades that cannot be.
    RefusedUpgrades,
    /// Versions of one policy take over from each other.
    Versions,
    /// A policy takes over what a version of another layout has saved.
    Converts,
    /// Policies that take over and go wrong.
    FaultyUpgrades,
    /// Policies come beside each other, change places, share tasks out, and go.
    Several {
        /// The policy that comes beside WFQ, which has the machine.
        #[arg(long, default_value = "fifo")]
        policy: String,
    },
    /// A policy sends tasks elsewhere than to the idle CPU that the kernel found for them.
    Claimed,
    /// Policies share CPUs out, by weights and by sets.
    Shares,
    /// Parameters are set for a task.
    TaskParams,
    /// What a policy counts itself.
    Figures,
    /// What a policy in an agent counts itself.
    FiguresInAgent,
    /// An ordinary user's program has queues of hints, and does what it may not.
    Queues,
    /// Scripts and tracers see what the engine does.
    Seen,
    /// A policy goes wrong beside another one, in each call.
    Alone(Panics),
    /// Gives a policy only one task, beside batch work of the default class.
    Attached,
    /// Holds a policy while a command runs, or until it is killed.
    Hold {
        /// The policy.
        #[arg(long)]
        policy: String,
        /// Comes beside those that run, and gets their tasks.
        #[arg(long)]
        beside: bool,
        /// The command.
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// Takes a CPU away again and again under a policy that has CPUs look for work at every wake-up, and ends it there.
    Leaving,
    /// Has tasks come and go while CPU 1 is away.
    Away {
        /// Which policy.
        #[arg(long)]
        policy: String,
    },
    /// Records every call into a policy from the first one on.
    Recorded {
        /// Its name.
        #[arg(long)]
        policy: String,
        /// The file to write.
        #[arg(long)]
        to: PathBuf,
        /// Again and again for so long.
        #[arg(long, default_value_t = 0)]
        seconds: u64,
    },
    /// Saves the last calls of a policy that panics.
    Flown(To),
    /// Policies take over from each other while their calls are recorded, and what the flight recorder has of it is saved.
    TakenOver(To),
    /// Switches recording off and on.
    Switched(To),
    /// Records a thread that is woken up by another one.
    Woken(To),
    /// Control groups: shares, limits, cpusets, moves.
    Groups {
        /// The policy; without one, what the kernel's own scheduler makes of it.
        #[arg(long)]
        policy: Option<String>,
    },
    /// Control groups in short: a limit, and shares.
    Grouped {
        /// The policy.
        #[arg(long)]
        policy: String,
    },
    /// `ekiden attach --follow` gives a policy to those who come.
    Followed {
        /// `ekiden`.
        #[arg(long)]
        ekiden: PathBuf,
    },
    /// `ekiden record` is killed.
    ReaderKilled {
        /// `ekiden`.
        #[arg(long)]
        ekiden: PathBuf,
        /// The file to write.
        #[arg(long)]
        to: PathBuf,
    },
    /// `ekiden check --live` saves the last calls of a policy.
    FoundFlight {
        /// `ekiden`.
        #[arg(long)]
        ekiden: PathBuf,
        /// Where the recording goes.
        #[arg(long)]
        to: PathBuf,
    },
    /// Another policy comes, panics, and goes, and one who waits is told.
    Told,
    /// Records a policy while control groups limit its tasks.
    RecordedGroups {
        /// Where the recording goes.
        #[arg(long)]
        to: PathBuf,
    },
    /// More tasks than a limit can have in mind, and more control groups than there is room for.
    ManyTasksAndGroups {
        /// How many tasks are in one group with a limit.
        #[arg(long)]
        tasks: u32,
        /// How many groups a user has in one with a limit.
        #[arg(long)]
        groups: u32,
    },
    /// What a task has of a CPU beside many of another nice value.
    Due {
        /// The policy.
        #[arg(long)]
        policy: String,
        /// How many others there are.
        #[arg(long)]
        others: u32,
        /// Their nice value, and its own.
        #[arg(long, num_args = 2, allow_negative_numbers = true)]
        nices: Vec<i32>,
        /// How long before it is measured, and for how long.
        #[arg(long, num_args = 2)]
        seconds: Vec<u32>,
        /// How long a task may wait unless its fair share explains more, in milliseconds; if nothing is said, as usual.
        #[arg(long)]
        starved_after_ms: Option<u64>,
    },
    /// Limits of CPU time with periods of all lengths.
    Exact {
        /// The policy; without one, the kernel's own scheduler.
        #[arg(long)]
        policy: Option<String>,
        /// So many tasks in a group, one number after the other.
        #[arg(long, required = true)]
        tasks: Vec<u32>,
        /// How long each is looked at.
        #[arg(long)]
        seconds: u64,
    },
    /// How long interrupts are off where very many tasks wait for CPU time of their group.
    Throttled {
        /// How many tasks wait.
        #[arg(long)]
        tasks: u32,
        /// How long they are looked at.
        #[arg(long)]
        seconds: u64,
    },
    /// A task whose group has used up its CPU time has a lock of the kernel's.
    Holder,
    /// What a round trip through pipes costs with and without control groups.
    GroupCosts {
        /// The policy; without one, the kernel's own scheduler.
        #[arg(long)]
        policy: Option<String>,
    },
    /// What a round trip through pipes costs with the flight recorder on.
    Trips {
        /// The policy; without one, the kernel's own scheduler.
        #[arg(long)]
        policy: Option<String>,
    },
    /// Records a thread that sleeps a hundred times.
    Record,
    /// Puts two tasks onto CPU 0 that may use CPU 1 too, and watches the run queues.
    Wasted {
        /// The policy; the kernel's own scheduler without it.
        #[arg(long)]
        policy: Option<String>,
        /// The first of them is a real-time task.
        #[arg(long)]
        behind_real_time: bool,
        /// For how long.
        #[arg(long, default_value_t = 4)]
        seconds: u64,
    },
    /// One task may run on an idle CPU, and two may not because their group has used up its CPU time.
    Limited {
        /// The policy; the kernel's own scheduler without it.
        #[arg(long)]
        policy: Option<String>,
        /// How much CPU time the group may use in a second.
        #[arg(long, default_value_t = 20_000)]
        quota_us: u64,
        /// For how long.
        #[arg(long, default_value_t = 6)]
        seconds: u64,
    },
    /// Watches the run queues of a busy machine.
    Busy {
        /// The policy; the kernel's own scheduler without it.
        #[arg(long)]
        policy: Option<String>,
        /// For how long.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// Has `ekiden check --live` find the same, and write a page of it, and `ekiden top` show it.
    Found {
        /// The policy.
        #[arg(long)]
        policy: String,
        /// The policy has only these tasks.
        #[arg(long)]
        attached: bool,
        /// `ekiden`.
        #[arg(long)]
        ekiden: PathBuf,
        /// The page.
        #[arg(long)]
        report: PathBuf,
    },
    /// Watches the run queues while a command runs.
    Beside {
        /// The policy; the kernel's own scheduler without it.
        #[arg(long)]
        policy: Option<String>,
        /// The command.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Runs a command, and says how it ended and what it left in the kernel.
    Tried {
        /// The command.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Root of a container tries what is the machine's root's.
    Intruder,
    /// Ordinary users choose policies that are open to them, and others.
    Chooser,
    /// A user has more tasks than the table has room for, beside another one.
    Beyond {
        /// The policy.
        #[arg(long)]
        policy: String,
    },
    /// How long any of very many tasks waits that work a little and sleep a little.
    Herd {
        /// The policy; without one, the kernel's own scheduler.
        #[arg(long)]
        policy: Option<String>,
        /// How many tasks there are.
        #[arg(long)]
        tasks: u32,
        /// How many of those the table has no room for.
        #[arg(long)]
        beyond: u32,
        /// For how long.
        #[arg(long)]
        seconds: u64,
    },
    /// A scheduler that is not Ekiden's makes up a task.
    Impostor,
    /// A BPF program that is no scheduler calls a kfunc of the module's.
    KfuncCaller,
    /// Schedulers that are not Ekiden's ask why a policy is gone, with room of all sizes for the answer.
    Texts,
    /// Counts how long a thread waits that sleeps a hundred times.
    Waits,
    /// Every policy that is linked in lives through all that happens to tasks, in a process.
    AgentWorks {
        /// How many messages there is room for.
        #[arg(long, default_value_t = 16_384)]
        messages: u32,
        /// How long it lasts.
        #[arg(long, default_value_t = 20)]
        rounds: usize,
        /// Only this one.
        #[arg(long)]
        policy: Option<String>,
        /// Where a recording of each is to be.
        #[arg(long, default_value = "/tmp")]
        recordings: PathBuf,
    },
    /// An agent is killed, stopped, or ended by what its policy does.
    AgentEnds {
        /// Where the last calls are to be of the one that panics.
        #[arg(long, default_value = "/tmp/flight.ekirec")]
        flight: PathBuf,
    },
    /// Control groups under a policy in a process.
    AgentGroups {
        /// Its name.
        #[arg(long)]
        policy: String,
        /// How many messages there is room for.
        #[arg(long, default_value_t = 16_384)]
        messages: u32,
        /// How many groups without tasks there are besides.
        #[arg(long, default_value_t = 0)]
        idle: u32,
    },
    /// A policy in this process asks about each of many tasks in one call.
    AgentAsks,
    /// Policies that take over from each other in this process, and one that panics.
    AgentUpgrades {
        /// How often one takes over.
        rounds: usize,
        /// Where their calls are to be.
        recording: PathBuf,
    },
    /// What an agent refuses.
    AgentRefuses,
    /// Holds a policy in this process until it is not the scheduler any more, and says why.
    AgentHolds {
        /// Its name.
        #[arg(long)]
        policy: String,
        /// Its parameters.
        #[arg(long, default_value = "")]
        params: String,
        /// Where its last calls are to be.
        #[arg(long)]
        flight: PathBuf,
    },
    /// A child of a load.
    Child {
        /// What it does: `spin`, `yield`, `nap`, `forks`.
        what: String,
    },
}
