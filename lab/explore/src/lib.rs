//! Which order of lock operations makes a policy go wrong?
//!
//! A small machine has a few things happen at once on its CPUs: wake-ups here, a task that sleeps there. Each CPU is a
//! coroutine, which stops wherever the policy (or the run-queue lock of the simulated kernel) takes or releases a
//! [`SpinLock`](ekiden::SpinLock); a [`Strategy`] says which CPU continues. So one seed, or one list of choices, is one run.
//!
//! It looks for tasks that wait while an idle CPU would run them and is not woken up, tasks that are never
//! run, deadlocks, locks taken in two orders, panics, and contract violations with tokens.
//!
//! What it does not see: races of atomics that a policy uses beside its locks, and weak memory. Kicks are carried out
//! when everything else has come to rest.
#![deny(unsafe_op_in_unsafe_fn)]

mod case;
mod lock_order;
mod machine;
mod run;
mod search;
mod strategy;

pub use case::{CASES, Case, Step};
pub use run::{Finding, Outcome, Schedule, ScheduleError, replay};
pub use search::{Exploration, Found, explore};
pub use strategy::{Mode, Strategy};

use std::sync::Arc;

use ekiden::{Env, ParamError, Scheduler, Topology};
use ekiden_host::{Adapter, Host, Policy};

/// The most tasks that any case has.
const MAX_TASKS: u32 = 16;

type Make = fn(u32, &str, Arc<dyn Host + Send>) -> Result<Box<dyn Policy>, ParamError>;

/// Makes a policy afresh for every run.
#[derive(Clone)]
pub struct PolicyMaker {
    params: String,
    make: Make,
}

impl PolicyMaker {
    /// The policy `S` with these parameters (`name=number`, separated by blanks or commas).
    ///
    /// # Errors
    /// When the policy takes no such parameters.
    pub fn of<S: Scheduler>(params: &str) -> Result<Self, ParamError> {
        Env::new(Topology::flat(1), 1, S::PARAMS, params)?;
        Ok(Self {
            params: params.to_owned(),
            make: |nr_cpus, params, host| {
                let env = Env::new(Topology::flat(nr_cpus), MAX_TASKS, S::PARAMS, params)?;
                Ok(Box::new(Adapter::<S>::new(&env, host)))
            },
        })
    }

    fn make(&self, nr_cpus: u32, host: Arc<dyn Host + Send>) -> Box<dyn Policy> {
        (self.make)(nr_cpus, &self.params, host).expect("the parameters were good before")
    }
}
