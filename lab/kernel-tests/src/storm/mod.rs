//! A storm: everything that happens to tasks, CPUs and policies, all at once, under stress-ng. No task may be lost, none may
//! wait too long, no process may refuse to stop, freeze or die, and sched_ext must never take the policy out.

mod breadth;
mod canary;
mod group;
mod steps;
mod watch;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io, mem,
    path::{Path, PathBuf},
    process::Child,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ekiden_guest_test::StormOfAll;
use ekiden_loader::{
    Beside, CallLog, Config, NumberedInstance, Session, Status, dump, header, loaded, unload, unload_all,
};
use ekiden_recording::Header;
use serde::Serialize;

use crate::{guest_tests::config, load::pause, upgrades::PingPong};

use self::{
    breadth::{Breadth, DAILY, WIDE},
    canary::Canary,
    group::{Group, start_in, until},
    steps::STEPS,
};

/// If a CPU runs not even a real-time thread for so long, or serves no timer, the console says what each CPU does.
const CPU_STILL: Duration = Duration::from_secs(2);

/// A slice of a policy that gives none, as `SCX_SLICE_DFL`.
const SLICE_MS: u64 = 20;

/// What sched_ext's watchdog bears.
const KERNEL_BEARS_MS: u64 = 30_000;

/// About how many threads of ours and of the kernel want a CPU at a time.
const OWN_THREADS: u64 = 16;

/// Processes that the fork bomb may have at once.
const BOMB_PROCESSES: u32 = 24;

#[derive(Serialize)]
struct StormReport {
    seed: u64,
    is_wide: bool,
    seconds: u64,
    cpus: u32,
    /// Threads of stress-ng at most, as each step found them.
    threads: u64,
    /// What happened how often, and how long it took at most.
    happened: BTreeMap<&'static str, u32>,
    took_ms_max: BTreeMap<&'static str, u64>,
    processes: u64,
    round_trips: u64,
    /// The longest time for which a runnable thread had no CPU: while its policy was the first that is asked, and while it was asked later.
    wait_ms: u64,
    wait_ms_later: u64,
    /// How long the latter may be.
    later_ms_max: u64,
    /// The longest wait of a real-time thread on each CPU, and of one that its timer wheel wakes.
    cpus_still_ms: Vec<u64>,
    wheels_still_ms: Vec<u64>,
    tasks_before: u64,
    tasks_after: u64,
    contract_violations: u64,
    last_contract_violation: Option<String>,
    unexpected_transitions: u64,
    last_unexpected_transition: Option<String>,
    bypassed_ms: u64,
    /// For how long interrupts were off at most, per kind of event, and because all CPUs stood still.
    off_ns_max: BTreeMap<String, u64>,
    still_running: bool,
    /// Why not, of the first policy of which that is so.
    why: Option<String>,
}

struct Storm {
    modules: PathBuf,
    breadth: &'static Breadth,
    threads: u64,
    rng: fastrand::Rng,
    sessions: Vec<Session>,
    /// The policy of our own threads is asked later than another one.
    is_later: bool,
    waits: Waited,
    took_ms_max: BTreeMap<&'static str, u64>,
    /// What the policies in these policy slots were asked lately.
    call_logs: BTreeMap<u32, (CallLog, (Header, Vec<NumberedInstance>))>,
    canaries: [Canary; 3],
    /// One for each CPU: if it waits, the CPU stands still, and no policy can do anything about it.
    of_cpus: Vec<Canary>,
    /// And one for each CPU's timer wheel.
    of_wheels: Vec<Canary>,
    groups: [Group; 2],
    cpus: u32,
    wait_ms_max: u64,
    /// The longest that sched_ext had all tasks in its own queue, as it does for a suspend. No policy decides who runs meanwhile.
    bypassed_ms: u64,
}

/// For how long a thread of ours that wanted a CPU had none at most, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Waited {
    /// While its policy was the first that is asked.
    first: u64,
    /// While it was asked later.
    later: u64,
}

/// From here on `ekiden.ko` measures for how long interrupts are off because of it.
pub(crate) fn measure_off_times() -> Result<()> {
    fs::write("/sys/module/ekiden/parameters/times", "1").context("cannot have times measured")
}

/// What it has measured, with the time for which all CPUs stood still.
pub(crate) fn off_times(status: &Status) -> BTreeMap<String, u64> {
    let stop = (status.stops.wait_ns_max > 0).then(|| ("stop".to_owned(), status.stops.wait_ns_max));
    status.off_ns_max.clone().into_iter().chain(stop).collect()
}

