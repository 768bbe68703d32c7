//! What a soak goes through.

use ekiden_guest_test::{GuestTest, Part};

use super::chosen::Chosen;

/// Where the guest and this side both see a recording.
pub(super) const RECORDING: &str = "soak.ekirec";

/// Something that policies have to live through.
pub(super) struct Step {
    /// As a table says it.
    pub(super) name: String,
    asked: Asked,
    /// Whether it records, to be replayed.
    pub(super) records: bool,
}

enum Asked {
    TheSame(GuestTest),
    /// With a number that is another one each time.
    Seeded(Box<dyn Fn(u64) -> GuestTest>),
}

impl Step {
    fn new(name: impl Into<String>, guest_test: GuestTest) -> Self {
        Self { name: name.into(), asked: Asked::TheSame(guest_test), records: false }
    }

    fn seeded(name: impl Into<String>, guest_test: impl Fn(u64) -> GuestTest + 'static) -> Self {
        Self { name: name.into(), asked: Asked::Seeded(Box::new(guest_test)), records: false }
    }

    /// What the guest is asked for.
    pub(super) fn guest_test(&self, order: &mut fastrand::Rng) -> GuestTest {
        match &self.asked {
            Asked::TheSame(guest_test) => guest_test.clone(),
            Asked::Seeded(guest_test) => guest_test(order.u32(..).into()),
        }
    }
}

/// Nothing, for some seconds: for how long do tasks stand still then?
pub(super) fn nothing() -> Step {
    Step::new("nothing", GuestTest::Still { seconds: 10 })
}

/// Steps beside a hostile neighbour. Each time, it does something else.
pub(super) fn beside_neighbour(policies: &[String]) -> Vec<Step> {
    let storm = |policy: &String| {
        let storm = |policy: String| move |seed| GuestTest::Storm { policy: policy.clone(), neighbour: Some(seed) };
        Step::seeded(format!("storm under {policy}, beside a neighbour"), storm(policy.clone()))
    };
    let of_victim = policies.to_vec();
    let victim = move |seed| GuestTest::Victim { policies: of_victim.clone(), rounds: 1, seconds: 2.0, seed };
    policies.iter().map(storm).chain([Step::seeded("what others get beside a neighbour", victim)]).collect()
}

/// The steps that ask `/dev/ekiden` for anything.
pub(super) fn of_device() -> Vec<Step> {
    vec![Step::seeded("the device asked for anything", |seed| GuestTest::Device { seconds: 60, seed })]
}

/// All others.
pub(super) fn usual(chosen: &Chosen) -> Vec<Step> {
    let Chosen { policies, beside, mixed } = chosen;
    let every_fault = GuestTest::List { rounds: 1, only: Vec::new(), beside: None, part: Part::ALL };
    let upgrades = GuestTest::Upgrades { rounds: 100, patience_us: None, policies: mixed.clone() };
    let mut steps = vec![
        Step::new("policies replace each other", upgrades),
        Step::new("modules loaded anew", GuestTest::Reload { rounds: 5, policies: mixed.clone() }),
        Step::new("every fault", every_fault),
    ];
    for policy in beside {
        steps.push(Step::new(format!("{policy} beside others"), GuestTest::Several { policy: policy.clone() }));
    }
    for policy in policies {
        let to = format!("/host/{RECORDING}").into();
        let recorded = GuestTest::Recorded { policy: policy.clone(), to, seconds: 0 };
        steps.push(Step { records: true, ..Step::new(format!("loads under {policy}"), recorded) });
        let storm = GuestTest::Storm { policy: policy.clone(), neighbour: None };
        steps.push(Step::new(format!("storm under {policy}"), storm));
    }
    steps
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use ekiden_guest_test::{Arguments, Request};

    use super::*;

    #[test]
    fn every_step_arrives_in_the_guest_as_it_was_sent() {
        let chosen = Chosen::of_ekiden();
        let all = [usual(&chosen), beside_neighbour(&chosen.policies), of_device(), vec![nothing()]];
        for step in all.iter().flatten() {
            let guest_test = step.guest_test(&mut fastrand::Rng::with_seed(1));
            let sent = Request { modules: "/host/modules".into(), guest_test };
            let received = Arguments::try_parse_from(sent.argv().unwrap()).unwrap().request().unwrap();
            assert_eq!(received, sent, "{}", step.name);
        }
    }

    #[test]
    fn a_neighbour_does_something_else_each_time() {
        let storm = &beside_neighbour(&["wfq".to_owned()])[0];
        let order = &mut fastrand::Rng::with_seed(1);
        assert_ne!(storm.guest_test(order), storm.guest_test(order));
        let same = &usual(&Chosen::of_ekiden())[0];
        assert_eq!(same.guest_test(order), same.guest_test(order));
    }
}
