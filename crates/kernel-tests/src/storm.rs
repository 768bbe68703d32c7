//! A storm: everything that happens to tasks, CPUs and policies, all at once, under stress-ng. No task may be lost, none may
//! wait too long, no process may refuse to stop, freeze or die, and sched_ext must never throw us out.

use std::{
    collections::BTreeMap,
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ekiden_loader::{
    Beside, Config, Inherit, LoadError, Session, Status, Succession, Who, choose, load_copy, loaded, unload,
};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::Serialize;

use crate::{load::pause, trials::config, upgrades::PingPong};

const POLICIES: [&str; 4] = ["fifo", "wfq", "cfs", "eevdf"];

/// How long a process may take to stop, to freeze or to die when it is told so.
const PATIENCE: Duration = Duration::from_secs(20);

/// What stress-ng does. None of it executes PAUSE in a loop or programs timers all the time: either takes an emulator for ever.
const STRESSORS: &[&str] = &[
    "--fork 1 --switch 1 --futex 1 --pipe 1 --affinity 1",
    "--cpu 2 --cpu-method int64 --cpu-load 80 --nanosleep 1 --poll 1 --pthread 1 --sem 1",
];

/// Nice values that are given.
const NICE: Range<i32> = -5..11;

/// Processes that the fork bomb may have at once.
const BOMB_PROCESSES: u32 = 24;

#[derive(Serialize)]
struct StormReport {
    seed: u64,
    seconds: u64,
    cpus: u32,
    /// What happened how often.
    happened: BTreeMap<&'static str, u32>,
    /// Whether the whole machine could be frozen, as for a suspend.
    machine_frozen: u32,
    processes: u64,
    round_trips: u64,
    /// The longest time for which somebody who wanted a CPU had none, of those who look at the clock all the time and of those
    /// who sleep in between.
    wait_ms_busy: u64,
    wait_ms_sleeper: u64,
    tasks_before: u64,
    tasks_after: u64,
    mistakes: u64,
    surprises: u64,
    last_surprise: Option<String>,
    still_running: bool,
}

/// Threads that want a CPU and note how long they had none.
struct Canary {
    worst_ns: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Canary {
    fn start(stop: &Arc<AtomicBool>, nap: Duration) -> Self {
        let worst_ns = Arc::new(AtomicU64::new(0));
        let (worst, stop) = (worst_ns.clone(), stop.clone());
        let thread = thread::spawn(move || {
            while !stop.load(Relaxed) {
                let before = Instant::now();
                if !nap.is_zero() {
                    thread::sleep(nap);
                }
                worst.fetch_max((before.elapsed().saturating_sub(nap)).as_nanos() as u64, Relaxed);
            }
        });
        Self { worst_ns, thread }
    }

    fn end(self) -> Result<u64> {
        self.thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
        Ok(self.worst_ns.load(Relaxed) / 1_000_000)
    }
}

/// A control group of the storm.
struct Group(PathBuf);

impl Group {
    fn make(name: &str) -> Result<Self> {
        let group = Self(Path::new("/sys/fs/cgroup").join(name));
        match fs::create_dir(&group.0) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error).context("cannot make a group")?,
            _ => Ok(group),
        }
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        fs::write(self.0.join(file), value).with_context(|| format!("cannot write {value} to {file}"))
    }

    /// The processes in it, with those in groups below it: none.
    fn processes(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Waits until a line of `cgroup.events` is there.
    fn must_say(&self, line: &str) -> Result<()> {
        let start = Instant::now();
        loop {
            let events = fs::read_to_string(self.0.join("cgroup.events"))?;
            if events.lines().any(|other| other == line) {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                let of = |pid: i32, file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
                let whose = |pid: i32| format!("{}\n{}{}", of(pid, "status"), of(pid, "sched"), of(pid, "stack"));
                let left: Vec<String> = self.processes().into_iter().map(whose).collect();
                bail!("no `{line}` for {PATIENCE:?}, a task is lost:\n{}", left.join("\n"));
            }
            pause(5);
        }
    }

    /// Everybody in it dies, and does so soon.
    fn end(self) -> Result<()> {
        self.set("cgroup.kill", "1")?;
        self.must_say("populated 0")
    }
}

/// Starts something in a group.
fn start_in(group: &Group, program: &str, arguments: &[&str]) -> Result<Child> {
    let join = "echo 0 > $0/cgroup.procs && exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", join]).arg(&group.0).arg(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().with_context(|| format!("cannot start {program}"))
}

