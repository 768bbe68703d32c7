//! What changes between two steps of the kernel half, done so often that it happens in between.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use ekiden::Call;
use ekiden_loader::{Config, LoadError, Session, Status, loaded, unload_all};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use serde::Serialize;

use crate::{
    guest_tests::config,
    load::{Worker, class_of, pause},
    storm::{measure_off_times, off_times},
};

#[derive(Serialize)]
struct AffinitiesReport {
    /// How often the affinity of a task was changed.
    changes: u64,
    /// How often a CPU found that a task which it had picked may not run there any more.
    late: bool,
    refusals: u64,
    picks: u64,
    unexpected_transitions: u64,
    contract_violations: u64,
    last_contract_violation: Option<String>,
    still_running: bool,
}

/// Changes where tasks may run, some ten thousand times a second and before any task of a policy, until told to stop. Returns how often.
fn change_affinities(tasks: &[Pid], seed: u64, stop: &AtomicBool) -> Result<u64> {
    class_of(0, libc::SCHED_FIFO)?;
    let cpus = thread::available_parallelism()?.get();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut changes = 0;
    while !stop.load(Relaxed) {
        let mut allowed = CpuSet::new();
        allowed.set(rng.usize(..cpus))?;
        if rng.bool() {
            allowed.set(rng.usize(..cpus))?;
        }
        sched_setaffinity(tasks[rng.usize(..tasks.len())], &allowed)?;
        changes += 1;
        thread::sleep(Duration::from_micros(50));
    }
    Ok(changes)
}

/// Two threads change the affinity of tasks that are picked for all CPUs, so that it changes after a policy has picked one for a
/// CPU and before that CPU has it.
pub(crate) fn affinities(modules: &Path, policy: &str, seconds: u64) -> Result<()> {
    // The measurements are the module's. This guest may have had a test before that met the same.
    unload_all(Duration::from_secs(10))?;
    let session = Session::start(&config(modules, policy))?;
    measure_off_times()?;
    let workers =
        ["yield", "yield", "nap", "nap", "spin"].into_iter().map(Worker::anywhere).collect::<Result<Vec<_>>>()?;
    let tasks: Vec<Pid> = workers.iter().map(Worker::pid).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let changers: Vec<_> = (0..2)
        .map(|seed| {
            let (tasks, stop) = (tasks.clone(), stop.clone());
            thread::spawn(move || change_affinities(&tasks, seed, &stop))
        })
        .collect();
    let start = Instant::now();
    while session.is_running() && start.elapsed() < Duration::from_secs(seconds) {
        pause(50);
    }
    stop.store(true, Relaxed);
    let mut changes = 0;
    for changer in changers {
        changes += changer.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    let status = Status::read()?.unwrap_or_default();
    let report = AffinitiesReport {
        changes,
        late: off_times(&status).contains_key("pick_refused"),
        refusals: status.counts.refusals,
        picks: status.counts.picks,
        unexpected_transitions: status.counts.unexpected_transitions,
        contract_violations: status.counts.contract_violations,
        last_contract_violation: status.counts.last_contract_violation,
        still_running: session.is_running(),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

#[derive(Serialize, Default)]
struct LastTimersReport {
    rounds: u32,
    /// In how many the policy had faulted, in a call of its timer, when all was taken away.
    faulted: u32,
}

/// More often than a timer can go off in a round.
const NEVER: u32 = 1_000_000;

/// Takes everything away while timers start each other: those of CPUs call a policy, which panics there, and then another has its
/// tasks go elsewhere. In the first round it has panicked before that, and in the last one it does not; in all others it may.
pub(crate) fn last_timers(modules: &Path, rounds: u32) -> Result<()> {
    let mut report = LastTimersReport { rounds, ..LastTimersReport::default() };
    let _workers = ["nap", "yield", "spin"].into_iter().map(Worker::anywhere).collect::<Result<Vec<_>>>()?;
    for round in 0..rounds {
        let (is_first, is_last) = (round == 0, round > 0 && round + 1 == rounds);
        // Each task that comes arms a timer of a millisecond, and many come at first.
        let after = match (is_first, is_last) {
            (true, _) => 1,
            (_, true) => NEVER,
            _ => 2 * (1 + round % 10),
        };
        let params = format!("call={} after={after}", Call::Timer as u32);
        let config = Config { params, max_tasks: 2048, arena_bytes: 4 << 20, ..config(modules, "faulty") };
        match Session::start(&config) {
            Ok(session) => {
                let _one_more = Worker::start("exit")?;
                let start = Instant::now();
                while is_first && session.is_running() && start.elapsed() < Duration::from_secs(5) {
                    pause(1);
                }
                thread::sleep(Duration::from_micros(u64::from(round * 331 % 3_000)));
                session.stop();
            }
            // It may have faulted before it was in place.
            Err(LoadError::TakenOut(_) | LoadError::Bpf { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let has_faulted = Status::read()?.is_some_and(|status| status.fault.is_some());
        ensure!(has_faulted || !is_first, "the first timer that goes off makes it fault");
        ensure!(!has_faulted || !is_last, "it has faulted, and no timer has gone off {NEVER} times");
        report.faulted += u32::from(has_faulted);
        unload_all(Duration::from_secs(10))?;
        ensure!(loaded().is_empty(), "modules are left after round {round}: {:?}", loaded());
    }
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
