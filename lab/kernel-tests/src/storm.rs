//! A storm: everything that happens to tasks, CPUs and policies, all at once, under stress-ng. No task may be lost, none may
//! wait too long, no process may refuse to stop, freeze or die, and sched_ext must never throw us out.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    hint::spin_loop,
    io,
    ops::Range,
    os::fd::AsRawFd,
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
    Beside, Config, Inherit, LoadError, Session, Status, Succession, Tape, Who, choose, dump, header, load_copy,
    loaded, unload,
};
use ekiden_policies::NAMES as POLICIES;
use ekiden_recording::Header;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::Serialize;

use crate::{
    load::pause,
    trials::{config, module_of},
    upgrades::PingPong,
};

/// How long a process may take to stop, to freeze or to die when it is told so.
const PATIENCE: Duration = Duration::from_secs(20);

/// What stress-ng does. None of it executes PAUSE in a loop or programs timers all the time: either takes an emulator for ever.
/// Not `pthread`, whose last thread may outlive what it reads. Some forty threads in all. No more than ten of a group want a CPU at a
/// time: those of `affinity` sleep 20 ms after each change.
const STRESSORS: &[&str] = &[
    "--fork 2 --switch 1 --futex 1 --pipe 1 --affinity 1 --affinity-sleep 20000000",
    "--cpu 2 --cpu-method int64 --cpu-load 80 --nanosleep 1 --nanosleep-threads 2 --poll 1 --sem 1",
];

/// Nice values and weights of groups that are given: not all there are, because what makes tasks wait multiplies. While one CPU is
/// left, a policy that is asked later has 12 % of it. A task that has had a tick of 4 ms there waits until all others have had as
/// much for their weight: two seconds if sixty tasks of nice 0 are owed as much as it, and five if it has half of their weight. That is as it
/// should be, and a policy is taken out after eight. So a group weighs as much as the tasks in it that want a CPU.
const NICE: Range<i32> = -2..3;
const WEIGHTS: Range<u32> = 500..1000;

/// Processes that the fork bomb may have at once.
const BOMB_PROCESSES: u32 = 24;

#[derive(Serialize)]
struct StormReport {
    seed: u64,
    seconds: u64,
    cpus: u32,
    /// What happened how often.
    happened: BTreeMap<&'static str, u32>,
    processes: u64,
    round_trips: u64,
    /// The longest time for which somebody who wanted a CPU had none, of those who look at the clock all the time and of those
    /// who sleep in between.
    wait_ms_busy: u64,
    wait_ms_sleeper: u64,
    tasks_before: u64,
    tasks_after: u64,
    mistakes: u64,
    last_mistake: Option<String>,
    surprises: u64,
    last_surprise: Option<String>,
    bypassed_ms: u64,
    /// For how long interrupts were off at most, per kind of event, and because all CPUs stood still.
    off_ns_max: BTreeMap<String, u64>,
    still_running: bool,
}

/// See `BEATS_PER_HINT` in `pulse.rs`: without the hint one who looks at the clock all the time kept an emulator's other CPUs waiting for
/// the lock of its CPU's timers for 21 s, one of them with its run queue locked, until RCU complained of a stall.
const LOOKS_PER_HINT: u64 = 256;

/// A thread that wants a CPU, and notes how long it had none.
struct Canary {
    begin: Instant,
    notes: Arc<Notes>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Notes {
    worst_ns: AtomicU64,
    /// When it wanted one, since it began.
    since_ns: AtomicU64,
}

impl Canary {
    fn start(stop: &Arc<AtomicBool>, nap: Duration) -> Self {
        let (begin, notes) = (Instant::now(), Arc::new(Notes::default()));
        let (noted, stop) = (notes.clone(), stop.clone());
        let thread = thread::spawn(move || {
            for look in (1_u64..).take_while(|_| !stop.load(Relaxed)) {
                let since = begin.elapsed() + nap;
                noted.since_ns.store(since.as_nanos() as u64, Relaxed);
                if !nap.is_zero() {
                    thread::sleep(nap);
                } else if look % LOOKS_PER_HINT == 0 {
                    spin_loop();
                }
                noted.worst_ns.fetch_max(begin.elapsed().saturating_sub(since).as_nanos() as u64, Relaxed);
            }
        });
        Self { begin, notes, thread }
    }

    /// Up to now, even if it still waits.
    fn worst_ms(&self) -> u64 {
        let now_ns = self.begin.elapsed().as_nanos() as u64;
        let waits_ns = now_ns.saturating_sub(self.notes.since_ns.load(Relaxed));
        self.notes.worst_ns.load(Relaxed).max(waits_ns) / 1_000_000
    }

