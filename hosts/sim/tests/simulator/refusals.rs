//! What a policy does wrong is found, named and put right.

use ekiden::{Call, RefusalReason, prelude::*};
use ekiden_engine::{CONTRACT_VIOLATIONS_ALLOWED, ContractViolation, ContractViolationKind};
use ekiden_sim::{Injection, Machine, SimReport, Simulation};
use ekiden_workload::checks::all_finished;
use ekiden_workload::{Step, TaskSpec, Workload};

const MS: u64 = 1_000_000;

/// A queue per CPU, and some ways to go wrong.
struct Mischief {
    queues: PerCpu<SpinLock<FifoQueue<Self>>>,
    wrong_cpu: u64,
    lose: u64,
    wrong_return: u64,
    bad_cpu: u64,
    /// How often it has gone wrong.
    done: SpinLock<u64>,
}

impl Mischief {
    /// Whether to go wrong (again).
    fn strike(&self, times: u64) -> bool {
        let mut done = self.done.lock();
        let strike = *done < times;
        *done += u64::from(strike);
        strike
    }

    fn queue(&self, token: Schedulable<Self>) {
        self.queues[token.cpu()].lock().push_back(token);
    }
}

const fn times(name: &'static str) -> Param {
    Param { name, help: "how often to do this wrong", default: 0, min: 0, max: 1_000_000 }
}

#[policy]
impl Scheduler for Mischief {
    const PARAMS: &'static [Param] = &[times("wrong_cpu"), times("lose"), times("wrong_return"), times("bad_cpu")];

    fn new(env: &Env) -> Self {
        Self {
            queues: PerCpu::new(env, |_| SpinLock::default()),
            wrong_cpu: env.param("wrong_cpu"),
            lose: env.param("lose"),
            wrong_return: env.param("wrong_return"),
            bad_cpu: env.param("bad_cpu"),
            done: SpinLock::new(0),
        }
    }

    fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
        if self.strike(self.lose) {
            drop(token);
        } else {
            self.queue(token);
        }
    }

    fn pick_next_task(&self, _: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        let other = self.queues.iter().map(|(other, _)| other).find(|other| *other != cpu);
        let other = other.filter(|other| !self.queues[*other].lock().is_empty() && self.strike(self.wrong_cpu));
        self.queues[other.unwrap_or(cpu)].lock().pop_front()
    }

    fn select_task_rq(&self, _: &Cx, _: &Task, _: CpuId, suggested: CpuId, _: WakeFlags) -> CpuId {
        if self.strike(self.bad_cpu) { 1_000 } else { suggested }
    }

    fn migrate_task_rq(&self, _: &Cx, _: &Task, new: Schedulable<Self>) -> Option<Schedulable<Self>> {
        if self.strike(self.wrong_return) {
            return Some(new);
        }
        let old = self.queues.iter().find_map(|(_, queue)| queue.lock().remove(new.task()));
        self.queue(new);
        old
    }
}

/// Four tasks on CPU 0 and one on CPU 1; one of those that wait is moved.
fn run(params: &str) -> SimReport {
    let nap = vec![Step::repeat(30, [Step::Run { ns: MS }, Step::Sleep { ns: MS / 10 }])];
    let load = Workload::new(
        "mischief",
        2,
        [
            TaskSpec::new("many", nap.clone()).on([0]).copies(4),
            TaskSpec::new("one", nap.clone()).on([1]),
            TaskSpec::new("free", nap),
        ],
    );
    let moved = Injection::Affinity { task: "many.3".into(), cpus: Some(vec![1]) };
    let result = Simulation::of::<Mischief>(Machine::flat(2), params).inject(MS / 2, moved).run(&load);
    let result = result.unwrap_or_else(|error| panic!("{params}: {error}"));
    assert_eq!(all_finished(&result.report), Ok(()), "{params}");
    assert_eq!(result.totals.unexpected_transitions, 0, "{params}");
    result
}

fn one_contract_violation(params: &str) -> ContractViolation {
    let result = run(params);
    assert_eq!((result.contract_violations, &result.fault), (1, &None), "{params}");
    result.last_contract_violation.unwrap()
}

#[test]
fn no_mischief_is_no_contract_violation() {
    assert_eq!(run("").contract_violations, 0);
}

#[test]
fn a_token_for_another_cpu_is_refused_and_comes_back() {
    let contract_violation = one_contract_violation("wrong_cpu=1");
    assert_eq!(contract_violation.kind, ContractViolationKind::Refused(RefusalReason::WrongCpu));
    assert_eq!(contract_violation.call, Call::PickNextTask);
}

#[test]
fn a_token_that_is_lost_is_issued_again() {
    let contract_violation = one_contract_violation("lose=1");
    assert_eq!(contract_violation.kind, ContractViolationKind::TokenLost);
    assert_eq!(contract_violation.call, Call::TaskNew);
}

#[test]
fn the_wrong_token_from_a_move_is_noticed() {
    let result = run("wrong_return=1");
    // It gave the new token away, which is a loss too, so that one is issued again.
    assert_eq!((result.contract_violations, &result.fault), (2, &None));
    let contract_violation = result.last_contract_violation.unwrap();
    assert_eq!(
        (contract_violation.kind, contract_violation.call),
        (ContractViolationKind::TokenLost, Call::MigrateTaskRq)
    );
}

#[test]
fn a_cpu_that_does_not_exist_is_refused() {
    let contract_violation = one_contract_violation("bad_cpu=1");
    assert_eq!((contract_violation.kind, contract_violation.call), (ContractViolationKind::BadCpu, Call::SelectTaskRq));
}

#[test]
fn too_many_contract_violations_end_the_policy() {
    let result = run("lose=1000000");
    let fault = result.fault.expect("it is taken out");
    assert!(fault.message.contains(&format!("more than {CONTRACT_VIOLATIONS_ALLOWED} contract violations")), "{fault}");
    assert!(fault.message.contains("lost a token"), "{fault}");
}
