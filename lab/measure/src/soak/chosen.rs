//! Which policies a soak is about.

use anyhow::Result;

use crate::{
    failure::{Exit, Failure},
    own, policies,
};

/// Policies that another one comes beside in a guest test.
const OTHERS: [&str; 2] = ["wfq", "cfs"];

/// The policies, in several roles.
#[derive(Debug, PartialEq)]
pub(super) struct Chosen {
    /// All of them.
    pub(super) policies: Vec<String>,
    /// The policies that come beside others.
    pub(super) beside: Vec<String>,
    /// The policies that replace each other, and whose modules are loaded anew: two at least.
    pub(super) mixed: Vec<String>,
}

impl Chosen {
    /// All that come with Ekiden.
    pub(super) fn of_ekiden() -> Self {
        let policies = policies::ALL.iter().map(|linked| linked.name.to_owned()).collect();
        let mixed = ["fifo", "wfq", "cfs"].map(str::to_owned).to_vec();
        Self { policies, beside: vec!["fifo".to_owned()], mixed }
    }

    /// These.
    fn named(names: &[String]) -> Self {
        let mut policies: Vec<String> = Vec::new();
        names.iter().for_each(|name| add(&mut policies, name));
        let may_come = |name: &&String| !OTHERS.contains(&name.as_str());
        let mut mixed = policies.clone();
        // State goes over to another policy and back, too.
        ["fifo", "wfq"].iter().for_each(|name| add(&mut mixed, name));
        Self { beside: policies.iter().filter(may_come).cloned().collect(), mixed, policies }
    }

    /// What a soak is about that was given these names: without any, the policies of the project in the current directory, or ours.
    ///
    /// # Errors
    /// A policy is not linked into this program.
    pub(super) fn of(names: &[String]) -> Result<Self> {
        let names = names_or_own(names);
        if let Some(unknown) = names.iter().find(|name| policies::find(name).is_none()) {
            return Err(Failure::new(Exit::NoPolicy, own::unknown(unknown)).into());
        }
        Ok(if names.is_empty() { Self::of_ekiden() } else { Self::named(&names) })
    }

    /// Policies whose modules are built from the project, as they do not come with Ekiden.
    pub(super) fn own(&self) -> Vec<String> {
        self.policies.iter().filter(|name| !is_ours(name)).cloned().collect()
    }

    /// The policies that come with Ekiden and are needed.
    pub(super) fn ours(&self) -> Vec<String> {
        let mut ours: Vec<String> =
            self.policies.iter().chain(&self.mixed).filter(|name| is_ours(name)).cloned().collect();
        OTHERS.iter().for_each(|name| add(&mut ours, name));
        ours.sort();
        ours.dedup();
        ours
    }
}

/// The names that were given, or else those of the project in the current directory.
pub(super) fn names_or_own(names: &[String]) -> Vec<String> {
    if names.is_empty() { own::here() } else { names.to_vec() }
}

fn is_ours(name: &str) -> bool {
    policies::ALL.iter().any(|linked| linked.name == name)
}

fn add(names: &mut Vec<String>, name: &str) {
    if !names.iter().any(|known| known == name) {
        names.push(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Chosen {
        Chosen::named(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_policy_of_ones_own_comes_beside_ours_and_they_replace_each_other() {
        let chosen = named(&["my-policy", "my-policy", "wfq"]);
        assert_eq!(chosen.policies, ["my-policy", "wfq"]);
        assert_eq!(chosen.beside, ["my-policy"]);
        assert_eq!(chosen.mixed, ["my-policy", "wfq", "fifo"]);
        assert_eq!(chosen.own(), ["my-policy"]);
        assert_eq!(chosen.ours(), ["cfs", "fifo", "wfq"]);
    }

    #[test]
    fn without_names_and_outside_of_a_project_it_is_about_ours() {
        let chosen = Chosen::of(&[]).unwrap();
        assert_eq!(chosen, Chosen::of_ekiden());
        assert_eq!(chosen.policies.len(), policies::ALL.len());
        assert!(chosen.own().is_empty());
        assert_eq!(chosen.ours().len(), policies::ALL.len());
    }

    #[test]
    fn a_policy_that_is_nowhere_is_refused_before_anything_is_built() {
        let error = Chosen::of(&["nosuch".to_owned()]).unwrap_err();
        assert_eq!(Exit::of(&error), Exit::NoPolicy);
        assert!(error.to_string().starts_with("there is no policy `nosuch`; known are fifo, "), "{error}");
    }
}