/// Runs the storm that is asked for. A seed repeats the steps and their order.
pub(crate) fn storm_of_all(modules: &Path, asked: StormOfAll) -> Result<()> {
    let StormOfAll { seconds, seed, is_wide, wait_ms_max } = asked;
    let breadth = if is_wide { &WIDE } else { &DAILY };
    ensure!(fs::exists("/bin/stress-ng")?, "there is no stress-ng in this guest");
    be_real_time()?;
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu +cpuset +pids").context("the groups lack controllers")?;
    // The measurements are the module's, and another storm may have been in this guest.
    unload_all(Duration::from_secs(10))?;
    let first = Session::start(&small(modules, "wfq", Beside::Nobody))?;
    measure_off_times()?;
    let tasks_before = Status::read()?.unwrap_or_default().counts.tasks;
    let cpus = thread::available_parallelism()?.get() as u32;
    let cpus = cpus.max(fs::read_dir("/sys/devices/system/cpu")?.flatten().filter(is_cpu).count() as u32);
    let stop = Arc::new(AtomicBool::new(false));
    let pairs = (0..2).map(|_| PingPong::start(&stop)).collect::<Result<Vec<_>>>()?;
    let mut storm = Storm {
        modules: modules.to_owned(),
        breadth,
        threads: 0,
        rng: fastrand::Rng::with_seed(seed),
        sessions: Vec::new(),
        is_later: false,
        waits: Waited::default(),
        took_ms_max: BTreeMap::new(),
        call_logs: BTreeMap::new(),
        canaries: [0, 1, 10].map(|ms| Canary::start(&stop, Duration::from_millis(ms))),
        of_cpus: (0..cpus).map(|cpu| Canary::on(cpu, &stop)).collect(),
        of_wheels: (0..cpus).map(|cpu| Canary::of_wheel(cpu, &stop)).collect::<Result<_>>()?,
        groups: [Group::make("storm-1", breadth.patience)?, Group::make("storm-2", breadth.patience)?],
        cpus,
        wait_ms_max,
        bypassed_ms: 0,
    };
    let waits = |canaries: &[Canary]| canaries.iter().map(Canary::waits).collect();
    watch::start(waits(&storm.canaries), Duration::from_millis(wait_ms_max), &stop);
    watch::start(waits(&storm.of_cpus), CPU_STILL, &stop);
    watch::start(waits(&storm.of_wheels), CPU_STILL, &stop);
    storm.join(first)?;
    for group in &storm.groups {
        group.set("cpu.weight", &DAILY.weights.start.to_string())?;
    }
    let huge_pages = if breadth.has_huge_pages { "always" } else { "never" };
    fs::write("/sys/kernel/mm/transparent_hugepage/enabled", huge_pages).context("huge pages cannot be switched")?;
    let forks_before = forks()?;
    let stress = |group: &Group, what: &str| {
        let time = format!("{seconds}s");
        let mut arguments: Vec<&str> = what.split(' ').collect();
        arguments.extend(["--quiet", "--oomable", "--timeout", &time]);
        start_in(group, "stress-ng", &arguments)
    };
    let stressors = storm.groups.iter().zip(breadth.stressors).map(|(group, what)| stress(group, what));
    let stressors = stressors.collect::<Result<Vec<_>>>()?;
    let unjudged = breadth.unjudged.map(|what| stress(&storm.groups[0], what)).transpose()?;
    let happened = match storm.blow(seconds) {
        Ok(happened) => happened,
        Err(error) => {
            // Where timers came late, these say whether the kernel held them back, and whether it served them.
            fs::copy("/proc/timer_list", "/host/timers.txt")?;
            for look in 0..2 {
                fs::copy("/proc/softirqs", format!("/host/softirqs-{look}.txt"))?;
                fs::copy("/proc/interrupts", format!("/host/interrupts-{look}.txt"))?;
                pause(200);
            }
            storm.save_call_logs()?;
            storm.say_what_stood_still()?;
            return Err(error.context(format!("seed {seed}")));
        }
    };
    let ended = calm_down(&storm.groups, stressors, unjudged, breadth.patience * 3);
    if let Err(error) = ended.and_then(|()| storm.all_is_well("the end")) {
        fs::write("/host/waits.txt", watch::tasks()?)?;
        storm.save_call_logs()?;
        return Err(error.context(format!("seed {seed}, at the end")));
    }
    let processes = forks()? - forks_before;
    let (cpus_still_ms, wheels_still_ms) = (worst_ms(&storm.of_cpus), worst_ms(&storm.of_wheels));
    let later_ms_max = storm.later_ms_max();
    let Storm { sessions, groups, canaries, of_cpus, of_wheels, bypassed_ms, threads, waits, took_ms_max, .. } = storm;
    groups.into_iter().try_for_each(Group::end)?;
    stop.store(true, Relaxed);
    let round_trips = pairs.into_iter().map(PingPong::end).sum::<Result<u64>>()?;
    canaries.into_iter().chain(of_cpus).chain(of_wheels).try_for_each(Canary::end)?;
    pause(200);
    let status = Status::read()?.unwrap_or_default();
    let off_ns_max = off_times(&status);
    let why = sessions.iter().find_map(|session| session.check().err()).map(|error| error.to_string());
    let report = StormReport {
        seed,
        is_wide,
        seconds,
        cpus,
        threads,
        happened,
        took_ms_max,
        processes,
        round_trips,
        wait_ms: waits.first,
        wait_ms_later: waits.later,
        later_ms_max,
        cpus_still_ms,
        wheels_still_ms,
        tasks_before,
        tasks_after: status.counts.tasks,
        contract_violations: status.counts.contract_violations,
        last_contract_violation: status.counts.last_contract_violation,
        bypassed_ms,
        unexpected_transitions: status.counts.unexpected_transitions,
        last_unexpected_transition: status.policies.iter().find_map(|policy| policy.last_unexpected_transition.clone()),
        off_ns_max,
        still_running: why.is_none(),
        why,
    };
    println!("{}", serde_json::to_string(&report)?);
    drop(sessions);
    Ok(())
}

