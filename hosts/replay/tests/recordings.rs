//! Recordings as regression tests: what a policy decided once it decides again. A change that is meant to change decisions
//! needs new recordings; DEVELOPING.md says how they are made.

use std::fs::File;

use ekiden_policies::Wfq;
use ekiden_replay::Replay;

fn decides_as_before(name: &str) {
    let file = File::open(format!("{}/tests/recordings/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let outcome = Replay::of::<Wfq>().run(file).unwrap();
    assert_eq!(outcome.differences, 0, "{name}: {}", outcome.first.unwrap());
    assert!(outcome.replayed > 1_000, "{name}: {outcome:?}");
}

#[test]
fn wfq_decides_as_it_did_in_the_simulator() {
    decides_as_before("wfq-churn.ekirec");
}