struct Storm {
    modules: PathBuf,
    rng: fastrand::Rng,
    sessions: Vec<Session>,
    groups: [Group; 2],
    cpus: u32,
    machine_frozen: u32,
}

type Step = fn(&mut Storm) -> Result<()>;

const STEPS: &[(&str, Step)] = &[
    ("taskset", Storm::taskset),
    ("nice", Storm::nice),
    ("real_time", Storm::real_time),
    ("group_move", Storm::group_move),
    ("group_limits", Storm::group_limits),
    ("cpuset", Storm::cpuset),
    ("cpu_away", Storm::cpu_away),
    ("one_cpu", Storm::one_cpu),
    ("frozen_group", Storm::freeze_group),
    ("stopped_processes", Storm::stop_processes),
    ("frozen_machine", Storm::freeze_machine),
    ("fork_bomb", Storm::fork_bomb),
    ("come", Storm::come),
    ("choose", Storm::choose),
    ("take_over", Storm::take_over),
    ("order", Storm::order),
    ("choose_again", Storm::choose),
    ("go", Storm::go),
];

/// Runs the storm for so many seconds of the guest's time. The same seed does the same in the same order.
pub(crate) fn storm_of_all(modules: &Path, seconds: u64, seed: u64) -> Result<()> {
    ensure!(fs::exists("/bin/stress-ng")?, "there is no stress-ng in this guest");
    be_real_time()?;
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu +cpuset +pids").context("the groups lack controllers")?;
    let first = Session::start(&small(modules, "wfq", Beside::Nobody))?;
    let tasks_before = Status::read()?.unwrap_or_default().counts.tasks;
    let cpus = thread::available_parallelism()?.get() as u32;
    let cpus = cpus.max(fs::read_dir("/sys/devices/system/cpu")?.flatten().filter(is_cpu).count() as u32);
    let stop = Arc::new(AtomicBool::new(false));
    let pairs = (0..2).map(|_| PingPong::start(&stop)).collect::<Result<Vec<_>>>()?;
    let busy = Canary::start(&stop, Duration::ZERO);
    let sleepers = [1, 10].map(|ms| Canary::start(&stop, Duration::from_millis(ms)));
    let mut storm = Storm {
        modules: modules.to_owned(),
        rng: fastrand::Rng::with_seed(seed),
        sessions: vec![first],
        groups: [Group::make("storm-1")?, Group::make("storm-2")?],
        cpus,
        machine_frozen: 0,
    };
    let forks_before = forks()?;
    let mut stressors = Vec::new();
    for (group, stressors_of) in storm.groups.iter().zip(STRESSORS) {
        let time = format!("{seconds}s");
        let mut arguments: Vec<&str> = stressors_of.split(' ').collect();
        arguments.extend(["--quiet", "--oomable", "--timeout", &time]);
        stressors.push(start_in(group, "stress-ng", &arguments)?);
    }
    let mut happened = BTreeMap::<_, u32>::new();
    let end = Instant::now() + Duration::from_secs(seconds);
    'rounds: loop {
        let mut steps = STEPS.to_vec();
        storm.rng.shuffle(&mut steps);
        for (name, step) in steps {
            if Instant::now() > end {
                break 'rounds;
            }
            // So that the console tells what happened when.
            fs::write("/dev/kmsg", format!("storm: {name}\n"))?;
            step(&mut storm).with_context(|| format!("{name}, seed {seed}, after {happened:?}"))?;
            *happened.entry(name).or_default() += 1;
            for session in &storm.sessions {
                session.check().with_context(|| format!("{name}, seed {seed}, after {happened:?}"))?;
            }
            pause(20);
        }
    }
    for mut child in stressors {
        let status = wait(&mut child)?;
        ensure!(status == Some(0), "stress-ng found something wrong: {status:?}");
    }
    let processes = forks()? - forks_before;
    let Storm { sessions, groups, machine_frozen, .. } = storm;
    groups.into_iter().try_for_each(Group::end)?;
    stop.store(true, Relaxed);
    let round_trips = pairs.into_iter().map(PingPong::end).sum::<Result<u64>>()?;
    let wait_ms_busy = busy.end()?;
    let wait_ms_sleeper = sleepers.into_iter().map(Canary::end).collect::<Result<Vec<_>>>()?.into_iter().max();
    pause(200);
    let status = Status::read()?.unwrap_or_default();
    let report = StormReport {
        seed,
        seconds,
        cpus,
        happened,
        machine_frozen,
        processes,
        round_trips,
        wait_ms_busy,
        wait_ms_sleeper: wait_ms_sleeper.unwrap_or_default(),
        tasks_before,
        tasks_after: status.counts.tasks,
        mistakes: status.counts.mistakes,
        surprises: status.counts.surprises,
        last_surprise: status.policies.iter().find_map(|policy| policy.last_surprise.clone()),
        still_running: sessions.iter().all(Session::is_running),
    };
    println!("{}", serde_json::to_string(&report)?);
    drop(sessions);
    Ok(())
}

