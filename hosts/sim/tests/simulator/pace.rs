//! Policies that ask for too much are slowed down, and then taken out; those that need much get it.

use ekiden::Call;
use ekiden::prelude::*;
use ekiden_policies::{Cfs, Eevdf, Fifo, Wfq};
use ekiden_sim::{Machine, SimReport, Simulation};
use ekiden_test_policies::{Fault, Faulty};
use ekiden_workload::checks::all_finished;
use ekiden_workload::{Step, TaskSpec, Workload, builtin};
use proptest::prelude::*;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Tasks that come and go for so long, and one on each CPU that does not.
fn busy(cpus: u32, ms: u64) -> Workload {
    let nap = vec![Step::repeat(ms, [Step::Run { ns: MS }, Step::Sleep { ns: MS / 10 }])];
    Workload::new(
        "busy",
        cpus,
        [
            TaskSpec::new("long", vec![Step::Run { ns: ms * MS }]).copies(cpus),
            TaskSpec::new("nap", nap).copies(2 * cpus),
        ],
    )
}

fn goes_wrong(fault: Fault, call: Call, cpus: u32, seed: u64) -> SimReport {
    let params = format!("fault={} call={} after=20", fault as u64, call as u64);
    let load = busy(cpus, 300);
    let result =
        Simulation::of::<Faulty>(Machine::flat(cpus), &params).seed(seed).time_limit_ns(20_000 * MS).run(&load);
    let result = result.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
    // Whatever happens to the policy, each task has run to its end.
    assert_eq!(all_finished(&result.report), Ok(()), "{fault:?}");
    assert_eq!(result.totals.unexpected_transitions, 0, "{fault:?}");
    result
}

#[track_caller]
fn is_taken_out(result: &SimReport, words: &str) {
    let fault = result.fault.as_ref().expect("it is still there");
    assert!(fault.message.starts_with(words), "{fault}");
    assert!(result.totals.slowed > 0, "it was not slowed down first");
}

#[test]
fn kicks_of_all_cpus_in_every_call_end_the_policy() {
    for (cpus, call) in [(1, Call::PickNextTask), (2, Call::TaskTick), (8, Call::TaskWakeup)] {
        is_taken_out(&goes_wrong(Fault::KickAll, call, cpus, 1), "too many kicks: ");
    }
}

#[test]
fn a_search_that_starts_itself_again_ends_the_policy() {
    for cpus in [1, 4] {
        is_taken_out(&goes_wrong(Fault::Livelock, Call::PickNextTask, cpus, 1), "too many kicks: ");
    }
}

#[test]
fn timers_and_slices_of_a_nanosecond_are_made_longer() {
    let result = goes_wrong(Fault::Timers, Call::TaskWakeup, 2, 1);
    assert_eq!(result.fault, None);
    assert!(result.totals.slowed > 1_000, "{:?}", result.totals);
    assert_eq!(goes_wrong(Fault::ShortSlices, Call::PickNextTask, 2, 1).fault, None);
}

/// Preempts at timers of 10 µs on every CPU, as Shinjuku does.
struct Shinjuku {
    queues: PerCpu<SpinLock<FifoQueue<Self>>>,
}

#[policy]
impl Scheduler for Shinjuku {
    fn new(env: &Env) -> Self {
        Self { queues: PerCpu::new(env, |_| SpinLock::default()) }
    }

    fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
        self.queues[token.cpu()].lock().push_back(token);
    }

    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        let token = self.queues[cpu].lock().pop_front();
        if token.is_some() {
            cx.arm_timer(10 * US);
        }
        token
    }

    fn timer(&self, cx: &Cx, cpu: CpuId) {
        cx.resched(cpu);
    }
}

#[test]
fn preemption_at_timers_of_10_us_on_every_cpu_is_not_too_much() {
    for cpus in [1, 4] {
        let result = Simulation::of::<Shinjuku>(Machine::flat(cpus), "").run(&busy(cpus, 50)).unwrap();
        assert_eq!(result.fault, None);
        assert_eq!(result.totals.slowed, 0, "it was slowed down");
        // It does preempt so often.
        assert!(result.stats.kicks > u64::from(cpus) * 5_000, "{:?}", result.stats);
        assert_eq!(all_finished(&result.report), Ok(()));
    }
}

#[test]
fn the_policies_that_come_with_ekiden_are_never_slowed_down() {
    fn is_not<S: Scheduler>() {
        for case in builtin::all(4) {
            let load = &case.workload;
            let result = Simulation::of::<S>(Machine::flat(load.cpus), "").run(load).unwrap();
            assert_eq!((result.totals.slowed, &result.fault), (0, &None), "{} under {}", load.name, S::NAME);
        }
    }
    is_not::<Fifo>();
    is_not::<Wfq>();
    is_not::<Cfs>();
    is_not::<Eevdf>();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Wherever it begins, and on whatever machine: no task is lost by what comes later.
    #[test]
    fn no_task_is_lost_by_kicks_that_come_later(cpus in 1_u32..6, seed: u64, call in 0_usize..4, which in 0_usize..3) {
        let call = [Call::PickNextTask, Call::TaskWakeup, Call::TaskTick, Call::TaskPreempt][call];
        goes_wrong([Fault::KickAll, Fault::Livelock, Fault::Timers][which], call, cpus, seed);
    }
}
