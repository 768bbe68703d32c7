//! What `ekiden.ko` says when it is asked: which policies run, how they fare, why one was taken out.

use std::{collections::BTreeMap, time::Duration};

use ekiden_host::Figure;
use ekiden_recording::Instance;
use serde::{Deserialize, Serialize};

use crate::{
    call_log::now_ns,
    control::DEVICE,
    error::{LoadError, Result},
};

/// What `ekiden.ko` says when it is asked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Version of the interface.
    pub abi: u32,
    /// Whether the kernel calls the policies.
    #[serde(default)]
    pub attached: bool,
    /// The policies that run, in the order in which they are asked.
    #[serde(default)]
    pub policies: Vec<PolicyStatus>,
    /// Tasks that there is room for.
    #[serde(default)]
    pub capacity: u64,
    /// Tasks for which there was no room when they last waited: no policy has them, and they share a part of each CPU.
    #[serde(default)]
    pub beyond: u64,
    /// Tasks that wait for their control groups to have CPU time again.
    #[serde(default)]
    pub throttled: u64,
    /// Control groups that share CPU time by themselves.
    #[serde(default)]
    pub groups: u64,
    /// How often there was no room for another one. It counts as part of the one above it.
    #[serde(default)]
    pub groups_without_room: u64,
    /// Counts of all policies together.
    #[serde(flatten)]
    pub counts: Counts,
    /// Why the last policy that was taken out was, if one was: a panic, with file and line.
    #[serde(default)]
    pub fault: Option<String>,
    /// How all CPUs were brought to stand still, where that was needed.
    #[serde(default)]
    pub stops: Stops,
    /// For how many nanoseconds interrupts were off at most because of each kind of event, if the parameter `times` of `ekiden.ko`
    /// is set. On a machine that loses its processors, that includes what they were away.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub off_ns_max: BTreeMap<String, u64>,
    /// The policies whose modules are loaded.
    #[serde(default)]
    pub loaded: Vec<String>,
}

/// How all CPUs were brought to stand still, since `ekiden.ko` was loaded.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub struct Stops {
    /// How often after a few meetings in an interrupt at most.
    pub quick: u64,
    /// How often after more, as a CPU did not come in time.
    pub slow: u64,
    /// How long a CPU stood still at most, the last time, in nanoseconds. What was given up counts, as a CPU was late or a signal came.
    pub wait_ns: u64,
    /// How long a CPU stood still at most, the longest time, in nanoseconds.
    pub wait_ns_max: u64,
    /// The CPU for which that longest meeting was given up; negative if it was not, or all had come by then.
    pub wait_max_cpu: i32,
    /// How long it took from the wish until it was done, the last time, in nanoseconds.
    pub took_ns: u64,
    /// How long it took from the wish until it was done, the longest time, in nanoseconds.
    pub took_ns_max: u64,
    /// The CPU for which a meeting of that longest one was given up last; negative if none was.
    pub took_max_cpu: i32,
    /// The CPU for which a meeting was given up last; negative if none was.
    pub late_cpu: i32,
    /// How often no CPU stood still, as it was enough to wait until all had seen a change.
    pub graces: u64,
    /// How long the last such wait was, in nanoseconds.
    pub grace_ns: u64,
    /// How long the longest such wait was, in nanoseconds.
    pub grace_ns_max: u64,
}

