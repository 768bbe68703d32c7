//! Policies in a process: what they live through, and which scheduler has the tasks when that process ends in whatever way.

use std::{
    fs::File,
    io::Read,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ekiden::{Call, Scheduler};
use ekiden_agent::{Agent, Config, Counts, Make};
use ekiden_linked::{ALL, find, make};
use ekiden_loader::{Baseline, Drain, Queues, dump, sysfs};
use ekiden_test_policies::{Fault, Faulty};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::Serialize;

use crate::load::{self, Worker, pause};

/// Records of 64 bytes: more than a policy's calls in the time in which they are read.
const CALL_LOG_RECORDS: u64 = 1 << 18;

#[derive(Serialize)]
struct Worked<'a> {
    policy: &'a str,
    was_scheduler: bool,
    #[serde(flatten)]
    counts: Counts,
    /// Records of its calls that were overwritten before they were read.
    records_lost: u64,
}

/// Every policy that is linked in, or one of them. Its calls go to a file of its name in the directory.
pub(crate) fn works(messages: u32, rounds: usize, only: Option<&str>, recordings: &Path) -> Result<()> {
    for linked in ALL.iter().filter(|linked| only.is_none_or(|only| only == linked.name)) {
        let config = Config { messages, call_log_records: CALL_LOG_RECORDS, ..Config::new(linked.name) };
        let agent = Agent::start(&config, linked.make)?;
        let call_log = agent.call_log()?.context("there is no call log")?;
        let file = File::create(recordings.join(format!("{}.ekirec", linked.name)))?;
        let drain = Drain::of(call_log, &agent.header("agent-works")?, file, agent.tells_instances())?;
        works_under(&agent, rounds).with_context(|| format!("under {}", linked.name))?;
        agent.check().with_context(|| format!("at the end, under {}", linked.name))?;
        let (was_scheduler, counts) = (agent.is_running(), agent.counts());
        drop(agent);
        let records_lost = drain.stop()?.lost;
        println!("{}", serde_json::to_string(&Worked { policy: linked.name, was_scheduler, counts, records_lost })?);
        ensure!(sysfs::state().as_deref() == Some("disabled"), "{} is still there", linked.name);
    }
    Ok(())
}

/// All that happens to tasks; each of them still runs afterwards.
fn works_under(agent: &Agent, rounds: usize) -> Result<()> {
    let workers: Vec<Worker> =
        ["spin", "spin", "yield", "nap", "nap", "forks"].into_iter().map(Worker::start).collect::<Result<_>>()?;
    for round in 0..rounds {
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
        }
        if round % 10 == 9 {
            load::hotplug(1)?;
        }
        agent.check()?;
    }
    for arguments in ["messaging --groups 1 --loops 10", "pipe --round-trips 500"] {
        run_load(arguments)?;
    }
    workers.iter().try_for_each(Worker::must_run)
}

/// A load that says itself if it came to no end, or another scheduler had it.
fn run_load(arguments: &str) -> Result<()> {
    let output = Command::new("ekiden-load").args(arguments.split(' ')).output().context("cannot run ekiden-load")?;
    ensure!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Holds a policy until it is not the scheduler any more. Its last calls go to a file.
pub(crate) fn holds(policy: &str, params: &str, flight: &Path) -> Result<()> {
    let make: Make = match find(policy) {
        Some(linked) => linked.make,
        None if policy == Faulty::NAME => make::<Faulty>,
        None => bail!("there is no policy {policy}"),
    };
    let agent = Agent::start(&Config { params: params.to_owned(), ..Config::new(policy) }, make)?;
    let mut call_log = agent.call_log()?.context("there is no call log")?;
    let header = agent.header("agent-holds")?;
    loop {
        pause(20);
        if let Err(error) = agent.check() {
            dump(&mut call_log, &header, &agent.instances(), File::create(flight)?, true)?;
            println!("{error}");
            return Ok(());
        }
    }
}

#[derive(Serialize)]
struct Ended {
    how: &'static str,
    /// The longest time for which a task that rests for a millisecond did not run until the kernel began to take all tasks
    /// back, and in all. The kernel needs two grace periods for that. Meanwhile tasks take turns of 20 ms, and new processes, which are
    /// its own scheduler's already, go before all others.
    outage_ms: f64,
    gap_ms: f64,
    /// The longest gap while nothing went wrong.
    usual_gap_ms: f64,
    is_disabled: bool,
    reason: String,
}

/// Notes the longest time between two of its own steps, each a millisecond after the other.
struct Gaps {
    start: Instant,
    longest_us: Arc<AtomicU64>,
    last_us: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Gaps {
    fn watch() -> Self {
        let this =
            Self { start: Instant::now(), longest_us: Arc::default(), last_us: Arc::default(), over: Arc::default() };
        let (start, longest_us) = (this.start, this.longest_us.clone());
        let (last_us, over) = (this.last_us.clone(), this.over.clone());
        thread::spawn(move || {
            while !over.load(Acquire) {
                thread::sleep(Duration::from_millis(1));
                let now_us = start.elapsed().as_micros() as u64;
                longest_us.fetch_max(now_us - last_us.swap(now_us, Relaxed), Relaxed);
            }
        });
        this
    }

    fn take_ms(&self) -> f64 {
        self.longest_us.swap(0, Relaxed) as f64 / 1_000.0
    }

    /// The longest up to now, the one that is not over included.
    fn longest_ms(&self) -> f64 {
        let current_us = (self.start.elapsed().as_micros() as u64).saturating_sub(self.last_us.load(Relaxed));
        self.longest_us.load(Relaxed).max(current_us) as f64 / 1_000.0
    }
}

impl Drop for Gaps {
    fn drop(&mut self) {
        self.over.store(true, Release);
    }
}

fn hold(policy: &str, params: &str, flight: &Path) -> Result<Child> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["agent-holds", "--policy", policy, "--params", params, "--flight"])
        .arg(flight)
        .stdout(Stdio::piped())
        .spawn()?;
    let start = Instant::now();
    while sysfs::scheduler().is_none() {
        ensure!(child.try_wait()?.is_none(), "the agent has ended");
        ensure!(start.elapsed() < Duration::from_secs(120), "the agent has not started after two minutes");
        pause(10);
    }
    Ok(child)
}

