//! Gives a policy the calls of a recording again, in user space, and says where it answers differently.
//!
//! A call depends on its message, on what it learnt besides ([`ekiden_host::call_log`]), and on the state of the policy, which only
//! calls change. What it learnt is in the recording, the order of locks among it. So one thread delivers the calls in the
//! order in which they began, each CPU as a coroutine; a call that wants a lock whose turn it is not stops, and others go on
//! until it is.
//!
//! Why that always comes to an end: a call got its lock after all calls that had it before, and those had begun by then. What
//! a call about one task writes is seen by later calls about it, since those began when it had ended.
//!
//! ```
//! use ekiden_policies::Fifo;
//! use ekiden_replay::Replay;
//! # use ekiden_sim::{Machine, Simulation};
//! # let path = std::env::temp_dir().join(format!("ekiden-doc-{}", std::process::id()));
//! # let load = ekiden_workload::builtin::find("pipe", 2).unwrap().workload;
//! # Simulation::of::<Fifo>(Machine::flat(2), "").recorded_into(std::fs::File::create(&path)?).run(&load)?;
//! let outcome = Replay::of::<Fifo>().run(std::fs::File::open(&path)?)?;
//! assert_eq!(outcome.differences, 0, "{}", outcome.first.unwrap());
//! # std::fs::remove_file(path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod ahead;
mod flight;
mod outcome;
mod policy;
mod recorded_state;
mod replay;
mod text;
mod what_if;

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use ekiden::{CpuMask, ParamError, Scheduler};
use ekiden_recording::{RECORDING_VERSION, RecordingError, RecordingReader};

pub use outcome::{Difference, Exact, Outcome, Past};
use policy::Maker;
use text::Showing;
pub use what_if::{Agreement, LongestWait, WhatIf};

/// How many calls have to agree before a replay counts as exact again.
pub const AGREEING: u64 = 1_000;

/// Why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// It cannot be read at all.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// It is of a policy that was not given.
    #[error("the recording is of the policy `{policy}`; this replays {known}")]
    OtherPolicy {
        /// The policy that the recording names.
        policy: String,
        /// The policies that were given.
        known: String,
    },
    /// There is no such policy.
    #[error("there is no policy `{policy}`; choose one of {known}")]
    NoPolicy {
        /// The policy that was asked for.
        policy: String,
        /// The policies that were given.
        known: String,
    },
    /// The policy has other parameters by now.
    #[error(
        "the policy `{policy}` refuses the parameters of the recording: {source}; use the version of it that was recorded"
    )]
    Params {
        /// The policy.
        policy: String,
        /// The reason.
        source: ParamError,
    },
    /// It is of a version whose calls cannot be repeated.
    #[error(
        "a recording of format {found} does not say all that its calls learnt, so they cannot be repeated: ask another policy \
        (`--what-if`), or look at them (`ekiden trace cat`)"
    )]
    Old {
        /// The version of its format.
        found: u32,
    },
    /// What the policy says could not be written.
    #[error("cannot write what the policy says: {0}; make room or give another place")]
    Debug(#[source] io::Error),
    /// Something else watches locks.
    #[error("calls are explored in this program already, and a program either explores or replays: use another one")]
    Observed,
}

/// The CPUs that a policy looked at in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Considered {
    /// The call.
    pub call: Past,
    /// The CPUs that the policy looked at for it.
    pub cpus: CpuMask,
}

/// A replay: which policies it knows, and how it goes.
#[must_use = "a replay does nothing until it is run"]
pub struct Replay {
    policies: Vec<Maker>,
    params: Option<String>,
    options: Options,
    debug: Option<Box<dyn Write>>,
}

/// How a replay goes.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) agreeing: u64,
    pub(crate) stop_on_difference: bool,
    pub(crate) until: u64,
    pub(crate) before_call: Option<u64>,
}

impl Replay {
    /// A replay of recordings of the policy `S`.
    pub fn of<S: Scheduler>() -> Self {
        Self::of_none().and::<S>()
    }

    /// A replay of no policy yet.
    pub fn of_none() -> Self {
        let options = Options { agreeing: AGREEING, stop_on_difference: false, until: u64::MAX, before_call: None };
        Self { policies: Vec::new(), params: None, options, debug: None }
    }

