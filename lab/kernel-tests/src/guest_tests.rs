//! The guest tests.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ekiden::Call;
use ekiden_guest_test::Panics;
use ekiden_loader::{
    Beside, Config, Drain, LoadError, Program, Scope, Session, ShortRecorder, Status, loaded, sysfs, unload_all,
};
use ekiden_recording::{Entry, Item, RecordingReader};
use ekiden_trace::Figures;
use serde::Serialize;

use crate::{
    load::{self, Worker, pause},
    neighbour::Neighbour,
    storm::{measure_off_times, off_times},
};

pub(crate) fn config(modules: &Path, policy: &str) -> Config {
    Config::new(policy, vec![modules.join("ekiden.ko"), module_of(modules, policy)])
}

/// Where the module of a policy is.
pub(crate) fn module_of(modules: &Path, policy: &str) -> PathBuf {
    modules.join(module_name(policy) + ".ko")
}

/// What the kernel calls it.
pub(crate) fn module_name(policy: &str) -> String {
    format!("ekiden_{}", policy.replace('-', "_"))
}

#[derive(Serialize)]
struct FaultReport<'a> {
    call: &'a str,
    round: u32,
    fault: String,
    /// From the start of loading until the policy was in place, and until it was gone.
    start_ms: u64,
    gone_ms: u64,
    back_in_ms: u64,
}

/// Plants a panic in each call. The policy must go with its reason, the kernel's own scheduler must be back, and a task
/// that ran before must go on.
pub(crate) fn faults(modules: &Path, panics: &Panics) -> Result<()> {
    let bystander = Worker::start("spin")?;
    let mut program = None;
    for round in 0..panics.rounds {
        for call in panics.calls() {
            let mut config = config(modules, "faulty");
            config.params = format!("call={} after={}", call as u32, 1 + round % 3);
            config.arena_bytes = 4 << 20;
            let (fault, start_ms, gone_ms) = one_fault(&config, call, &mut program)?;
            let start = Instant::now();
            while sysfs::state().as_deref() != Some("disabled") {
                ensure!(start.elapsed() < Duration::from_secs(5), "{}: the policy is still there", call.name());
                pause(1);
            }
            let back_in_ms = start.elapsed().as_millis() as u64;
            bystander.must_run().with_context(|| format!("after a fault in {}", call.name()))?;
            let report = FaultReport { call: call.name(), round, fault, start_ms, gone_ms, back_in_ms };
            println!("{}", serde_json::to_string(&report)?);
        }
    }
    Ok(())
}

