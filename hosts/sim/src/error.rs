//! Why a simulation has no good end.

use std::fmt;
use std::io;

use ekiden::{CpuId, ParamError};
use ekiden_recording::RecordingError;
use ekiden_workload::SpecError;

use crate::simulation::SimReport;

/// Why a load could not be simulated, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The load itself is at fault.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The policy's parameters are at fault.
    #[error("the policy `{policy}` refuses its parameters: {source}; correct them, or leave them out for the defaults")]
    Params {
        /// Name of the policy.
        policy: String,
        /// The reason.
        source: ParamError,
    },
    /// The policy panicked before there was anything to schedule.
    #[error("the policy `{policy}` panicked when it was made: {message}; correct its `new`")]
    PolicyPanicked {
        /// Name of the policy.
        policy: String,
        /// The panic, with file and line.
        message: String,
    },
    /// The machine is too small.
    #[error("the load needs {needed} CPUs and the machine has {have}: take a smaller load or a larger machine")]
    TooFewCpus {
        /// CPUs that the load names.
        needed: u32,
        /// CPUs of the machine.
        have: u32,
    },
    /// The machine cannot be.
    #[error("there is no such machine: {0}")]
    Machine(String),
    /// An injection names what there is not.
    #[error("cannot inject at {at_ns} ns: {why}")]
    Injection {
        /// When it was to be.
        at_ns: u64,
        /// The mistake, and what to write instead.
        why: String,
    },
    /// The only CPU that was left should go.
    #[error("at {at_ns} ns CPU {cpu} is to go offline, and it is the last one: leave one online")]
    LastCpu {
        /// The CPU.
        cpu: CpuId,
        /// When it was to go.
        at_ns: u64,
    },
    /// Tasks are left that did not come to their end.
    #[error("not finished after {:.3} ms, {why}: {}", .at_ns.to_owned() as f64 / 1e6, Listed(stuck))]
    Unfinished {
        /// When that was found.
        at_ns: u64,
        /// Why it is the end.
        why: Unfinished,
        /// The tasks that are left.
        stuck: Vec<Stuck>,
        /// The report up to there.
        so_far: Box<SimReport>,
    },
    /// The calls could not be written down.
    #[error("{0}; make room or give another place")]
    Recording(#[from] RecordingError),
    /// What the policy says could not be written.
    #[error("cannot write what the policy says: {0}; make room or give another place")]
    Debug(#[source] io::Error),
    /// The trace could not be written.
    #[error("cannot write the trace: {0}; make room or give another place")]
    Trace(#[from] io::Error),
}

/// Why a simulation ends with tasks left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// Nothing can happen any more.
    Deadlock,
    /// The simulated time is over.
    TimeLimit,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deadlock => {
                "and nothing can happen any more (a task that waits for a CPU was forgotten by the policy, the others \
                 wait for what never comes)"
            }
            Self::TimeLimit => "the limit of simulated time (raise it if the load needs more)",
        })
    }
}

/// A task that did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Its name, or that of the task that it descends from.
    pub name: String,
    /// Its PID in the trace.
    pub pid: u32,
    /// What it was doing.
    pub state: String,
    /// The CPU time that it had.
    pub cpu_ns: u64,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` (PID {}) is {} after {:.3} ms of CPU time",
            self.name,
            self.pid,
            self.state,
            self.cpu_ns as f64 / 1e6
        )
    }
}

struct Listed<'a>(&'a [Stuck]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 10;
        for (index, stuck) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{stuck}", if index > 0 { "; " } else { "" })?;
        }
        if self.0.len() > SHOWN {
            write!(f, "; and {} more", self.0.len() - SHOWN)?;
        }
        Ok(())
    }
}