/// One of the policies that run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// Its name.
    pub policy: String,
    /// Its place in the engine.
    pub slot: u32,
    /// Whether it is called; if not, it was taken out.
    #[serde(default)]
    pub alive: bool,
    /// Whether tasks for which no policy was chosen have it.
    #[serde(default)]
    pub default: bool,
    /// Whether every user may choose it for their tasks; otherwise only root may, and the members of one group of users, if there is one.
    #[serde(default)]
    pub open: bool,
    /// That group.
    #[serde(default)]
    pub open_to_group: Option<u32>,
    /// The calls that it implements.
    #[serde(default)]
    pub calls: u64,
    /// Its parameters, as they were given.
    #[serde(default)]
    pub params: String,
    /// Which instance of a policy it is, since `ekiden.ko` was loaded.
    #[serde(default)]
    pub instance: u32,
    /// It and those that have run in its place before it, as far as they are known, the newest first; none is missing in between.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<NumberedInstance>,
    /// How often the counter counts in a millisecond that the times of calls are of; 0 if they are of the monotonic clock.
    #[serde(default)]
    pub ticks_khz: u32,
    /// Records that the ring of each CPU has room for; 0 if calls are not recorded.
    #[serde(default)]
    pub call_log_records: u64,
    /// How many rings there are.
    #[serde(default)]
    pub call_log_cpus: u32,
    /// Whether calls are recorded at the moment.
    #[serde(default)]
    pub call_log_runs: bool,
    /// The module that it is in.
    #[serde(default)]
    pub module: String,
    /// How often a policy has taken over here from another one, or from itself.
    #[serde(default)]
    pub upgrades: u64,
    /// How long a CPU waited at most when the last one did, in nanoseconds.
    #[serde(default)]
    pub upgrade_wait_ns: u64,
    /// The longest of these.
    #[serde(default)]
    pub upgrade_wait_ns_max: u64,
    /// The types of its hints and notices, if it has queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<HintTypes>,
    /// What its queues of hints have counted, if programs have opened any.
    #[serde(default)]
    pub queues: Option<HintQueues>,
    /// Its counts.
    #[serde(flatten)]
    pub counts: Counts,
    /// Figures that it counts itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
    /// The CPUs that are its, as a list; nothing if it has no set.
    #[serde(default)]
    pub cpus: Option<String>,
    /// Whether no other policy may use them, and it no others.
    #[serde(default)]
    pub strict: bool,
    /// What it weighs beside others, if anything; 100 is what those weigh that have no weight.
    #[serde(default)]
    pub weight: Option<u32>,
    /// How the engine treats it when a task of its changes its state in an unexpected way: `off`, `report`, `remove`, `stop`.
    #[serde(default)]
    pub checks: String,
    /// The newest such change.
    #[serde(default)]
    pub last_unexpected_transition: Option<String>,
    /// Why it was taken out, if it was: a panic, with file and line.
    #[serde(default)]
    pub fault: Option<String>,
    /// And when, in nanoseconds of the monotonic clock; the times of the kernel's log are nearly the same.
    #[serde(default)]
    pub faulted_ns: Option<u64>,
}

/// Longer parameters are cut in the status.
pub(crate) const PARAMS_MOST: usize = 1 << 10;

impl PolicyStatus {
    /// The policy with its parameters.
    pub fn of_now(&self) -> Instance {
        Instance { policy: self.policy.clone(), params: self.params.clone() }
    }

    /// What is known of instances of which calls may be recorded, the oldest first.
    pub fn all_instances(&self) -> Vec<NumberedInstance> {
        let mut all = self.instances.clone();
        all.sort_by_key(|instance| instance.number);
        if all.is_empty() && self.params.len() < PARAMS_MOST {
            all.push(NumberedInstance::new(self.instance, &self.of_now()));
        }
        all
    }

    /// Those with a number above `known`, which becomes that of the newest.
    pub fn newer_than(&self, known: &mut u32) -> Vec<NumberedInstance> {
        let newer: Vec<_> = self.all_instances().into_iter().filter(|instance| instance.number > *known).collect();
        *known = newer.last().map_or(*known, |newest| newest.number);
        newer
    }

    /// How long ago it was taken out, if it was.
    pub fn faulted_ago(&self) -> Option<Duration> {
        self.faulted_ns.map(|faulted_ns| Duration::from_nanos(now_ns().saturating_sub(faulted_ns)))
    }
}

/// An instance of a policy that runs in a place, or has run there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedInstance {
    /// The number by which recordings know it.
    pub number: u32,
    /// The policy; nothing if that is not known.
    pub name: String,
    /// Its parameters, as they were given.
    #[serde(default)]
    pub params: String,
}

impl NumberedInstance {
    /// The instance of this number.
    pub fn new(number: u32, instance: &Instance) -> Self {
        Self { number, name: instance.policy.clone(), params: instance.params.clone() }
    }

    /// It without its number.
    pub fn instance(&self) -> Instance {
        Instance { policy: self.name.clone(), params: self.params.clone() }
    }
}

/// What a policy and programs tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintTypes {
    /// What goes to the policy.
    pub hint: HintType,
    /// The type of its notices.
    pub notice: HintType,
}

/// A type of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintType {
    /// The fingerprint of its layout; a type of a program has to have an equal one.
    pub fingerprint: u64,
    /// Its size; 0 for nothing.
    pub bytes: u32,
}

/// Queues of hints that programs have to a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintQueues {
    /// How many there were.
    #[serde(default)]
    pub opened: u64,
    /// How many are open.
    pub open: u64,
    /// Sums over all that there were.
    #[serde(flatten)]
    pub counts: HintCounts,
    /// Some that are open, the oldest first.
    #[serde(default)]
    pub list: Vec<OpenQueue>,
}

/// A queue that is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenQueue {
    /// Its number, as the policy knows it.
    pub queue: u32,
    /// The process that has opened it.
    pub owner: u32,
    /// What it has counted.
    #[serde(flatten)]
    pub counts: HintCounts,
}

