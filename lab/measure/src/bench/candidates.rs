//! Schedulers that are compared: the kernel's own, plain BPF, and policies.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use ekiden_bench::{BPF, BPF_LOCAL, BPF_SHARED, DEFAULT, Measurements};
use ekiden_loader::{Baseline, Beside, Queues, sysfs};
use serde::{Deserialize, Serialize};

use super::load;
use crate::{
    failure,
    modules::{self, Allowed},
    progress::Progress,
    session::{self, Plan},
};

use super::agent_process::AgentProcess;

/// One scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Candidate {
    /// The kernel's own.
    Default,
    /// Plain BPF, with these queues.
    Bpf(Queues),
    /// A policy, by its name.
    Policy(String),
    /// A policy without the flight recorder, which is on by default.
    Unrecorded {
        /// Its name.
        policy: String,
        /// As reports call it.
        name: String,
    },
    /// A policy in an agent.
    InAgent {
        /// Its name.
        policy: String,
        /// As reports call it.
        name: String,
    },
}

/// What comes before a policy's name where it is in an agent.
pub(crate) const IN_AGENT: &str = "agent, ";

/// The suffix of a policy's name where it has no flight recorder.
pub(crate) const UNRECORDED: &str = ", recorder off";

/// Where policies come from. A guest has them elsewhere, which its environment says.
#[derive(Args, Clone, Debug, Default, Serialize, Deserialize)]
pub struct PolicyArgs {
    /// Take the modules from this directory instead of building them
    #[arg(long, value_name = "DIR", env = modules::DIRECTORY)]
    #[serde(skip, default = "of_environment")]
    modules: Option<PathBuf>,
    #[command(flatten)]
    #[serde(skip)]
    allowed: Allowed,
}

/// What the option is if it is left out.
fn of_environment() -> Option<PathBuf> {
    std::env::var_os(modules::DIRECTORY).map(PathBuf::from)
}

/// Which schedulers, and where their modules are.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Candidates {
    /// The policies to compare
    #[arg(long = "policy", value_name = "POLICY", default_values = ["fifo", "wfq", SHARED])]
    policies: Vec<String>,
    /// A policy that comes with Ekiden to compare with, in an agent; may be given several times
    #[arg(long = "agent", value_name = "POLICY")]
    agents: Vec<String>,
    #[command(flatten)]
    source: PolicyArgs,
}

/// The policy that is compared with plain BPF of one queue.
pub(crate) const SHARED: &str = "global-fifo";

/// Measured values of one turn, by place.
pub(crate) type Values = Vec<(&'static str, f64)>;

impl PolicyArgs {
    /// The directory that modules are taken from, if they are not built.
    pub fn modules(&self) -> Option<&Path> {
        self.modules.as_deref()
    }

    /// What is allowed to a policy of one's own that is built.
    pub(crate) fn allowed(&self) -> &Allowed {
        &self.allowed
    }

    /// The directory with the module of a policy for the kernel that runs here. It is built unless modules are given.
    pub fn for_this_machine(&self, policy: &str, progress: &mut Progress) -> Result<PathBuf> {
        let directory = modules::for_this_machine(self.modules(), policy, &self.allowed, progress)?;
        modules::in_directory(&directory, policy)?;
        Ok(directory)
    }
}

impl Candidate {
    /// As reports call it.
    pub fn name(&self) -> &str {
        match self {
            Self::Default => DEFAULT,
            Self::Bpf(Queues::PerCpu) => BPF,
            Self::Bpf(Queues::Shared) => BPF_SHARED,
            Self::Bpf(Queues::Local) => BPF_LOCAL,
            Self::Policy(name) | Self::Unrecorded { name, .. } | Self::InAgent { name, .. } => name,
        }
    }

    /// The kernel's name for it; `None` for its own.
    pub(crate) fn kernel_name(&self) -> Option<String> {
        match self {
            Self::Default => None,
            Self::Bpf(queues) => Some(queues.name().to_owned()),
            Self::Policy(policy) | Self::Unrecorded { policy, .. } => {
                Some(format!("ekiden_{}", policy.replace('-', "_")))
            }
            Self::InAgent { policy, .. } => Some(format!("ekiden_agent_{}", policy.replace('-', "_"))),
        }
    }

    /// Does something under this scheduler; also says whether it was still in charge afterwards.
    pub fn run<T>(&self, modules: &Path, work: impl FnOnce() -> Result<T>) -> Result<(Option<T>, bool)> {
        match self {
            Self::Default => work().map(|result| (Some(result), sysfs::scheduler().is_none())),
            Self::Bpf(queues) => {
                let baseline = Baseline::start(*queues)?;
                let result = work();
                unless_taken_out(result, baseline.is_running())
            }
            Self::Policy(name) => under(&Plan::new(name, modules), work),
            Self::Unrecorded { policy, .. } => under(&Plan { flight_kib: 0, ..Plan::new(policy, modules) }, work),
            Self::InAgent { policy, .. } => {
                let agent = AgentProcess::start(policy)?;
                let result = work();
                unless_taken_out(result, agent.end()?)
            }
        }
    }
}

/// A scheduler, and what is measured under it, as reports call it.
pub(crate) struct Variant {
    pub(crate) name: String,
    pub(crate) candidate: Candidate,
    /// More options of the load.
    pub(crate) options: &'static [&'static str],
}

