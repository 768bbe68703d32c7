//! The policies that are linked into this program, of one's own among them: their parameters are checked before anything is touched,
//! and the simulator runs them.

use anyhow::Result;
use ekiden::{Env, ParamError, Topology};
use ekiden_linked::PLANTED;
pub use ekiden_linked::{ALL, all, find, replay};
use ekiden_sim::{Machine, PolicyMaker, Simulation, Successor};

use crate::{
    failure::{Exit, Failure},
    own,
};

/// A simulation of a policy, if it is linked in.
pub fn simulate(policy: &str, machine: Machine, params: &str) -> Option<Simulation> {
    find(policy).map(|linked| (linked.simulate)(machine, params))
}

/// Adds a second policy beside the first, for tasks whose names begin so.
pub fn simulate_beside(simulation: Simulation, policy: &'static str, has: &[&str]) -> Option<Simulation> {
    let make = find(policy)?.make;
    let maker = PolicyMaker::new(policy, move |topology, most, host| make(topology, most, "", host));
    Some(simulation.beside(maker, has))
}

/// A policy that takes over from another one in a simulation. The parameters stand behind a colon.
pub fn successor(policy: &str) -> Result<Successor> {
    let (policy, params) = policy.split_once(':').unwrap_or((policy, ""));
    check_params(policy, params)?;
    let unknown = || Failure::new(Exit::Usage, format!("nothing can take over: {}", own::unknown(policy)));
    Ok((find(policy).ok_or_else(unknown)?.successor)(params))
}

/// What makes a policy in this process.
pub fn make(policy: &str) -> Result<ekiden_agent::Make> {
    Ok(find(policy).ok_or_else(|| Failure::new(Exit::NoPolicy, own::unknown(policy)))?.make)
}

/// What makes a policy in this process that takes over from another one.
pub fn make_next(policy: &str) -> Result<ekiden_agent::MakeNext> {
    Ok(find(policy).ok_or_else(|| Failure::new(Exit::NoPolicy, own::unknown(policy)))?.make_next)
}

/// The maker of a policy that can be explored, if it is linked in.
pub fn explorable(policy: &str, params: &str) -> Option<Result<ekiden_explore::PolicyMaker, ParamError>> {
    all().chain([&PLANTED]).find(|linked| linked.name == policy).map(|linked| (linked.explore)(params))
}

/// Refuses parameters that the policy would refuse. Parameters of a policy that is not linked in are left to itself.
pub fn check_params(policy: &str, params: &str) -> Result<()> {
    let Some(linked) = find(policy) else { return Ok(()) };
    let Err(error) = Env::new(Topology::flat(1), 1, linked.params, params) else { return Ok(()) };
    let known: Vec<String> = linked
        .params
        .iter()
        .map(|param| format!("\n  {}={} ({} to {}): {}", param.name, param.default, param.min, param.max, param.help))
        .collect();
    let known = if known.is_empty() { " none".to_owned() } else { known.concat() };
    Err(Failure::new(Exit::BadParameters, format!("bad parameters: {error}; {policy} takes:{known}")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_parameters_are_answered_with_the_right_ones() {
        let error = check_params("wfq", "period_us=1").unwrap_err();
        assert_eq!(Exit::of(&error), Exit::BadParameters);
        assert!(error.to_string().contains("slice_min_us="), "{error}");
        let error = check_params("fifo", "colour=3").unwrap_err();
        assert!(error.to_string().ends_with("fifo takes: none"), "{error}");
    }

    #[test]
    fn right_parameters_and_foreign_policies_pass() {
        assert!(check_params("wfq", "period_us=1000 slice_min_us=500").is_ok());
        assert!(check_params("my-policy", "anything=1").is_ok());
    }
}
