//! The policies that come with Ekiden, each with the hosts of user space: what `ekiden sim`, `ekiden replay` and `ekiden explore`
//! run without building anything.
//!
//! A crate of its own because this is where the code of hosts and policies meets, which has to be fast; the command line
//! does not.
#![forbid(unsafe_code)]

use std::sync::Arc;

use ekiden::{Env, Param, ParamError, Plain, Scheduler, Topology};
use ekiden_explore::PolicyMaker;
use ekiden_host::{Adapter, Host, Policy, hints::Shape};
use ekiden_replay::Replay;
use ekiden_sim::{Machine, Simulation, Successor};
use ekiden_test_policies::Drowsy;

/// Makes a policy for a machine and so many tasks, with these parameters.
pub type Make = fn(Topology, u32, &str, Arc<dyn Host + Send>) -> Result<Box<dyn Policy>, ParamError>;

/// A policy that is linked in.
pub struct Linked {
    /// As its source calls it.
    pub name: &'static str,
    /// What it may be told.
    pub params: &'static [Param],
    /// What programs may tell it in queues.
    pub hint: Shape,
    /// What it tells them.
    pub notice: Shape,
    /// A simulation of it, with these parameters.
    pub simulate: fn(Machine, &str) -> Simulation,
    /// It takes over from another one in a simulation.
    pub successor: fn(&str) -> Successor,
    /// Makes it for a machine, so many tasks, with these parameters: for a host that schedules a real machine.
    pub make: Make,
    /// Makes it again and again, to be explored.
    pub explore: fn(&str) -> Result<PolicyMaker, ParamError>,
    replay: fn(Replay) -> Replay,
}

const fn linked<S: Scheduler>() -> Linked {
    Linked {
        name: S::NAME,
        params: S::PARAMS,
        hint: <S::Hint as Plain>::SHAPE,
        notice: <S::Notice as Plain>::SHAPE,
        simulate: Simulation::of::<S>,
        successor: Successor::of::<S>,
        make: make::<S>,
        explore: PolicyMaker::of::<S>,
        replay: Replay::and::<S>,
    }
}

/// Makes a policy for a host that schedules a real machine.
///
/// # Errors
/// It does not take these parameters.
pub fn make<S: Scheduler>(
    topology: Topology,
    max_tasks: u32,
    params: &str,
    host: Arc<dyn Host + Send>,
) -> Result<Box<dyn Policy>, ParamError> {
    let env = Env::new(topology, max_tasks, S::PARAMS, params)?;
    Ok(Box::new(Adapter::<S>::new(&env, host)))
}

macro_rules! all {
    ($($module:ident $policy:ident)*) => { &[$(linked::<ekiden_policies::$policy>()),*] };
}

/// All of them.
pub static ALL: &[Linked] = ekiden_policies::for_each_policy!(all);

/// What can be explored besides: it has a planted race, to see what a finding looks like.
pub static PLANTED: Linked = linked::<Drowsy>();

/// The one of this name.
pub fn find(policy: &str) -> Option<&'static Linked> {
    ALL.iter().find(|linked| linked.name == policy)
}

/// A replay that knows all of them.
pub fn replay() -> Replay {
    ALL.iter().fold(Replay::of_none(), |replay, linked| (linked.replay)(replay))
}