    fn end(self) -> Result<u64> {
        let worst_ms = self.worst_ms();
        self.thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
        Ok(worst_ms)
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
    /// What the policies in these seats were asked lately.
    tapes: BTreeMap<u32, (Tape, Header)>,
    canaries: [Canary; 3],
    groups: [Group; 2],
    cpus: u32,
    wait_ms_max: u64,
    /// The longest that sched_ext had all tasks in its own queue, as it does for a suspend. No policy decides who runs meanwhile.
    bypassed_ms: u64,
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

/// From here on `ekiden.ko` measures for how long interrupts are off because of it.
pub(crate) fn measure_off_times() -> Result<()> {
    fs::write("/sys/module/ekiden/parameters/times", "1").context("cannot have times measured")
}

/// What it has measured, with the time for which all CPUs stood still.
pub(crate) fn off_times(status: &Status) -> BTreeMap<String, u64> {
    let stop = (status.stops.wait_ns_max > 0).then(|| ("stop".to_owned(), status.stops.wait_ns_max));
    status.off_ns_max.clone().into_iter().chain(stop).collect()
}

/// Runs the storm for so many seconds of the guest's time. The same seed does the same in the same order.
pub(crate) fn storm_of_all(modules: &Path, seconds: u64, seed: u64, wait_ms_max: u64) -> Result<()> {
    ensure!(fs::exists("/bin/stress-ng")?, "there is no stress-ng in this guest");
    be_real_time()?;
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu +cpuset +pids").context("the groups lack controllers")?;
    let first = Session::start(&small(modules, "wfq", Beside::Nobody))?;
    measure_off_times()?;
    let tasks_before = Status::read()?.unwrap_or_default().counts.tasks;
    let cpus = thread::available_parallelism()?.get() as u32;
    let cpus = cpus.max(fs::read_dir("/sys/devices/system/cpu")?.flatten().filter(is_cpu).count() as u32);
    let stop = Arc::new(AtomicBool::new(false));
    let pairs = (0..2).map(|_| PingPong::start(&stop)).collect::<Result<Vec<_>>>()?;
    let mut storm = Storm {
        modules: modules.to_owned(),
        rng: fastrand::Rng::with_seed(seed),
        sessions: Vec::new(),
        tapes: BTreeMap::new(),
        canaries: [0, 1, 10].map(|ms| Canary::start(&stop, Duration::from_millis(ms))),
        groups: [Group::make("storm-1")?, Group::make("storm-2")?],
        cpus,
        wait_ms_max,
        bypassed_ms: 0,
    };
    storm.join(first)?;
    for group in &storm.groups {
        group.set("cpu.weight", &WEIGHTS.start.to_string())?;
    }
    // The one kernel thread of nice 19 that has something to do.
    fs::write("/sys/kernel/mm/transparent_hugepage/enabled", "never").context("huge pages cannot be switched off")?;
    let forks_before = forks()?;
    let mut stressors = Vec::new();
    for (group, stressors_of) in storm.groups.iter().zip(STRESSORS) {
        let time = format!("{seconds}s");
        let mut arguments: Vec<&str> = stressors_of.split(' ').collect();
        arguments.extend(["--quiet", "--oomable", "--timeout", &time]);
        stressors.push(start_in(group, "stress-ng", &arguments)?);
    }
    let happened = match storm.blow(seconds) {
        Ok(happened) => happened,
        Err(error) => {
            // Where timers came late, this says whether the kernel held them back.
            fs::copy("/proc/timer_list", "/host/timers.txt")?;
            storm.save_tapes()?;
            return Err(error.context(format!("seed {seed}")));
        }
    };
    for mut child in stressors {
        let status = wait(&mut child)?;
        ensure!(status == Some(0), "stress-ng found something wrong: {status:?}");
    }
    let processes = forks()? - forks_before;
    let Storm { sessions, groups, canaries, bypassed_ms, .. } = storm;
    groups.into_iter().try_for_each(Group::end)?;
    stop.store(true, Relaxed);
    let round_trips = pairs.into_iter().map(PingPong::end).sum::<Result<u64>>()?;
    let [busy, sleeper, late_sleeper] = canaries.map(Canary::end);
    pause(200);
    let status = Status::read()?.unwrap_or_default();
    let off_ns_max = off_times(&status);
    let report = StormReport {
        seed,
        seconds,
        cpus,
        happened,
        processes,
        round_trips,
        wait_ms_busy: busy?,
        wait_ms_sleeper: sleeper?.max(late_sleeper?),
        tasks_before,
        tasks_after: status.counts.tasks,
        mistakes: status.counts.mistakes,
        last_mistake: status.counts.last_mistake,
        bypassed_ms,
        surprises: status.counts.surprises,
        last_surprise: status.policies.iter().find_map(|policy| policy.last_surprise.clone()),
        off_ns_max,
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
    Config { beside, max_tasks: 4096, arena_bytes: 8 << 20, tape_records: 1 << 16, ..config(modules, policy) }
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
                step(self).and_then(|()| self.all_is_well()).with_context(|| format!("{name}, after {happened:?}"))?;
                *happened.entry(name).or_default() += 1;
                pause(20);
            }
        }
    }