impl Variant {
    pub(crate) fn of(candidate: Candidate) -> Self {
        Self { name: candidate.name().to_owned(), candidate, options: &[] }
    }
}

/// Lets each have its turn `repeat` times, one after the other, and once before for nothing.
pub(crate) fn in_turns(
    variants: &[Variant],
    modules: &Path,
    repeat: u32,
    measurements: &mut Measurements,
    progress: &mut Progress,
    work: &dyn Fn(&Variant) -> Result<Values>,
) -> Result<()> {
    progress.step("waiting until the machine has settled");
    load::wait_until_quiet();
    for turn in 0..=repeat {
        for variant in variants {
            let name = &variant.name;
            progress.step(format!("turn {turn} of {repeat}: {name}"));
            let (values, stayed) = variant.candidate.run(modules, || work(variant))?;
            measurements.was_still_scheduler(name, stayed);
            // The first turn warms caches of all kinds.
            for (place, value) in values.into_iter().flatten().filter(|_| turn > 0) {
                measurements.add(name, place, value);
            }
        }
    }
    Ok(())
}

/// Does something under a policy; also says whether it was still in charge afterwards.
pub(crate) fn under<T>(plan: &Plan, work: impl FnOnce() -> Result<T>) -> Result<(Option<T>, bool)> {
    let held = plan.start()?;
    let result = work();
    if let Err(error) = held.check() {
        eprintln!("ekiden: {}: {}", plan.policy, failure::explain(&error));
    }
    unless_taken_out(result, held.is_running())
}

/// Errors after the scheduler was taken out are expected: the turn has no result, and the next one follows.
fn unless_taken_out<T>(result: Result<T>, stayed: bool) -> Result<(Option<T>, bool)> {
    match result {
        Err(_) if !stayed => Ok((None, false)),
        result => result.map(|result| (Some(result), stayed)),
    }
}

impl Candidates {
    pub(crate) fn new(policies: &[String], source: &PolicyArgs) -> Self {
        Self { policies: policies.to_vec(), agents: Vec::new(), source: source.clone() }
    }

    /// All schedulers in the order in which they take turns, and the directory with their modules.
    pub(crate) fn prepare(&self, progress: &mut Progress) -> Result<(Vec<Candidate>, PathBuf)> {
        let directory = self.prepare_policies(progress)?;
        let in_agent =
            |policy: &String| Candidate::InAgent { policy: policy.clone(), name: format!("{IN_AGENT}{policy}") };
        let policies = self.policies.iter().cloned().map(Candidate::Policy).chain(self.agents.iter().map(in_agent));
        let bpf = [Queues::Local, Queues::PerCpu].into_iter().chain(self.has(SHARED).then_some(Queues::Shared));
        let others = [Candidate::Default].into_iter().chain(bpf.map(Candidate::Bpf));
        Ok((others.chain(policies).collect(), directory))
    }

    /// The directory with the modules of the policies, which can run here.
    pub(crate) fn prepare_policies(&self, progress: &mut Progress) -> Result<PathBuf> {
        session::preflight(Beside::Nobody)?;
        let mut directory = PathBuf::new();
        for policy in &self.policies {
            directory = self.source.for_this_machine(policy, progress)?;
        }
        Ok(directory)
    }

    /// Lets every scheduler have its turn `repeat` times, one after the other, and once before for nothing.
    pub(crate) fn interleave(
        &self,
        repeat: u32,
        measurements: &mut Measurements,
        work: &dyn Fn(&Candidate) -> Result<Values>,
    ) -> Result<()> {
        let mut progress = Progress::new();
        let (mut candidates, modules) = self.prepare(&mut progress)?;
        let unrecorded =
            |policy: &String| Candidate::Unrecorded { policy: policy.clone(), name: format!("{policy}{UNRECORDED}") };
        candidates.extend(self.policies.iter().map(unrecorded));
        let variants: Vec<Variant> = candidates.into_iter().map(Variant::of).collect();
        in_turns(&variants, &modules, repeat, measurements, &mut progress, &|variant| work(&variant.candidate))
    }

    /// Whether a policy is called so in reports: in an agent, or with or without its flight recorder.
    pub(crate) fn has_one_called(&self, name: &str) -> bool {
        if let Some(policy) = name.strip_prefix(IN_AGENT) {
            return self.agents.iter().any(|agent| agent == policy);
        }
        self.has(name.strip_suffix(UNRECORDED).unwrap_or(name))
    }

    pub(crate) fn has(&self, policy: &str) -> bool {
        self.policies.iter().any(|name| name == policy)
    }

    pub(crate) fn has_agents(&self) -> bool {
        !self.agents.is_empty()
    }

    /// Where the policies come from.
    pub(crate) fn source(&self) -> &PolicyArgs {
        &self.source
    }

    pub(crate) fn policies(&self) -> &[String] {
        &self.policies
    }
}