fn is_cpu(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    name.to_str().and_then(|name| name.strip_prefix("cpu")).is_some_and(|rest| rest.parse::<u32>().is_ok())
}

fn small(modules: &Path, policy: &str, beside: Beside) -> Config {
    Config { beside, max_tasks: 4096, arena_bytes: 8 << 20, tape_records: 1 << 10, ..config(modules, policy) }
}

/// We make the weather, whatever the policies do to us; our children do not.
fn be_real_time() -> Result<()> {
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

/// How many processes and threads there have been since boot.
fn forks() -> Result<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().find_map(|line| line.strip_prefix("processes "));
    line.and_then(|count| count.trim().parse().ok()).context("/proc/stat does not count processes")
}

/// Waits until a child has ended, but not for ever. Its code.
fn wait(child: &mut Child) -> Result<Option<i32>> {
    let start = Instant::now();
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(status.code()),
            None if start.elapsed() > PATIENCE * 3 => bail!("a process does not end"),
            None => pause(50),
        }
    }
}

/// What is tried on a process that may be gone, or may not like it.
fn gone_or<T>(_: nix::Result<T>) {}

impl Storm {
    fn group(&mut self) -> usize {
        self.rng.usize(0..2)
    }

    /// Some processes of the storm.
    fn some(&mut self) -> Vec<i32> {
        let mut processes: Vec<i32> = self.groups.iter().flat_map(Group::processes).collect();
        self.rng.shuffle(&mut processes);
        processes.truncate(4);
        processes
    }

    fn session(&mut self) -> usize {
        self.rng.usize(0..self.sessions.len())
    }

    fn taskset(&mut self) -> Result<()> {
        for pid in self.some() {
            let mut cpus = CpuSet::new();
            let wanted = self.rng.u32(1..1 << self.cpus);
            (0..self.cpus).filter(|cpu| wanted >> cpu & 1 == 1).try_for_each(|cpu| cpus.set(cpu as usize))?;
            gone_or(sched_setaffinity(Pid::from_raw(pid), &cpus));
        }
        Ok(())
    }

    /// Not over the whole range: at nice 19 a task has a sixth of a thousandth of what one at nice -20 has, and waits for longer than
    /// sched_ext allows, because the policies here are as fair as they are asked to be.
    fn nice(&mut self) -> Result<()> {
        for pid in self.some() {
            // SAFETY: plain system call.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, pid as u32, self.rng.i32(NICE)) };
        }
        Ok(())
    }

    /// Out of the policies' care and back.
    fn real_time(&mut self) -> Result<()> {
        for pid in self.some() {
            if set_class(pid, libc::SCHED_FIFO, 1).is_ok() {
                // It may have gone since.
                let _ = set_class(pid, libc::SCHED_OTHER, 0);
            }
        }
        Ok(())
    }

    fn group_move(&mut self) -> Result<()> {
        for pid in self.some() {
            let to = self.group();
            // It may have gone.
            let _ = self.groups[to].set("cgroup.procs", &pid.to_string());
        }
        Ok(())
    }

    fn group_limits(&mut self) -> Result<()> {
        let group = self.group();
        self.groups[group].set("cpu.weight", &self.rng.u32(1..1000).to_string())?;
        self.groups[group].set("cpu.max", &format!("{} 50000", self.rng.u32(10_000..100_000)))?;
        pause(100);
        self.groups[group].set("cpu.max", "max")
    }

    fn cpuset(&mut self) -> Result<()> {
        let (group, cpu) = (self.group(), self.rng.u32(0..self.cpus));
        self.groups[group].set("cpuset.cpus", &cpu.to_string())?;
        pause(50);
        self.groups[group].set("cpuset.cpus", &format!("0-{}", self.cpus - 1))
    }

    fn set_online(&self, cpu: u32, online: bool) -> Result<()> {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
        fs::write(path, if online { "1" } else { "0" }).with_context(|| format!("CPU {cpu}, online: {online}"))
    }

    fn cpu_away(&mut self) -> Result<()> {
        let cpu = self.rng.u32(1..self.cpus);
        self.set_online(cpu, false)?;
        pause(self.rng.u64(0..50));
        self.set_online(cpu, true)
    }

