//! What the simulator records is replayed without a difference, for every policy of the project.

mod common;

use std::collections::BTreeMap;

use common::{Memory, record};
use ekiden::prelude::*;
use ekiden_policies::{Cfs, Eevdf, Fifo, Locality, Wfq, for_each_policy};
use ekiden_replay::{Outcome, Replay};
use ekiden_sim::{Injection, Jitter, Machine, Simulation, Successor};
use ekiden_test_policies::Drowsy;
use ekiden_trace::{Reader, What};
use ekiden_workload::{HintWord, Step, TaskSpec, Workload, builtin, loads};

fn is_exact(what: &str, outcome: &Outcome) {
    if let Some(first) = &outcome.first {
        panic!("{what}: {first}");
    }
    assert!(outcome.calls > 50 && outcome.is_exact(), "{what}: {outcome:?}");
    let [exact] = outcome.exact[..] else { panic!("{what}: {:?}", outcome.exact) };
    assert_eq!((exact.from, exact.to), (1, outcome.calls), "{what}");
}

/// A machine on which placement matters, where things take different times.
fn machine() -> Machine {
    let mut machine = Machine::new(Topology::regular(2, 1, 2, 2));
    machine.model.jitter = Jitter { sleep_ns: 50_000, work_permille: 50 };
    machine
}

fn load(name: &str) -> Workload {
    let known = builtin::find(name, 8).map(|case| case.workload);
    known.unwrap_or_else(|| loads::make(name, 8).unwrap_or_else(|error| panic!("{name}: {error}")))
}

fn every_load_replays_exactly<S: Scheduler>() {
    for name in ["churn", "sleepers", "hackbench", "hotplug:rounds=3+hogs:count=10", "forks", "schbench:rounds=10"] {
        let (recording, report) = record(Simulation::of::<S>(machine(), "").seed(3), &load(name));
        assert_eq!(report.fault, None);
        is_exact(&format!("{} under {name}", S::NAME), &Replay::of::<S>().run(&recording[..]).unwrap());
    }
}

/// What a simulation notes and what a replay tells of the same calls: the CPUs, by moment.
fn the_same_cpus_are_considered<S: Scheduler>() {
    let mut trace = Memory::default();
    let simulation = Simulation::of::<S>(machine(), "").seed(3).trace_into(trace.clone()).with_considered();
    let (recording, _) = record(simulation, &load("churn"));
    let (mut noted, mut told) = (BTreeMap::<u64, u64>::new(), BTreeMap::<u64, u64>::new());
    for record in Reader::new(&trace.take()[..]).unwrap().map(Result::unwrap) {
        if record.what == What::Considered {
            *noted.entry(record.time_ns).or_default() |= record.value;
        }
    }
    let outcome = Replay::of::<S>().considered(&recording[..], |decision| {
        *told.entry(decision.call.time_ns).or_default() |= decision.cpus.as_words()[0];
    });
    is_exact(S::NAME, &outcome.unwrap());
    assert_eq!(told, noted, "{}", S::NAME);
    assert_eq!(told.is_empty(), S::NAME == "fifo", "{}", S::NAME);
}

#[test]
fn a_replay_knows_what_decisions_looked_at() {
    the_same_cpus_are_considered::<Fifo>();
    the_same_cpus_are_considered::<Wfq>();
    the_same_cpus_are_considered::<Cfs>();
    the_same_cpus_are_considered::<Eevdf>();
}

/// Hints come with the calls, and what the policy says to programs is an answer of the host's as others are.
#[test]
fn hints_and_notices_replay_exactly() {
    let words = |change| [HintWord::Value(change), HintWord::OwnPid, HintWord::Value(1)].to_vec();
    let says = |change| [Step::WriteHint { queue: 0, hint: words(change), ring: true }, Step::ReadNotice { queue: 0 }];
    let round = [Step::Run { ns: 50_000 }, Step::Sleep { ns: 20_000 }];
    // One that is no hint, a flood for which there is no room, and one that leaves.
    let wrong = Step::WriteHint { queue: 0, hint: words(9), ring: false };
    let flood = Step::repeat(100, [Step::WriteHint { queue: 0, hint: words(1), ring: false }]);
    let child = says(1).into_iter().chain([Step::repeat(10, round), wrong, flood]).chain(says(2));
    let child = Step::fork(child.collect::<Vec<_>>());
    let load =
        Workload::new("hints", 8, [TaskSpec::new("owner", vec![child.clone(), child.clone(), child, Step::Wait])]);
    let (recording, report) = record(Simulation::of::<Locality>(machine(), "").seed(3), &load);
    assert_eq!((report.fault, report.contract_violations), (None, 0));
    is_exact("hints", &Replay::of::<Locality>().run(&recording[..]).unwrap());
}

