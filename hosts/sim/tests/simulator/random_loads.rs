//! Loads made at random come to their end under every policy, and nothing that the trace shows is impossible.

use std::collections::HashMap;

use ekiden_policies::for_each_policy;
use ekiden_sim::{Injection, Jitter, Machine, Model, PolicyMaker, SimReport, Simulation, Trace, What};
use ekiden_workload::checks::all_finished;
use ekiden_workload::{Device, Group, HintWord, Limit, Step, TaskSpec, WaitMode, Workload};
use proptest::prelude::*;

use crate::probe::{MS, Probe, US};

const CPUS: u32 = 4;

fn cpus() -> impl Strategy<Value = Option<Vec<u32>>> {
    prop::option::of(prop::collection::vec(0..CPUS, 1..3))
}

fn patient_mode() -> impl Strategy<Value = WaitMode> {
    prop_oneof![Just(WaitMode::Block), (0..MS).prop_map(|spin_ns| WaitMode::SpinThenBlock { spin_ns })]
}

fn mode() -> impl Strategy<Value = WaitMode> {
    prop_oneof![2 => patient_mode(), 1 => Just(WaitMode::Spin)]
}

fn step() -> impl Strategy<Value = Step> {
    let simple = prop_oneof![
        4 => (0..8 * MS).prop_map(|ns| Step::Run { ns }),
        3 => (0..2 * MS).prop_map(|ns| Step::Sleep { ns }),
        2 => Just(Step::Yield),
        1 => (-20..=19_i32).prop_map(|nice| Step::SetNice { nice }),
        2 => cpus().prop_map(|cpus| Step::SetAffinity { cpus }),
        1 => Just(Step::Mark),
        1 => Just(Step::Wait),
        1 => Just(Step::Exec),
        1 => (0..2 * MS).prop_map(|ns| Step::RunFor { ns }),
        1 => (0..2_u32, 1..2 * MS, any::<bool>())
            .prop_map(|(timer, period_ns, restart)| Step::Timer { timer, period_ns, restart }),
        1 => Just(Step::Io { device: 0 }),
        1 => (0..2_u32, any::<u32>(), any::<bool>())
            .prop_map(|(queue, value, ring)| Step::WriteHint { queue, hint: vec![HintWord::Value(value)], ring }),
        // CPU 0 stays.
        1 => (1..CPUS).prop_map(|cpu| Step::CpuOffline { cpu }),
        1 => (1..CPUS).prop_map(|cpu| Step::CpuOnline { cpu }),
        // A task that holds a lock comes to its end, though not in time if one of nice value -20 spins for it without end.
        3 => (0..2_u32, patient_mode(), 0..MS).prop_map(|(lock, mode, ns)| {
            Step::repeat(1, [Step::Lock { lock, mode }, Step::Run { ns }, Step::Unlock { lock }])
        }),
        // No other task uses the task's own pipe 0, so the byte is there.
        2 => Just(Step::repeat(1, [Step::PipeWrite { pipe: 0 }, Step::PipeRead { pipe: 0 }])),
        // A task that finds nothing in pipe 2 writes a byte, and if another one has that, looks again.
        1 => (0..2_u32, 0..MS).prop_map(|(at_least, spin_ns)| {
            let poll = Step::PipePoll { pipe: 2, spin_ns, idle: vec![Step::PipeWrite { pipe: 2 }] };
            Step::repeat(1, [Step::IfHeld { pipe: 2, at_least, steps: vec![Step::Yield] }, poll])
        }),
    ];
    simple.prop_recursive(2, 24, 4, |inner| {
        let steps = prop::collection::vec(inner, 0..4);
        prop_oneof![
            steps.clone().prop_map(|program| Step::Fork { program }),
            (0..4_u64, steps).prop_map(|(times, steps)| Step::Repeat { times, steps }),
        ]
    })
}

fn task() -> impl Strategy<Value = TaskSpec> {
    let program = prop::collection::vec(step(), 0..8);
    (program, cpus(), -20..=19_i32, 0..3 * MS, 1..4_u32).prop_map(|(program, affinity, nice, start_ns, count)| {
        TaskSpec { affinity, start_ns, ..TaskSpec::new("task", program).nice(nice).copies(count) }
    })
}

/// Tasks, of which some have a limit, a pair of them that pass bytes on, and three that meet.
fn load() -> impl Strategy<Value = Workload> {
    (prop::collection::vec(task(), 1..5), 1..20_u64, mode()).prop_map(|(mut tasks, bytes, mode)| {
        for (index, task) in tasks.iter_mut().enumerate() {
            task.name = format!("task-{index}");
            task.group = (index == 1).then(|| "limited".to_owned());
        }
        let pass = |number, step| TaskSpec::new(number, vec![Step::repeat(bytes, [Step::Run { ns: 50 * US }, step])]);
        tasks.push(pass("writer", Step::PipeWrite { pipe: 1 }));
        tasks.push(pass("reader", Step::PipeRead { pipe: 1 }));
        let meet = Step::Barrier { barrier: 0, parties: 3, mode };
        let meet = TaskSpec::new("party", vec![Step::repeat(bytes, [Step::Run { ns: 50 * US }, meet])]);
        tasks.push(meet.copies(3).in_group("limited"));
        let limit = Some(Limit { quota_ns: 5 * MS, period_ns: 10 * MS });
        Workload::new("random", CPUS, tasks).with_group(Group { limit, ..Group::new("limited") }).with_device(Device {
            servers: 2,
            service_ns: 100 * US,
            exponential: true,
        })
    })
}