    fn one_cpu(&mut self) -> Result<()> {
        (1..self.cpus).try_for_each(|cpu| self.set_online(cpu, false))?;
        pause(100);
        (1..self.cpus).try_for_each(|cpu| self.set_online(cpu, true))
    }

    fn freeze_group(&mut self) -> Result<()> {
        let group = self.group();
        self.groups[group].set("cgroup.freeze", "1")?;
        self.groups[group].must_say("frozen 1")?;
        pause(self.rng.u64(0..100));
        self.groups[group].set("cgroup.freeze", "0")?;
        self.groups[group].must_say("frozen 0")
    }

    fn stop_processes(&mut self) -> Result<()> {
        let processes: Vec<i32> = self.groups.iter().flat_map(Group::processes).collect();
        let tell = |signal| processes.iter().for_each(|pid| gone_or(kill(Pid::from_raw(*pid), signal)));
        tell(Signal::SIGSTOP);
        pause(self.rng.u64(0..100));
        tell(Signal::SIGCONT);
        Ok(())
    }

    /// As for a suspend: all processes freeze, and sched_ext bypasses policies. What then becomes of devices is not our concern:
    /// one that cannot be suspended ends it, and an alarm clock does otherwise.
    fn freeze_machine(&mut self) -> Result<()> {
        const ALARM: &str = "/sys/class/rtc/rtc0/wakealarm";
        // None was set.
        let _ = fs::write(ALARM, "0");
        if fs::write(ALARM, "+2").is_ok() {
            // It may be refused, as said.
            let _ = fs::write("/sys/power/state", "freeze");
            self.machine_frozen += 1;
        }
        Ok(())
    }

    /// Processes that make more of themselves, as many as may be, until all are killed.
    fn fork_bomb(&mut self) -> Result<()> {
        let bomb = Group::make("bomb")?;
        bomb.set("pids.max", &BOMB_PROCESSES.to_string())?;
        let mut first = start_in(&bomb, "sh", &["-c", "b() { b & b & wait; }; b 2>/dev/null"])?;
        bomb.must_say("populated 1")?;
        pause(150);
        bomb.end()?;
        wait(&mut first).map(drop)
    }

    fn policy(&mut self) -> &'static str {
        POLICIES[self.rng.usize(0..POLICIES.len())]
    }

    fn come(&mut self) -> Result<()> {
        if self.sessions.len() < 3 {
            let beside = if self.rng.bool() { Beside::Others } else { Beside::OthersAsDefault };
            let policy = self.policy();
            self.sessions.push(Session::start(&small(&self.modules, policy, beside))?);
        }
        Ok(())
    }

    /// Whichever, also the one that came first, but never the last; and its module with it.
    fn go(&mut self) -> Result<()> {
        if self.sessions.len() > 1 {
            let gone = self.session();
            drop(self.sessions.swap_remove(gone));
        }
        unload_unused()
    }

    fn choose(&mut self) -> Result<()> {
        let (session, inherits) = (self.session(), self.rng.bool());
        let seat = self.sessions[session].seat();
        for pid in self.some() {
            match choose(
                &Who::Process(pid),
                self.rng.bool().then_some(seat),
                if inherits { Inherit::Yes } else { Inherit::No },
            ) {
                // Processes end while one looks at them.
                Ok(_) | Err(LoadError::Nobody | LoadError::User(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// A policy, another one or a copy of the same, takes over.
    fn take_over(&mut self) -> Result<()> {
        let (policy, session) = (self.policy(), self.session());
        let module = load_copy(&self.modules.join(format!("ekiden_{policy}.ko")))?;
        let session = &self.sessions[session];
        let succession = Succession { seat: Some(session.seat()), module: Some(&module), ..Succession::default() };
        session.control().upgrade(&succession)?;
        unload_unused()
    }

    fn order(&mut self) -> Result<()> {
        let mut seats: Vec<u32> = self.sessions.iter().map(Session::seat).collect();
        self.rng.shuffle(&mut seats);
        Ok(self.sessions[0].control().reorder(&seats)?)
    }
}

/// The modules of policies that do not run.
fn unload_unused() -> Result<()> {
    let policies = Status::read()?.unwrap_or_default().policies;
    let is_used = |name: &String| name == "ekiden" || policies.iter().any(|policy| policy.module == *name);
    for name in loaded().into_iter().filter(|name| !is_used(name)) {
        unload(&name, Duration::from_secs(10))?;
    }
    Ok(())
}