/// Waits until all of stress-ng has ended, wherever its processes are by now.
fn calm_down(groups: &[Group], stressors: Vec<Child>, unjudged: Option<Child>, patience: Duration) -> Result<()> {
    let ended = |child: &mut Child| {
        let ran_us = || groups.iter().map(Group::ran_us).sum();
        until(patience, ran_us, || Ok(child.try_wait()?.is_some()))?;
        anyhow::Ok(child.wait()?.code())
    };
    for (number, mut child) in stressors.into_iter().enumerate() {
        let status = ended(&mut child).with_context(|| format!("stressors of group {number}"))?;
        ensure!(status == Some(0), "stress-ng found something wrong: {status:?}");
    }
    unjudged.map_or(Ok(()), |mut child| ended(&mut child).map(drop).context("stressor of threads that come and go"))
}

fn is_cpu(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    name.to_str().and_then(|name| name.strip_prefix("cpu")).is_some_and(|rest| rest.parse::<u32>().is_ok())
}

fn small(modules: &Path, policy: &str, beside: Beside) -> Config {
    Config { beside, max_tasks: 4096, arena_bytes: 8 << 20, call_log_records: 1 << 16, ..config(modules, policy) }
}

/// We make the weather, whatever the policies do to us; our children do not.
pub(crate) fn be_real_time() -> Result<()> {
    set_class(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1).context("cannot become real-time")
}

fn set_class(pid: i32, class: i32, priority: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: plain system call with a parameter on the stack.
    match unsafe { libc::sched_setscheduler(pid, class, &raw const param) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// So that the console tells what happened when.
fn say(what: &str) -> Result<()> {
    Ok(fs::write("/dev/kmsg", format!("storm: {what}\n"))?)
}

/// How many processes and threads there have been since boot.
fn forks() -> Result<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().find_map(|line| line.strip_prefix("processes "));
    line.and_then(|count| count.trim().parse().ok()).context("/proc/stat does not count processes")
}

/// Waits for a child for a limited time, and returns its exit code.
fn wait(child: &mut Child, patience: Duration) -> Result<Option<i32>> {
    let start = Instant::now();
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(status.code()),
            None if start.elapsed() > patience => bail!("a process does not end"),
            None => pause(50),
        }
    }
}

/// For how long each of them waited at most.
fn worst_ms(canaries: &[Canary]) -> Vec<u64> {
    canaries.iter().map(Canary::worst_ms).collect()
}

/// Passes over errors about a process that may be gone, or may refuse.
fn gone_or<T>(_: nix::Result<T>) {}

