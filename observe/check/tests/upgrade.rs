//! A replacement of a policy that loses tasks is found in the trace, and one that loses none is not.

use ekiden::prelude::*;
use ekiden_check::{Checker, Limits, Violation};
use ekiden_policies::{Fifo, Wfq, for_each_policy};
use ekiden_sim::{Machine, Simulation, Successor};
use ekiden_workload::{Step, TaskSpec, Workload, builtin::churn};

const MS: u64 = 1_000_000;

/// A FIFO that, when it takes over, puts the first task of each queue where no pick looks.
struct Forgetful {
    queues: PerCpu<SpinLock<FifoQueue<Self>>>,
    attic: SpinLock<FifoQueue<Self>>,
}

#[policy]
impl Scheduler for Forgetful {
    type State = Self;

    fn new(env: &Env) -> Self {
        Self { queues: PerCpu::new(env, |_| SpinLock::default()), attic: SpinLock::default() }
    }

    fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
        self.queues[token.cpu()].lock().push_back(token);
    }

    fn pick_next_task(&self, _: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        self.queues[cpu].lock().pop_front()
    }

    fn reregister_prep(self) -> Self {
        self
    }

    fn reregister_init(_: &Env, state: Self) -> Self {
        for (_, queue) in state.queues.iter() {
            let forgotten = queue.lock().pop_front();
            forgotten.into_iter().for_each(|token| state.attic.lock().push_back(token));
        }
        state
    }
}

/// Violations in the trace of a run under policies that are never taken out.
fn found_in(simulation: Simulation, load: &Workload) -> Vec<Violation> {
    let result = simulation.traced().run(load).unwrap();
    assert_eq!((&result.fault, result.contract_violations), (&None, 0));
    let mut checker = Checker::new(&result.trace.header().unwrap(), &Limits::default());
    result.trace.records().for_each(|record| checker.record(&record));
    checker.finish()
}

fn found<S: Scheduler>() -> Vec<Violation> {
    let hogs = TaskSpec::new("hog", vec![Step::Forever { steps: vec![Step::Run { ns: MS }] }]).copies(4);
    let load = Workload::new("hogs", 1, [hogs]).lasting(1_500 * MS);
    let simulation = Simulation::of::<S>(Machine::flat(1), "").upgrade(100 * MS, Successor::of::<S>(""));
    found_in(simulation, &load)
}

#[test]
fn a_replacement_that_forgets_a_task_is_found() {
    let violations = found::<Forgetful>();
    let [violation] = violations.as_slice() else { panic!("{violations:#?}") };
    assert_eq!((violation.check, violation.since_ns, violation.cpus.as_slice()), ("upgrade", 100 * MS, &[0][..]));
    assert!(violation.tasks[0].name.starts_with("hog."), "{violation}");
}

#[test]
fn a_replacement_that_keeps_all_tasks_is_none() {
    assert_eq!(found::<Wfq>(), []);
}

macro_rules! successors {
    ($($module:ident $policy:ident)*) => { [$(|| Successor::of::<ekiden_policies::$policy>("")),*] };
}

#[test]
fn a_thousand_replacements_by_all_policies_in_turn_break_no_promise() {
    let hogs = TaskSpec::new("hog", vec![Step::Forever { steps: vec![Step::Run { ns: MS }] }]).copies(6);
    let naps = vec![Step::Run { ns: MS / 5 }, Step::Sleep { ns: MS }];
    let sleepers = TaskSpec::new("sleeper", vec![Step::Forever { steps: naps }]).copies(4);
    let both = Workload::new("hogs and sleepers", 1, [hogs, sleepers]).lasting(4_000 * MS);
    for (load, apart) in [(both, MS), (churn(4, 8, 100, 1), MS / 20)] {
        let successors: Vec<fn() -> Successor> = for_each_policy!(successors).to_vec();
        let mut simulation = Simulation::of::<Fifo>(Machine::flat(4), "");
        for (number, successor) in (0..1_000).zip(successors.iter().cycle()) {
            simulation = simulation.upgrade(number * apart, successor());
        }
        assert_eq!(found_in(simulation, &load), [], "{}", load.name);
    }
}