/// In each of the ways in which an agent ends without meaning to.
pub(crate) fn ends(flight: &Path) -> Result<()> {
    load::be_anywhere()?;
    ends_by("killed", "wfq", "", Some(Signal::SIGKILL), flight)?;
    ends_by("stopped", "wfq", "", Some(Signal::SIGSTOP), flight)?;
    let planted = |fault: Fault| format!("call={} fault={} after=600", Call::TaskNew as u32, fault as u32);
    ends_by("loops", Faulty::NAME, &planted(Fault::Loop), None, flight)?;
    ends_by("panics", Faulty::NAME, &planted(Fault::Panic), None, flight)?;
    println!("{}", serde_json::json!({ "plain_gap_ms": gap_of_plain_ms()? }));
    Ok(())
}

/// What of that is the kernel's: the same gap where a plain BPF scheduler ends.
fn gap_of_plain_ms() -> Result<f64> {
    let plain = Baseline::start(Queues::PerCpu)?;
    let _workers = workers()?;
    let gaps = Gaps::watch();
    pause(400);
    gaps.take_ms();
    drop(plain);
    until_disabled();
    Ok(gaps.take_ms())
}

/// What a policy does at its end is up to new tasks; a busy CPU besides.
fn workers() -> Result<Vec<Worker>> {
    ["spin", "forks", "forks"].map(Worker::start).into_iter().collect()
}

/// Waits until sched_ext is off, and a little longer.
fn until_disabled() {
    let start = Instant::now();
    while sysfs::state().as_deref() != Some("disabled") && start.elapsed() < Duration::from_secs(60) {
        pause(5);
    }
    pause(100);
}

fn ends_by(how: &'static str, policy: &str, params: &str, signal: Option<Signal>, flight: &Path) -> Result<()> {
    let mut child = hold(policy, params, flight)?;
    let workers = workers()?;
    let gaps = &Gaps::watch();
    pause(100);
    gaps.take_ms();
    pause(300);
    let usual_gap_ms = gaps.take_ms();
    let outage_ms = thread::scope(|scope| {
        let (is_ready, ready) = mpsc::channel();
        // What looks is no task of the policy's, from before the end on.
        let outage_ms = scope.spawn(move || {
            let class = load::class_of(0, libc::SCHED_FIFO);
            is_ready.send(())?;
            class?;
            let start = Instant::now();
            while sysfs::scheduler().is_some() && start.elapsed() < Duration::from_secs(60) {
                thread::sleep(Duration::from_millis(1));
            }
            Ok(gaps.longest_ms())
        });
        ready.recv()?;
        if let Some(signal) = signal {
            kill(Pid::from_raw(child.id() as i32), signal)?;
        }
        outage_ms.join().unwrap_or_else(|_| bail!("the thread that looks has panicked"))
    })?;
    until_disabled();
    let gap_ms = gaps.take_ms();
    workers.iter().try_for_each(Worker::must_run).with_context(|| format!("after it was {how}"))?;
    let is_disabled = sysfs::state().as_deref() == Some("disabled");
    if signal == Some(Signal::SIGSTOP) {
        kill(Pid::from_raw(child.id() as i32), Signal::SIGCONT)?;
    }
    let mut reason = String::new();
    child.stdout.take().context("no pipe")?.read_to_string(&mut reason)?;
    child.wait()?;
    let ended = Ended { how, outage_ms, gap_ms, usual_gap_ms, is_disabled, reason: reason.trim().to_owned() };
    println!("{}", serde_json::to_string(&ended)?);
    Ok(())
}

/// What cannot be leaves the machine as it was.
pub(crate) fn refuses() -> Result<()> {
    let say = |what: &str, config: &Config| {
        let Err(error) = Agent::start(config, find("wfq").context("no wfq")?.make) else {
            bail!("{what}: this should not have worked")
        };
        println!("{}", serde_json::json!({ "what": what, "error": error.to_string() }));
        Ok(())
    };
    let wfq = Config::new("wfq");
    say("parameter out of range", &Config { params: "period_us=0".into(), ..wfq.clone() })?;
    say("not a power of two", &Config { messages: 3_000, ..wfq.clone() })?;
    ensure!(sysfs::scheduler().is_none(), "something is left behind");
    let running = Agent::start(&Config::new("fifo"), find("fifo").context("no fifo")?.make)?;
    say("a second agent", &wfq)?;
    running.check()?;
    Ok(())
}
