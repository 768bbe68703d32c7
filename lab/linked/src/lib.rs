//! The policies that come with Ekiden, each with the hosts of user space: what `ekiden sim`, `ekiden replay` and `ekiden explore`
//! run without building anything. A program that is built with policies of one's own ([`policies!`]) adds them ([`add`]).
//!
//! A crate of its own because this is where the code of hosts and policies meets, which has to be fast; the command line
//! does not.
#![forbid(unsafe_code)]

use std::sync::{Arc, OnceLock};

use ekiden::{Calls, Env, Param, ParamError, Plain, Scheduler, Topology};
use ekiden_explore::PolicyMaker;
use ekiden_host::{Adapter, Host, Knows, Policy, hints::Shape};
use ekiden_replay::Replay;
use ekiden_sim::{Machine, Simulation, Successor};
use ekiden_test_policies::Drowsy;

/// Makes a policy for a machine and this many tasks, with these parameters.
pub type Make = fn(Topology, u32, &str, Arc<dyn Host + Send>) -> Result<Box<dyn Policy>, ParamError>;

/// Lets a policy take over from another one.
pub type TakesOver = Box<dyn FnOnce(Box<dyn Policy>) -> (Box<dyn Policy>, Knows) + Send>;

/// Makes a policy that takes over from another one in a host that schedules a real machine, for that machine and this many tasks, with these
/// parameters. It takes over the state of one of its own type, unless it is to start over.
pub type MakeNext = fn(Topology, u32, &str, Arc<dyn Host + Send>, bool) -> Result<TakesOver, ParamError>;

/// A policy that is linked in.
pub struct Linked {
    /// As its source calls it.
    pub name: &'static str,
    /// The calls that it implements.
    pub calls: Calls,
    /// Parameters that it may be given.
    pub params: &'static [Param],
    /// What programs may tell it in queues.
    pub hint: Shape,
    /// The type of its notices.
    pub notice: Shape,
    /// A simulation of it, with these parameters.
    pub simulate: fn(Machine, &str) -> Simulation,
    /// It takes over from another one in a simulation.
    pub successor: fn(&str) -> Successor,
    /// Makes it for a machine, this many tasks, with these parameters: for a host that schedules a real machine.
    pub make: Make,
    /// Makes it to take over from another one there.
    pub make_next: MakeNext,
    /// Makes it again and again, to be explored.
    pub explore: fn(&str) -> Result<PolicyMaker, ParamError>,
    replay: fn(Replay) -> Replay,
}

/// A policy with all that can be done with it.
pub const fn linked<S: Scheduler>() -> Linked {
    Linked {
        name: S::NAME,
        calls: S::CALLS,
        params: S::PARAMS,
        hint: <S::Hint as Plain>::SHAPE,
        notice: <S::Notice as Plain>::SHAPE,
        simulate: Simulation::of::<S>,
        successor: Successor::of::<S>,
        make: make::<S>,
        make_next: make_next::<S>,
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

/// Makes a policy that takes over from another one in a host that schedules a real machine.
///
/// # Errors
/// It does not take these parameters.
pub fn make_next<S: Scheduler>(
    topology: Topology,
    max_tasks: u32,
    params: &str,
    host: Arc<dyn Host + Send>,
    start_over: bool,
) -> Result<TakesOver, ParamError> {
    let env = Env::new(topology, max_tasks, S::PARAMS, params)?;
    // Also for a predecessor of its own type: what the two are is seen when nothing may take long.
    let new = Adapter::<S>::new(&env, host);
    Ok(Box::new(move |old| {
        let (policy, knows) = if start_over { (new, Knows::Nothing) } else { Adapter::after(old, &env, || new) };
        (Box::new(policy) as Box<dyn Policy>, knows)
    }))
}

macro_rules! all {
    ($($module:ident $policy:ident)*) => { &[$(linked::<ekiden_policies::$policy>()),*] };
}

/// All of them.
pub static ALL: &[Linked] = ekiden_policies::for_each_policy!(all);

/// What can be explored besides: it has a planted race, to see what a finding looks like.
pub static PLANTED: Linked = linked::<Drowsy>();

/// A list of policies of one's own, for [`add`], by their types: `policies![my_policy::MyPolicy]`.
#[macro_export]
macro_rules! policies {
    ($($policy:ty),* $(,)?) => {{
        static OWN: &[$crate::Linked] = &[$($crate::linked::<$policy>()),*];
        OWN
    }};
}

static OWN: OnceLock<&'static [Linked]> = OnceLock::new();

/// Two policies have one name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is the name of two policies; rename the type of the one that is yours, from which its name comes")]
pub struct TwoOfOneName(pub &'static str);

/// Adds policies of one's own to those that come with Ekiden. Only the first call of a program counts.
///
/// # Errors
/// One of the policies has a name that another policy has.
pub fn add(own: &'static [Linked]) -> Result<(), TwoOfOneName> {
    let is_twice = |at: usize| comes_along(own[at].name) || own[..at].iter().any(|other| other.name == own[at].name);
    match (0..own.len()).find(|at| is_twice(*at)) {
        Some(at) => Err(TwoOfOneName(own[at].name)),
        None => {
            OWN.get_or_init(|| own);
            Ok(())
        }
    }
}

/// The policies that were added.
pub fn own() -> &'static [Linked] {
    OWN.get().copied().unwrap_or_default()
}

/// The policies that come with Ekiden, and those that were added.
pub fn all() -> impl Iterator<Item = &'static Linked> {
    ALL.iter().chain(own())
}

/// Whether a policy that comes with Ekiden has this name, the one for the explorer among them.
pub fn comes_along(policy: &str) -> bool {
    ALL.iter().chain([&PLANTED]).any(|linked| linked.name == policy)
}

/// The policy of this name.
pub fn find(policy: &str) -> Option<&'static Linked> {
    all().find(|linked| linked.name == policy)
}

/// A replay that knows all of them.
pub fn replay() -> Replay {
    all().fold(Replay::of_none(), |replay, linked| (linked.replay)(replay))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_ones_own_are_found_beside_ours_and_have_names_of_their_own() {
        let twice = policies![ekiden_policies::Fifo];
        assert_eq!(add(twice), Err(TwoOfOneName("fifo")));
        assert_eq!(add(policies![Drowsy]), Err(TwoOfOneName("drowsy")));
        let faulty = policies![ekiden_test_policies::Faulty, ekiden_test_policies::Faulty];
        assert_eq!(add(faulty), Err(TwoOfOneName("faulty")));
        assert!(own().is_empty() && find("faulty").is_none());
        assert_eq!(add(policies![ekiden_test_policies::Faulty]), Ok(()));
        assert!(find("faulty").is_some() && find("fifo").is_some());
        assert_eq!(all().count(), ALL.len() + 1);
    }
}