/// What queues of hints count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintCounts {
    /// Hints that were taken out of their rings.
    pub hints: u64,
    /// Hints that were no values of their type.
    pub refused: u64,
    /// How often an index of a program's made no sense.
    pub nonsense: u64,
    /// How often a program says that it found no room.
    pub full: u64,
    /// Notices that were written.
    pub notices: u64,
    /// How often there was no room for one.
    pub lost: u64,
}

/// What the engine counts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Tasks under care or about to be.
    #[serde(default)]
    pub tasks: u64,
    /// Tasks picked so far.
    #[serde(default)]
    pub picks: u64,
    /// Searches for work that found none.
    #[serde(default)]
    pub idles: u64,
    /// Waiting tasks moved to another CPU.
    #[serde(default)]
    pub migrations: u64,
    /// Tokens handed back.
    #[serde(default)]
    pub refusals: u64,
    /// Unexpected transitions of tasks.
    #[serde(default)]
    pub unexpected_transitions: u64,
    /// Wishes of the policy beyond what it may have in a time: kicks that came later, timers that were too short, searches in vain.
    #[serde(default)]
    pub slowed: u64,
    /// Turns that tasks had without the policy, because their fair share was a longer wait than the kernel bears.
    #[serde(default)]
    pub turns: u64,
    /// Ticks that found one of its tasks running: which part of the time on CPUs it has.
    #[serde(default)]
    pub ticks: u64,
    /// Contract violations that were put right.
    #[serde(default)]
    pub contract_violations: u64,
    /// The newest of them.
    #[serde(default)]
    pub last_contract_violation: Option<String>,
    /// Why the engine took the policy out: too many contract violations.
    #[serde(default)]
    pub engine_fault: Option<String>,
}

impl Status {
    /// Asks the kernel; `None` if `ekiden.ko` is not loaded.
    pub fn read() -> Result<Option<Self>> {
        let text = match ekiden_user::status() {
            Ok(text) => text,
            Err(ekiden_user::Error::NotLoaded) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| LoadError::Other(format!("{DEVICE} says something strange ({error}): {text}")))
    }

    /// The policy that gets the tasks for which no policy was chosen; `None` if none runs.
    pub fn main(&self) -> Option<&PolicyStatus> {
        self.policies.iter().find(|policy| policy.default).or(self.policies.first())
    }

    /// The policy of this name or in the instance of this number, or the [main](Self::main) one if nothing is named.
    ///
    /// # Errors
    /// If there is no such policy.
    pub fn find(&self, name: Option<&str>) -> Result<&PolicyStatus> {
        let Some(name) = name else { return self.main().ok_or(LoadError::NothingRuns) };
        let is_it = |policy: &&PolicyStatus| policy.policy == name || policy.instance.to_string() == name;
        let known = || self.policies.iter().map(|policy| policy.policy.as_str()).collect::<Vec<_>>().join(", ");
        self.policies.iter().find(is_it).ok_or_else(|| LoadError::NotRunning(name.to_owned(), known()))
    }

    /// Why a policy was taken out, in words: this one's reason, or the newest one.
    pub fn why(&self, slot: u32) -> Option<String> {
        self.own_reason(slot).or_else(|| self.fault.clone()).or_else(|| self.counts.engine_fault.clone())
    }

    /// Why this very policy was taken out.
    pub(crate) fn own_reason(&self, slot: u32) -> Option<String> {
        let own = self.policies.iter().find(|policy| policy.slot == slot)?;
        own.fault.clone().or(own.counts.engine_fault.clone())
    }
}

/// Whether the policy in a slot is called. That is asked again and again, and reads nothing else of the status.
pub(crate) fn is_alive(slot: u32) -> bool {
    #[derive(Deserialize)]
    struct Policy {
        slot: u32,
        #[serde(default)]
        alive: bool,
    }
    #[derive(Deserialize)]
    struct Policies {
        #[serde(default)]
        policies: Vec<Policy>,
    }
    let text = ekiden_user::status().unwrap_or_default();
    let all = serde_json::from_str(&text).map_or(Vec::new(), |all: Policies| all.policies);
    all.iter().any(|policy| policy.slot == slot && policy.alive)
}

pub(crate) fn fault() -> String {
    let status = Status::read().ok().flatten().unwrap_or_default();
    status.fault.or(status.counts.engine_fault).unwrap_or_else(|| "no reason given".into())
}

pub(crate) fn running() -> String {
    let status = Status::read().ok().flatten().unwrap_or_default();
    status.main().map_or_else(|| "unknown".into(), |policy| policy.policy.clone())
}

pub(crate) fn known() -> String {
    Status::read().ok().flatten().map(|status| status.loaded.join(", ")).unwrap_or_default()
}