fn changes_from_outside_replay_exactly<S: Scheduler>() {
    let load = load("hogs:count=12:ms=20+periodic:rounds=20");
    let names: Vec<String> = load.instances().map(|(name, _)| name).collect();
    let mut simulation = Simulation::of::<S>(machine(), "");
    for (at_ms, task) in (1..).zip(&names) {
        let at_ns = at_ms * 1_000_000;
        let cpus = Some(vec![at_ms as u32 % 8, (at_ms as u32 + 3) % 8]);
        simulation = simulation
            .inject(at_ns, Injection::Nice { task: task.clone(), nice: at_ms as i32 % 20 - 10 })
            .inject(at_ns + 300_000, Injection::Affinity { task: task.clone(), cpus })
            .inject(at_ns + 500_000, Injection::Depart { task: task.clone() })
            .inject(at_ns + 700_000, Injection::Return { task: task.clone() })
            .inject(at_ns + 900_000, Injection::Hint { task: Some(task.clone()), bytes: vec![at_ms as u8; 8] });
    }
    let hints = Injection::QueueReady { queue: 1, hints: vec![7; 24] };
    let simulation = simulation
        .inject(2_000_000, Injection::QueueOpen { queue: 1 })
        .inject(3_000_000, hints)
        .inject(3_500_000, Injection::Hint { task: None, bytes: Vec::new() })
        .inject(4_000_000, Injection::QueueClose { queue: 1 });
    let (recording, report) = record(simulation, &load);
    assert_eq!(report.fault, None);
    is_exact(S::NAME, &Replay::of::<S>().run(&recording[..]).unwrap());
}

fn upgrades_replay_exactly<S: Scheduler>() {
    let simulation = Simulation::of::<S>(machine(), "")
        .upgrade(500_000, Successor::of::<S>(""))
        .upgrade(1_000_000, Successor::of::<Drowsy>(""))
        .upgrade(2_000_000, Successor::of::<S>(""))
        .upgrade(3_000_000, Successor::of::<S>(""));
    let (recording, report) = record(simulation, &load("churn"));
    assert_eq!(report.fault, None);
    is_exact(S::NAME, &Replay::of::<S>().and::<Drowsy>().run(&recording[..]).unwrap());
    let error = Replay::of::<S>().run(&recording[..]).unwrap_err().to_string();
    assert!(error.contains("the policy `drowsy`") && error.contains(S::NAME), "{error}");
}

macro_rules! round_trips {
    ($($module:ident $policy:ident)*) => {$(
        mod $module {
            use ekiden_policies::$policy;

            #[test]
            fn every_load_replays_exactly() {
                super::every_load_replays_exactly::<$policy>();
            }

            #[test]
            fn changes_from_outside_replay_exactly() {
                super::changes_from_outside_replay_exactly::<$policy>();
            }

            #[test]
            fn upgrades_replay_exactly() {
                super::upgrades_replay_exactly::<$policy>();
            }
        }
    )*};
}

for_each_policy!(round_trips);

/// Looks at what other CPUs run, since when and at what weight, and lets all of that have its effect.
struct Onlooker {
    queue: SpinLock<FifoQueue<Self>>,
}

#[policy]
impl Scheduler for Onlooker {
    fn new(_: &Env) -> Self {
        Self { queue: SpinLock::default() }
    }

    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        self.queue.lock().push_back(token);
        if cx.kick_idle(task.id).is_none() {
            let (cpus, now_ns) = (cx.topology().nr_cpus(), cx.now_ns());
            let since = |cpu| cx.running(cpu).map(|running| now_ns - running.since_ns);
            let longest = (0..cpus).filter_map(|cpu| Some((since(cpu)?, cpu))).max();
            longest.filter(|(ran_ns, _)| *ran_ns > 1_000_000).into_iter().for_each(|(_, cpu)| cx.resched(cpu));
        }
    }

    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        let others = (0..cx.topology().nr_cpus()).filter(|other| *other != cpu);
        let weight: u64 = others.filter_map(|other| cx.running(other)).map(|running| u64::from(running.weight)).sum();
        cx.set_slice_ns(500_000 + weight);
        self.queue.lock().claim_first(cx)
    }
}

#[test]
fn what_runs_elsewhere_is_known_and_replays_exactly() {
    every_load_replays_exactly::<Onlooker>();
    // It does preempt what has run for more than a millisecond: no task runs for much longer while others wait.
    let load = load("hogs:count=12:ms=20");
    let (_, report) = record(Simulation::of::<Onlooker>(machine(), ""), &load);
    assert!(report.stats.switches > 50, "{:?}", report.stats);
}