/// What happens from outside to the load's writer: another scheduler, nice value, CPUs.
fn meddling() -> impl Strategy<Value = Injection> {
    let task = || "writer".to_owned();
    prop_oneof![
        Just(Injection::Depart { task: task() }),
        Just(Injection::Return { task: task() }),
        (-20..=19_i32).prop_map(move |nice| Injection::Nice { task: task(), nice }),
        cpus().prop_map(move |cpus| Injection::Affinity { task: task(), cpus }),
    ]
}

/// That, and CPUs that come and go; CPU 0 stays.
fn trouble() -> impl Strategy<Value = Vec<(u64, Injection)>> {
    let change = prop_oneof![
        (1..CPUS).prop_map(|cpu| Injection::CpuOnline { cpu }),
        (1..CPUS).prop_map(|cpu| Injection::CpuOffline { cpu }),
        meddling(),
    ];
    prop::collection::vec((0..10 * MS, change), 0..10)
}

fn run(policy: PolicyMaker, load: &Workload, seed: u64, injections: Vec<(u64, Injection)>) -> SimReport {
    let jitter = Jitter { sleep_ns: 50 * US, work_permille: 50 };
    let machine = Machine::flat(CPUS).with_model(Model { jitter, ..Model::default() });
    let mut simulation = Simulation::with_policy(machine, policy).seed(seed).traced();
    for (at_ns, injection) in injections {
        simulation = simulation.inject(at_ns, injection);
    }
    simulation.run(load).unwrap_or_else(|error| panic!("{error}"))
}

/// Judges by the trace alone: a task that runs has waited, on one CPU at a time, which is online; and what begins ends.
fn check_trace(trace: &Trace) -> Result<(), TestCaseError> {
    let mut running: HashMap<u32, u32> = HashMap::new();
    let mut waiting: HashMap<u32, u32> = HashMap::new();
    let mut alive = 0;
    let mut offline = [false; CPUS as usize];
    for record in trace.records() {
        let on_its_cpu = running.get(&record.cpu) == Some(&record.pid);
        match record.what {
            What::New => alive += 1,
            What::Enqueue => {
                prop_assert!(!running.values().any(|pid| *pid == record.pid), "queued while it runs: {record}");
                prop_assert!(!offline[record.cpu as usize], "queued on a CPU that is gone: {record}");
                waiting.insert(record.pid, record.cpu);
            }
            What::Run => {
                prop_assert!(waiting.remove(&record.pid).is_some(), "runs without having waited: {record}");
                prop_assert!(!running.values().any(|pid| *pid == record.pid), "runs twice: {record}");
                prop_assert_eq!(running.insert(record.cpu, record.pid), None, "two on one CPU: {}", record);
                prop_assert!(!offline[record.cpu as usize], "runs on a CPU that is gone: {record}");
            }
            What::Preempt | What::Block | What::Exit => {
                prop_assert!(on_its_cpu, "did not run: {record}");
                running.remove(&record.cpu);
                alive -= u32::from(record.what == What::Exit);
            }
            What::Keep | What::Tick | What::Yield | What::Mark | What::Finish => {
                prop_assert!(on_its_cpu, "did not run: {record}");
            }
            What::Idle => prop_assert!(!running.contains_key(&record.cpu), "idle and busy: {record}"),
            What::Offline => offline[record.cpu as usize] = true,
            What::Online => offline[record.cpu as usize] = false,
            _ => {}
        }
    }
    prop_assert_eq!(alive, 0);
    Ok(())
}

fn check(result: &SimReport) -> Result<(), TestCaseError> {
    prop_assert_eq!(all_finished(&result.report), Ok(()));
    prop_assert_eq!((&result.fault, result.last_contract_violation), (&None, None));
    prop_assert_eq!(result.totals.unexpected_transitions, 0);
    check_trace(&result.trace)
}

macro_rules! every_policy {
    ($($module:ident $policy:ident)*) => {$(
        mod $module {
            use super::*;

            proptest! {
                #[test]
                fn loses_no_task(load in load(), seed: u64, trouble in trouble()) {
                    check(&run(PolicyMaker::of::<ekiden_policies::$policy>(""), &load, seed, trouble))?;
                }
            }
        }
    )*};
}

for_each_policy!(every_policy);

proptest! {
    #[test]
    fn no_task_is_lost_when_tokens_come_back_late(load in load(), seed: u64, trouble in trouble()) {
        check(&run(PolicyMaker::of::<Probe>(""), &load, seed, trouble))?;
    }

    #[test]
    fn no_task_is_lost_when_the_policy_fails(load in load(), seed: u64, panic_in in 0..27_u64, trouble in trouble()) {
        let result = run(PolicyMaker::of::<Probe>(&format!("panic_in={panic_in}")), &load, seed, trouble);
        prop_assert_eq!(all_finished(&result.report), Ok(()));
        check_trace(&result.trace)?;
    }
}
