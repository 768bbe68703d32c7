//! A seed gives one trace, byte for byte.

use ekiden::Scheduler;
use ekiden_policies::{Fifo, Wfq, for_each_policy};
use ekiden_sim::{Jitter, Machine, Model, Simulation, TickPhase, Trace};
use ekiden_workload::Report;
use ekiden_workload::builtin::{churn, find, messaging};

use crate::probe::{everything, probed};

fn jittery() -> Machine {
    let jitter = Jitter { sleep_ns: 50_000, work_permille: 100 };
    Machine::flat(4).with_model(Model { jitter, tick_phase: TickPhase::Staggered, ..Model::default() })
}

fn storm(seed: u64) -> (Trace, Report) {
    let simulation = Simulation::of::<Wfq>(jittery(), "").seed(seed).traced();
    let result = simulation.run(&churn(4, 8, 100, 1)).unwrap();
    (result.trace, result.report)
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    assert_eq!(storm(1), storm(1));
    assert_ne!(storm(1).0, storm(2).0);
    let again = || probed("").traced().run(&everything()).unwrap().trace;
    assert_eq!(again(), again());
}

#[test]
fn nothing_is_left_to_chance_without_jitter() {
    let run = |seed| {
        let result = Simulation::of::<Fifo>(Machine::flat(4), "").seed(seed).traced().run(&messaging(4, 2, 4, 4, 20));
        let trace = result.unwrap().trace;
        trace.records().collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(2));
}

macro_rules! every_policy {
    ($($module:ident $policy:ident)*) => {
        /// The digests of the traces of four loads under every policy.
        fn digests() -> String {
            [$(digests_of::<ekiden_policies::$policy>()),*].concat()
        }
    };
}

for_each_policy!(every_policy);

fn digests_of<S: Scheduler>() -> String {
    let of = |name: &str| {
        let case = find(name, 4).unwrap();
        let result = Simulation::of::<S>(jittery(), "").seed(7).traced().run(&case.workload);
        format!("{} {name} {:016x}\n", S::NAME, result.unwrap().trace.digest())
    };
    ["pipe-anywhere", "messaging", "sleepers", "churn"].map(of).concat()
}

/// Debug and optimised alike. They change with the model or the policies, never by themselves: `UPDATE_EXPECT=1` writes them. A new policy has
/// none at first.
#[test]
fn traces_are_the_same_in_every_build() {
    let (found, stored) = (digests(), include_str!("digests.txt"));
    let policies: Vec<&str> = stored.lines().filter_map(|line| line.split(' ').next()).collect();
    let is_stored = |line: &&str| line.split(' ').next().is_some_and(|policy| policies.contains(&policy));
    let of_stored: String = found.lines().filter(is_stored).flat_map(|line| [line, "\n"]).collect();
    let is_update = std::env::var_os("UPDATE_EXPECT").is_some();
    expect_test::expect_file!["digests.txt"].assert_eq(if is_update { &found } else { &of_stored });
}

#[test]
fn a_trace_in_a_file_is_the_one_in_memory() {
    let path = tempfile::NamedTempFile::new().unwrap();
    let load = churn(4, 4, 50, 3);
    let file = std::io::BufWriter::new(path.reopen().unwrap());
    let written = Simulation::of::<Fifo>(Machine::flat(4), "").trace_into(file).run(&load).unwrap();
    assert_eq!(written.trace_bytes(), b"");
    let kept = Simulation::of::<Fifo>(Machine::flat(4), "").traced().run(&load).unwrap();
    let read = Trace::from_bytes(std::fs::read(path.path()).unwrap()).unwrap();
    assert_eq!(read, kept.trace);
    assert!(read.records().count() > 100);
}