/// Runs the policy until it goes wrong, and returns the reason that the kernel half kept, and when what happened.
fn one_fault(config: &Config, call: Call, program: &mut Option<Program>) -> Result<(String, u64, u64)> {
    let start = Instant::now();
    let ms = || start.elapsed().as_millis() as u64;
    let mut start_ms = 0;
    match Session::start_with(config, program) {
        Ok(session) => {
            start_ms = ms();
            while session.is_running() && ms() < start_ms + 10_000 {
                load::everything(&session)?;
            }
            // The last call of all comes when the tasks are given back.
            *program = session.stop();
        }
        // It may go wrong before `start` returns, because the machine's tasks come at once.
        Err(LoadError::TakenOut(_) | LoadError::Bpf { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let status = Status::read()?.unwrap_or_default();
    match status.fault {
        Some(fault) => Ok((fault, start_ms, ms())),
        None => bail!("{} never went wrong: {status:?}", call.name()),
    }
}

#[derive(Serialize)]
struct ReloadReport {
    round: u32,
    start_ms: u128,
    stop_ms: u128,
    unload_ms: u128,
}

/// Load, run under load, unload.
pub(crate) fn reload(modules: &Path, rounds: u32, policies: &[String]) -> Result<()> {
    let napper = Worker::start("nap")?;
    for (round, policy) in (0..rounds).zip(policies.iter().cycle()) {
        let start = Instant::now();
        let session = Session::start(&config(modules, policy))?;
        let start_ms = start.elapsed().as_millis();
        // It comes this late because it takes half of an emulator's time from then on.
        let hog = Worker::start("spin")?;
        hog.pin(round as usize % 2)?;
        drop(Worker::start("exit")?);
        napper.unpin()?;
        pause(20);
        session.check()?;
        let stop = Instant::now();
        session.stop();
        let stop_ms = stop.elapsed().as_millis();
        let unload = Instant::now();
        unload_all(Duration::from_secs(10))?;
        let unload_ms = unload.elapsed().as_millis();
        ensure!(loaded().is_empty(), "modules are left after round {round}: {:?}", loaded());
        println!("{}", serde_json::to_string(&ReloadReport { round, start_ms, stop_ms, unload_ms })?);
    }
    Ok(())
}

#[derive(Serialize)]
struct StormReport {
    forks: u32,
    tasks_before: u64,
    tasks_after: u64,
    still_running: bool,
    unexpected_transitions: u64,
    contract_violations: u64,
    last_contract_violation: Option<String>,
    off_ns_max: BTreeMap<String, u64>,
    /// What a hostile neighbour did, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    deeds: Option<BTreeMap<&'static str, u64>>,
    back_after_kill: bool,
}

/// A storm of everything, and at the end the loader is killed without a word.
pub(crate) fn storm(modules: &Path, policy: &str, neighbour: Option<u64>) -> Result<()> {
    // The measurements are the module's, and another storm may have been in this guest.
    unload_all(Duration::from_secs(10))?;
    let session = Session::start(&config(modules, policy))?;
    measure_off_times()?;
    let neighbour = neighbour.map(Neighbour::start).transpose()?;
    let tasks_before = Status::read()?.unwrap_or_default().counts.tasks;
    let mut forks = 0;
    {
        let workers: Vec<Worker> =
            ["spin", "spin", "yield", "nap", "nap", "nap"].into_iter().map(Worker::start).collect::<Result<_>>()?;
        for round in 0..40_usize {
            for (index, worker) in workers.iter().enumerate() {
                match (round + index) % 5 {
                    0 => worker.pin(round % 2)?,
                    1 => worker.unpin()?,
                    2 => worker.nice((round % 10) as i32),
                    3 => worker.visit_real_time()?,
                    _ => {}
                }
            }
            for _ in 0..5 {
                drop(Worker::start("exit")?);
                forks += 1;
            }
            if round % 10 == 9 {
                load::hotplug(1)?;
            }
            session.check()?;
        }
        // Every one of them still makes progress.
        for worker in &workers {
            worker.must_run()?;
        }
    }
    let deeds = neighbour.map(Neighbour::end).transpose()?;
    pause(100);
    let status = Status::read()?.unwrap_or_default();
    let (off_ns_max, status) = (off_times(&status), status.counts);
    let still_running = session.is_running();
    session.stop();
    println!(
        "{}",
        serde_json::to_string(&StormReport {
            forks,
            tasks_before,
            tasks_after: status.tasks,
            still_running,
            unexpected_transitions: status.unexpected_transitions,
            contract_violations: status.contract_violations,
            last_contract_violation: status.last_contract_violation,
            off_ns_max,
            deeds,
            back_after_kill: killed_loader_gives_everything_back(modules, policy)?,
        })?
    );
    Ok(())
}

fn killed_loader_gives_everything_back(modules: &Path, policy: &str) -> Result<bool> {
    let this = std::env::current_exe()?;
    let mut child =
        std::process::Command::new(this).args(["hold", "--policy", policy, "--modules"]).arg(modules).spawn()?;
    let start = Instant::now();
    while sysfs::scheduler().is_none() {
        // How long it takes depends on what the host leaves to this guest, so the program that starts it is what is watched.
        ensure!(child.try_wait()?.is_none(), "the program that starts the policy has ended");
        ensure!(start.elapsed() < Duration::from_secs(120), "the policy has not started after two minutes");
        pause(10);
    }
    child.kill()?;
    child.wait()?;
    let start = Instant::now();
    while sysfs::state().as_deref() != Some("disabled") && start.elapsed() < Duration::from_secs(5) {
        pause(10);
    }
    Ok(sysfs::state().as_deref() == Some("disabled"))
}

/// Things that cannot work: each gets an error of its own, and the machine stays as it was.
pub(crate) fn refusals(modules: &Path) -> Result<()> {
    let say = |what: &str, result: Result<Session, LoadError>| match result {
        Ok(_) => bail!("{what}: this should not have worked"),
        Err(error) => {
            println!("{}", serde_json::json!({ "what": what, "error": error.to_string() }));
            Ok(())
        }
    };
    let mut unknown = config(modules, "fifo");
    unknown.policy = "nosuch".into();
    say("unknown policy", Session::start(&unknown))?;
    let mut params = config(modules, "wfq");
    params.params = "period_us=0".into();
    say("parameter out of range", Session::start(&params))?;
    params.params = "nosuch=1".into();
    say("unknown parameter", Session::start(&params))?;
    say("module that is not there", Session::start(&config(modules, "missing")))?;
    std::fs::write("/tmp/ekiden_text.ko", "no module at all")?;
    let mut text = config(modules, "text");
    text.modules[1] = "/tmp/ekiden_text.ko".into();
    say("file that is no module", Session::start(&text))?;
    let mut tight = config(modules, "wfq");
    tight.arena_bytes = 64 << 10;
    say("arena too small", Session::start(&tight))?;
    let running = Session::start(&config(modules, "fifo"))?;
    say("second session", Session::start(&config(modules, "wfq")))?;
    running.check()?;
    running.stop();
    ensure!(sysfs::state().as_deref() == Some("disabled"), "something is left behind");
    Ok(())
}

#[derive(Serialize)]
struct AttachedReport {
    still_running: bool,
    attached_tasks: u64,
    batch_ran_ns: u64,
    ours_ran_ns: u64,
}

/// A policy that has one task, on the same CPU as batch work of the default class.
pub(crate) fn attached(modules: &Path) -> Result<()> {
    let mut config = config(modules, "wfq");
    config.scope = Scope::Attached;
    let session = Session::start(&config)?;
    let ours = Worker::start("nap")?;
    let batch = Worker::start("spin")?;
    for worker in [&ours, &batch] {
        worker.pin(0)?;
    }
    ours.class(SCHED_EXT)?;
    pause(500);
    let status = Status::read()?.unwrap_or_default();
    println!(
        "{}",
        serde_json::to_string(&AttachedReport {
            still_running: session.is_running(),
            attached_tasks: status.counts.tasks,
            batch_ran_ns: batch.ran_ns(),
            ours_ran_ns: ours.ran_ns(),
        })?
    );
    session.stop();
    Ok(())
}

/// The class of tasks that ask for a sched_ext scheduler.
pub(crate) const SCHED_EXT: i32 = 7;

/// Holds a policy while a command runs, which must succeed under it, or until it is killed.
pub(crate) fn hold(modules: &Path, policy: &str, beside: bool, command: &[String]) -> Result<()> {
    let beside = if beside { Beside::OthersAsDefault } else { Beside::Nobody };
    let session = Session::start(&Config { beside, ..config(modules, policy) })?;
    let Some((program, arguments)) = command.split_first() else {
        loop {
            thread::sleep(Duration::from_secs(60));
        }
    };
    let status = std::process::Command::new(program).args(arguments).status()?;
    session.check()?;
    session.stop();
    ensure!(status.success(), "{program} failed under {policy}: {status}");
    Ok(())
}

#[derive(Serialize)]
struct LeavingReport {
    still_running: bool,
    /// The rounds after which the CPU did no irq_work, by which sched_ext ends a policy.
    deaf: Vec<u32>,
}

/// The CPU that leaves wakes up the task that waits for that, nearly every time if CPU 0 is busy. What the policy wants then must
/// not keep that CPU from doing irq_work when it is back; it would until it leaves the next time.
pub(crate) fn leaving(modules: &Path) -> Result<()> {
    let mut config = config(modules, "faulty");
    config.params = "fault=5".into();
    let session = Session::start(&config)?;
    let workers = ["yield", "nap"].into_iter().map(Worker::start).collect::<Result<Vec<_>>>()?;
    workers.iter().try_for_each(|worker| worker.pin(0))?;
    let mut deaf = Vec::new();
    for round in 0..10 {
        if !load::hotplug(1).and_then(|()| does_irq_work())? {
            deaf.push(round);
        }
    }
    drop(workers);
    // A deaf CPU would delay without limit the end of the policy.
    while !deaf.is_empty() && !does_irq_work()? {
        load::hotplug(1)?;
    }
    let report = LeavingReport { still_running: session.is_running(), deaf };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

#[derive(Serialize)]
struct AwayReport {
    policy: String,
    still_running: bool,
    contract_violations: u64,
    /// Choices of the policy that could not be, among others.
    refusals: u64,
    /// How often the policy was asked anything meanwhile, and how often it placed a task on the CPU that is away.
    calls: usize,
    sent_away: usize,
    lost: u64,
}

/// CPU 1 leaves while it is idle, and tasks come and go meanwhile: the policy must not be shown it as one for them.
pub(crate) fn away(modules: &Path, policy: &str) -> Result<()> {
    let session = Session::start(&Config { call_log_records: 1 << 16, ..config(modules, policy) })?;
    let workers = ["spin", "nap"].into_iter().map(Worker::start).collect::<Result<Vec<_>>>()?;
    load::set_online(1, false)?;
    let counts = || Ok::<_, LoadError>(Status::read()?.unwrap_or_default().counts);
    let before = counts()?;
    let recording = Path::new("/tmp/away.ekirec");
    let drain = Drain::start(fs::File::create(recording)?, None, true, "a CPU is away")?;
    for _ in 0..20 {
        drop(Worker::start("exit")?);
        pause(1);
    }
    let (after, still_running) = (counts()?, session.is_running());
    let kept = drain.stop()?;
    load::set_online(1, true)?;
    drop(workers);
    let (mut calls, mut sent_away) = (0, 0);
    for recorded in RecordingReader::new(fs::File::open(recording)?)? {
        if let Item::Entry(Entry::Call(call)) = recorded?.item {
            calls += 1;
            let is_choice = call.message.call == Call::SelectTaskRq as u32;
            if is_choice && call.reply.is_some_and(|reply| reply.cpu == 1) {
                sent_away += 1;
            }
        }
    }
    let report = AwayReport {
        policy: policy.to_owned(),
        still_running,
        contract_violations: after.contract_violations,
        refusals: after.refusals - before.refusals,
        calls,
        sent_away,
        lost: kept.lost,
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// Whether CPU 1, where we are, does irq_work. The policy has it kick itself whenever we wake up.
fn does_irq_work() -> Result<bool> {
    let done = || {
        let interrupts = fs::read_to_string("/proc/interrupts")?;
        let mut counts = interrupts.lines().filter_map(|line| line.trim_start().strip_prefix("IWI:"));
        let count = counts.next().and_then(|counts| counts.split_whitespace().nth(1)?.parse::<u64>().ok());
        count.context("/proc/interrupts does not count irq_work of CPU 1")
    };
    let before = done()?;
    pause(20);
    Ok(done()? > before)
}

#[derive(Serialize)]
struct RecordReport {
    /// What the recording shows of this process: wake-ups, switches to it, the longest wait.
    wakeups: u64,
    switches: u64,
    longest_wait_ns: u64,
    /// How often it gave up a CPU, by the kernel's own count.
    kernel_switches: u64,
    lost: u64,
}

/// Records itself while it sleeps a hundred times, under the kernel's own scheduler.
pub(crate) fn record() -> Result<()> {
    let recorder = ShortRecorder::start(1 << 20, "a hundred naps")?;
    let before = voluntary_switches()?;
    for _ in 0..100 {
        thread::sleep(Duration::from_micros(500));
    }
    let kernel_switches = voluntary_switches()? - before;
    let recording = recorder.stop();
    let figures = Figures::of(&recording.trace, Some(&[std::process::id()]), 0..u64::MAX);
    let report = RecordReport {
        wakeups: figures.wakeups,
        switches: figures.switches,
        longest_wait_ns: figures.wait_ns(1_000),
        kernel_switches,
        lost: recording.lost,
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

fn voluntary_switches() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).context("no count of switches")
}