    /// Replays recordings of `S`, too, and those in which it takes over or is taken over from.
    pub fn and<S: Scheduler>(mut self) -> Self {
        self.policies.push(Maker::of::<S>());
        self
    }

    /// Other parameters than the recording says, for all policies in it.
    pub fn with_params(mut self, params: &str) -> Self {
        self.params = Some(params.to_owned());
        self
    }

    /// `calls` have to agree, one after the other, before the replay counts as exact again; [`AGREEING`] unless this
    /// is said.
    pub fn agreeing(mut self, calls: u64) -> Self {
        self.options.agreeing = calls;
        self
    }

    /// Ends at the first difference, after a few more calls.
    pub fn stop_on_difference(mut self) -> Self {
        self.options.stop_on_difference = true;
        self
    }

    /// Ends after this call.
    pub fn until(mut self, call: u64) -> Self {
        self.options.until = call;
        self
    }

    /// Calls the function `ekiden_replay_stop` right before this call is delivered: a place for a breakpoint,
    /// from where [`EKIDEN_REPLAY_METHODS`] says where the next one goes.
    pub fn stop_before(mut self, call: u64) -> Self {
        self.options.before_call = Some(call);
        self
    }

    /// Writes what the policy says in words ([`debug!`](ekiden::debug!)), and what it notes, there: a line each, in the order in which it
    /// says so in the replay.
    pub fn debug_into(mut self, writer: impl Write + 'static) -> Self {
        self.debug = Some(Box::new(writer));
        self
    }

    /// Replays a recording.
    ///
    /// A recording that breaks off is replayed up to there, and the outcome says so.
    ///
    /// # Errors
    /// When nothing can be replayed: it is no recording, or one of other policies or parameters.
    pub fn run(self, recording: impl Read) -> Result<Outcome, ReplayError> {
        let reader = repeatable(recording)?;
        let showing = Showing::begin(self.debug);
        let outcome = replay::run(reader, &self.policies, self.params.as_deref(), &self.options, None)?;
        showing.finish().map_err(ReplayError::Debug)?;
        Ok(outcome)
    }

    /// Runs the replay and tells which CPUs the policy looked at beside its own, whenever it placed a task, balanced or picked one. Only of
    /// calls that are as they were, in the order in which they ended. An observer of one's own
    /// ([`ekiden_host::observe::observe_looks`]) keeps it from seeing anything.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn considered(self, recording: impl Read, mut tell: impl FnMut(Considered)) -> Result<Outcome, ReplayError> {
        let reader = repeatable(recording)?;
        replay::run(reader, &self.policies, self.params.as_deref(), &self.options, Some(&mut tell))
    }

    /// Gives the calls of a recording to one of the policies, whichever was recorded, and says how its decisions differ. Its
    /// parameters are those of [`with_params`](Self::with_params), or the defaults.
    ///
    /// # Errors
    /// When nothing can be replayed: it is no recording, the policy is not known, or its parameters are not.
    pub fn what_if(self, policy: &str, recording: impl Read) -> Result<WhatIf, ReplayError> {
        let Some(maker) = self.policies.iter().find(|maker| maker.name == policy) else {
            let known = policy::names(&self.policies);
            return Err(ReplayError::NoPolicy { policy: policy.into(), known });
        };
        let reader = RecordingReader::new(recording)?;
        what_if::run(reader, maker, self.params.as_deref().unwrap_or_default(), self.options.until)
    }
}

/// Opens a recording whose calls say all that it takes to repeat them.
fn repeatable<R: Read>(recording: R) -> Result<RecordingReader<R>, ReplayError> {
    let reader = RecordingReader::new(recording)?;
    match reader.version() {
        RECORDING_VERSION => Ok(reader),
        found => Err(ReplayError::Old { found }),
    }
}

/// Where the code of the policy is that is called next when [`ekiden_replay_stop`] is: its method for the call, and the one
/// that queues tasks if that may be none of its own.
// SAFETY: there is nothing else with this name.
#[unsafe(no_mangle)]
pub static EKIDEN_REPLAY_METHODS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Does nothing. A debugger stops here, and then in the policy, which is called next.
// SAFETY: there is nothing else with this name.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ekiden_replay_stop() {
    // So that it is not merged with another function that does nothing.
    std::hint::black_box(EKIDEN_REPLAY_METHODS[0].load(Relaxed));
}