    fn all_is_well(&self) -> Result<()> {
        self.sessions.iter().try_for_each(Session::check)?;
        for policy in Status::read()?.unwrap_or_default().policies {
            let wrong = policy.counts.last_mistake.or(policy.last_surprise);
            ensure!(wrong.is_none(), "{} in seat {}: {}", policy.policy, policy.seat, wrong.unwrap_or_default());
        }
        let worst_ms = self.canaries.iter().map(Canary::worst_ms).max().unwrap_or_default();
        let Self { wait_ms_max, bypassed_ms, .. } = self;
        ensure!(
            worst_ms <= wait_ms_max + bypassed_ms,
            "a thread of ours had no CPU for {worst_ms} ms, of which policies were bypassed for {bypassed_ms} ms at most"
        );
        Ok(())
    }

    /// A policy has come.
    fn join(&mut self, session: Session) -> Result<()> {
        let (seat, status) = (session.seat(), Status::read()?.unwrap_or_default());
        let policy = status.policies.iter().find(|policy| policy.seat == seat).context("a policy came and went")?;
        self.tapes.insert(seat, (Tape::open(policy)?, header(Some(seat), "a storm")?.0));
        self.sessions.push(session);
        Ok(())
    }

    /// For whoever wants to know what went wrong.
    fn save_tapes(&mut self) -> Result<()> {
        for (seat, (tape, header)) in &mut self.tapes {
            dump(tape, header, File::create(format!("/host/seat-{seat}.ekirec"))?, true)?;
        }
        Ok(())
    }

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
        self.groups[group].set("cpu.weight", &self.rng.u32(WEIGHTS).to_string())?;
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

    /// As for a suspend: sched_ext bypasses policies, and all processes but us freeze. The kernel has file systems synchronised first, for which
    /// it once took nine seconds where hundreds of tasks waited in sched_ext's own queue. Devices go on, because the port through
    /// which our results go does not always come back from where the kernel's driver puts it.
    fn freeze_machine(&mut self) -> Result<()> {
        // What the kernel calls SNAPSHOT_FREEZE and SNAPSHOT_UNFREEZE; closing the file ends it all too.
        let begin = Instant::now();
        let snapshot = File::open("/dev/snapshot").context("cannot prepare for a suspend")?;
        // SAFETY: plain system call without a parameter.
        let ask = |request: libc::c_ulong| match unsafe { libc::ioctl(snapshot.as_raw_fd(), request) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        ask(0x3301).context("some process does not freeze")?;
        pause(self.rng.u64(0..100));
        ask(0x3302).context("processes stay frozen")?;
        drop(snapshot);
        self.bypassed_ms = self.bypassed_ms.max(begin.elapsed().as_millis() as u64);
        Ok(())
    }

    /// Processes that make more of themselves, as many as may be, until all are killed.
    fn fork_bomb(&mut self) -> Result<()> {
        let bomb = Group::make("bomb")?;
        bomb.set("pids.max", &BOMB_PROCESSES.to_string())?;
        bomb.set("cpu.weight", &WEIGHTS.start.to_string())?;
        let mut first = start_in(&bomb, "sh", &["-c", "b() { b & b & wait; }; b 2>/dev/null"])?;
        bomb.must_say("populated 1")?;
        pause(150);
        bomb.end()?;
        wait(&mut first).map(drop)
    }

    fn policy(&mut self) -> Result<&'static str> {
        let policy = POLICIES[self.rng.usize(0..POLICIES.len())];
        say(policy)?;
        Ok(policy)
    }

    fn come(&mut self) -> Result<()> {
        if self.sessions.len() < 3 {
            let beside = if self.rng.bool() { Beside::Others } else { Beside::OthersAsDefault };
            let policy = self.policy()?;
            self.join(Session::start(&small(&self.modules, policy, beside))?)?;
        }
        Ok(())
    }

    /// Whichever, also the one that came first, but never the last; and its module with it.
    fn go(&mut self) -> Result<()> {
        if self.sessions.len() > 1 {
            let gone = self.session();
            let gone = self.sessions.swap_remove(gone);
            self.tapes.remove(&gone.seat());
            drop(gone);
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
        let (policy, session) = (self.policy()?, self.session());
        let module = load_copy(&module_of(&self.modules, policy))?;
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
pub(crate) fn unload_unused() -> Result<()> {
    let policies = Status::read()?.unwrap_or_default().policies;
    let is_used = |name: &String| name == "ekiden" || policies.iter().any(|policy| policy.module == *name);
    for name in loaded().into_iter().filter(|name| !is_used(name)) {
        unload(&name, Duration::from_secs(10))?;
    }
    Ok(())
}
