//! A seed gives one trace, byte for byte.

use ekiden::Scheduler;
use ekiden_policies::{Eevdf, Fifo, Wfq};
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

#[test]
fn traces_are_the_same_in_every_build() {
    // From a debug build; tests also run in release. They change with the model or the policies, never by themselves.
    fn digests<S: Scheduler>() -> [String; 4] {
        ["pipe-anywhere", "messaging", "sleepers", "churn"].map(|name| {
            let case = find(name, 4).unwrap();
            let result = Simulation::of::<S>(jittery(), "").seed(7).traced().run(&case.workload);
            format!("{} {name} {:016x}", S::NAME, result.unwrap().trace.digest())
        })
    }
    let found = [digests::<Fifo>(), digests::<Wfq>(), digests::<Eevdf>()].concat();
    let expected = [
        "fifo pipe-anywhere 903718f67ae52a71",
        "fifo messaging 9befd58855e4a8bd",
        "fifo sleepers fbb65d050f016f02",
        "fifo churn 07f0e97d4a67131d",
        "wfq pipe-anywhere 0ab61fcc646a630b",
        "wfq messaging 1d331438dea9b5c2",
        "wfq sleepers 5149bec806de4a8e",
        "wfq churn 853e028aaed99f6f",
        "eevdf pipe-anywhere a5612d30d55d31d9",
        "eevdf messaging 1b9978278a74f94a",
        "eevdf sleepers c5f6eadb20ff9fd5",
        "eevdf churn a948d172b432836c",
    ];
    assert_eq!(found, expected);
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