impl Storm {
    /// Lets one thing happen after the other, each round in another order, and everything at least once. How often each did.
    fn blow(&mut self, seconds: u64) -> Result<BTreeMap<&'static str, u32>> {
        let mut happened = BTreeMap::new();
        let end = Instant::now() + Duration::from_secs(seconds);
        loop {
            let mut steps = STEPS.to_vec();
            self.rng.shuffle(&mut steps);
            for (name, step) in steps {
                if Instant::now() > end && happened.len() == STEPS.len() {
                    return Ok(happened);
                }
                say(name)?;
                let begin = Instant::now();
                step(self).and_then(|()| self.all_is_well(name)).with_context(|| {
                    let (cpus, wheels) = (worst_ms(&self.of_cpus), worst_ms(&self.of_wheels));
                    format!("{name}, after {happened:?}; CPUs stood still for {cpus:?} ms at most, their timer wheels for {wheels:?} ms")
                })?;
                *happened.entry(name).or_default() += 1;
                let took_ms = self.took_ms_max.entry(name).or_default();
                *took_ms = (*took_ms).max(begin.elapsed().as_millis() as u64);
                pause(20);
            }
        }
    }

    /// If a CPU ran not even a real-time thread, or served no timer of its wheel, and no interrupt was off for that long because of us, the storm
    /// says nothing of policies.
    fn say_what_stood_still(&self) -> Result<()> {
        let longest = |canaries| Duration::from_millis(worst_ms(canaries).into_iter().max().unwrap_or_default());
        let (still, wheel) = (longest(&self.of_cpus), longest(&self.of_wheels));
        let off = off_times(&Status::read()?.unwrap_or_default()).into_values().max().unwrap_or_default();
        if still.max(wheel) > CPU_STILL && Duration::from_nanos(off) < CPU_STILL / 10 {
            let words = format!(
                "a CPU that ran not even a real-time thread for {still:?}, or served its timer wheel {wheel:?} late; because of us, \
                 interrupts were off for {off} ns"
            );
            fs::write("/host/stood-still.txt", words)?;
        }
        Ok(())
    }

    fn all_is_well(&mut self, step: &str) -> Result<()> {
        self.threads = self.threads.max(self.groups.iter().map(Group::threads).sum());
        self.sessions.iter().try_for_each(Session::check)?;
        let policies = Status::read()?.unwrap_or_default().policies;
        for policy in &policies {
            let wrong = policy.counts.last_contract_violation.as_ref().or(policy.last_unexpected_transition.as_ref());
            ensure!(wrong.is_none(), "{} in policy slot {}: {}", policy.policy, policy.slot, wrong.unwrap());
        }
        // The step may have changed the order.
        let is_later = policies.first().is_some_and(|first| !first.default);
        let was_later = mem::replace(&mut self.is_later, is_later);
        let waits = self.canaries.each_ref().map(Canary::take_worst_ms);
        let worst_ms = waits.into_iter().max().unwrap_or_default();
        let (worst, ms_max) = if is_later || was_later {
            let ms_max = self.later_ms_max();
            (&mut self.waits.later, ms_max)
        } else {
            (&mut self.waits.first, self.wait_ms_max)
        };
        *worst = worst_ms.max(*worst);
        let bypassed_ms = self.bypassed_ms;
        ensure!(
            worst_ms <= ms_max + bypassed_ms,
            "after {step} a thread of ours had no CPU for {worst_ms} ms, longer than {ms_max} ms, of which policies were bypassed for \
             {bypassed_ms} ms at most; one that spins, and two that nap for 1 and 10 ms: {waits:?}; policies: {:?}",
            policies.iter().map(|policy| (&policy.policy, policy.default)).collect::<Vec<_>>()
        );
        Ok(())
    }

    /// For how long a thread may have no CPU whose policy is asked later than another one and is first come, first served: every other thread has a
    /// slice before it, and all of them share an eighth of the one CPU that may be left.
    fn later_ms_max(&self) -> u64 {
        let threads = self.threads + u64::from(BOMB_PROCESSES) + OWN_THREADS;
        self.wait_ms_max.max((8 * SLICE_MS * threads).min(KERNEL_BEARS_MS))
    }

    /// A policy has come.
    fn join(&mut self, session: Session) -> Result<()> {
        let (slot, status) = (session.slot(), Status::read()?.unwrap_or_default());
        let policy = status.policies.iter().find(|policy| policy.slot == slot).context("a policy came and went")?;
        self.call_logs.insert(slot, (CallLog::open(policy)?, header(Some(slot), "a storm")?));
        self.sessions.push(session);
        Ok(())
    }

    /// To see later what went wrong.
    fn save_call_logs(&mut self) -> Result<()> {
        for (slot, (call_log, then)) in &mut self.call_logs {
            let now = header(Some(*slot), "a storm").ok();
            let (header, instances) = now.as_ref().unwrap_or(then);
            dump(call_log, header, instances, File::create(format!("/host/slot-{slot}.ekirec"))?, true)?;
        }
        Ok(())
    }
}

/// The modules of policies that do not run.
pub(crate) fn unload_unused() -> Result<()> {
    let policies = Status::read()?.unwrap_or_default().policies;
    let is_used = |name: &String| name == "ekiden" || policies.iter().any(|policy| policy.module == *name);
    for name in loaded().into_iter().filter(|name| !is_used(name)) {
        unload(&name, Duration::from_secs(10))?;
    }
    Ok(())
}
