//! More tasks than the table has room for: what those get, what all others get, and how long any of very many waits.

use std::{
    env, fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ekiden_loader::{Config, Session, Status};
use ekiden_workload::real::spin::keep_busy;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use crate::guest_tests::config;
use crate::load::{Worker, hotplug, pause};

/// An ordinary user.
const USER: u32 = 1000;

/// What the tasks of a herd found out together.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct HerdReport {
    tasks: u32,
    /// The longest time that one of them had no CPU although it wanted one, in milliseconds, in the second half of the time: at first all
    /// want one at once, and touch their memory for the first time.
    longest_ms: f64,
    /// The longest time without a CPU of those that came last, in milliseconds.
    longest_of_last_ms: f64,
    /// How often they have worked, and how often the one that did so least.
    turns: u64,
    turns_least: u64,
    /// The CPU time that they have used, in milliseconds.
    ran_ms: u64,
}

/// Tasks of one user that all do the same.
struct Herd {
    child: Child,
    begin: ChildStdin,
    report: BufReader<ChildStdout>,
}

impl Herd {
    /// Each works for so long and then sleeps for so long, again and again, or only works if that is no time. They have not begun. The
    /// `last` that come are looked at by themselves, too.
    fn of(user: u32, [tasks, last]: [u32; 2], work_us: u64, sleep_us: u64, seconds: u64) -> Result<Self> {
        let what = format!("herd {tasks} {last} {work_us} {sleep_us} {seconds}");
        let mut command = Command::new(env::current_exe()?);
        let command = command.args(["child", &what]).stdin(Stdio::piped()).stdout(Stdio::piped()).uid(user);
        let mut child = command.spawn().context("cannot fork")?;
        let begin = child.stdin.take().context("no pipe")?;
        let mut report = BufReader::new(child.stdout.take().context("no pipe")?);
        let mut line = String::new();
        report.read_line(&mut line)?;
        ensure!(line == "ready\n", "there cannot be so many threads: {line:?}");
        Ok(Self { child, begin, report })
    }

    /// One on each CPU, where policies that move no task would have several on one by chance.
    fn spread(&self) -> Result<()> {
        let own = self.child.id() as i32;
        let tasks =
            fs::read_dir(format!("/proc/{own}/task"))?.map(|task| Ok(task?.file_name().to_string_lossy().parse()?));
        let members = tasks.filter(|tid| !matches!(tid, Ok(tid) if *tid == own)).collect::<Result<Vec<i32>>>()?;
        for (cpu, tid) in members.into_iter().enumerate() {
            let mut cpus = CpuSet::new();
            cpus.set(cpu % nr_cpus())?;
            sched_setaffinity(Pid::from_raw(tid), &cpus)?;
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        self.begin.write_all(&[0]).context("the herd is gone")
    }

    /// When their time is over.
    fn end(mut self) -> Result<HerdReport> {
        let mut line = String::new();
        self.report.read_line(&mut line)?;
        self.child.wait()?;
        serde_json::from_str(&line).with_context(|| format!("no report of a herd: {line:?}"))
    }
}

/// When all began, in nanoseconds of the monotonic clock; 0 before that.
static BEGAN_NS: AtomicU64 = AtomicU64::new(0);
/// Whom others wake up: all, as soon as they have begun.
static BEGUN: AtomicU32 = AtomicU32::new(0);
/// Waits that began earlier do not count.
static FROM_NS: AtomicU64 = AtomicU64::new(0);
/// The longest wait of all, and of those that came last.
static LONGEST_NS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
static TURNS: AtomicU64 = AtomicU64::new(0);
static TURNS_LEAST: AtomicU64 = AtomicU64::new(u64::MAX);
static ENDED: AtomicU32 = AtomicU32::new(0);

fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` has the layout that is written, and outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn sleep_until(ns: u64) {
    let until = libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    // SAFETY: `until` is only read, and null says that the time which remains is not asked for.
    unsafe {
        libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const until, std::ptr::null_mut())
    };
}

/// Waits for the word to change, or wakes up all who do.
fn futex(word: &AtomicU32, operation: i32, value: u32) {
    // SAFETY: a plain system call on a static.
    unsafe { libc::syscall(libc::SYS_futex, word, operation, value, 0) };
}

/// Works for that much CPU time; returns when it ended. A look at the clock that comes late was waiting.
fn work(work_ns: u64, mut before_ns: u64, is_last: bool) -> u64 {
    const STEP_NS: u64 = 200_000;
    let mut left_ns = work_ns;
    loop {
        keep_busy(400);
        std::hint::spin_loop();
        let now = now_ns();
        let passed_ns = now - before_ns;
        if passed_ns > STEP_NS && before_ns >= FROM_NS.load(Relaxed) {
            LONGEST_NS
                .iter()
                .take(1 + usize::from(is_last))
                .for_each(|longest| _ = longest.fetch_max(passed_ns, Relaxed));
        }
        left_ns = left_ns.saturating_sub(passed_ns.min(STEP_NS));
        before_ns = now;
        if left_ns == 0 {
            return now;
        }
    }
}

fn member(is_last: bool, work_ns: u64, sleep_ns: u64, time_ns: u64) {
    while BEGUN.load(Acquire) == 0 {
        futex(&BEGUN, libc::FUTEX_WAIT, 0);
    }
    // Were it one that woke up all, that one would have to wait for its turn among thousands in the middle of it.
    futex(&BEGUN, libc::FUTEX_WAKE, 2);
    let began_ns = BEGAN_NS.load(Relaxed);
    let (mut due_ns, mut turns) = (began_ns, 0);
    loop {
        let ended_ns = work(work_ns, due_ns, is_last);
        turns += 1;
        if ended_ns - began_ns >= time_ns {
            break;
        }
        due_ns = ended_ns;
        if sleep_ns > 0 {
            due_ns += sleep_ns;
            sleep_until(due_ns);
        }
    }
    TURNS.fetch_add(turns, Relaxed);
    TURNS_LEAST.fetch_min(turns, Relaxed);
    ENDED.fetch_add(1, Release);
    futex(&ENDED, libc::FUTEX_WAKE, 1);
}

fn nr_cpus() -> usize {
    // SAFETY: it takes a number, and gets at no memory of ours.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) as usize }
}

/// The process of a herd.
pub(crate) fn run_herd(what: &str) -> Result<()> {
    let numbers = what.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    let [tasks, last, work_us, sleep_us, seconds] = numbers[..] else { anyhow::bail!("not five numbers: {what}") };
    let mut cpus = CpuSet::new();
    (0..nr_cpus()).try_for_each(|cpu| cpus.set(cpu))?;
    sched_setaffinity(Pid::from_raw(0), &cpus)?;
    for number in 0..tasks {
        let is_last = number + last >= tasks;
        let member = move || member(is_last, work_us * 1_000, sleep_us * 1_000, seconds * 1_000_000_000);
        thread::Builder::new().stack_size(16 << 10).spawn(member)?;
    }
    println!("ready");
    io::stdin().read_exact(&mut [0])?;
    let began_ns = now_ns();
    BEGAN_NS.store(began_ns, Relaxed);
    FROM_NS.store(began_ns + seconds * 500_000_000, Relaxed);
    BEGUN.store(1, Release);
    futex(&BEGUN, libc::FUTEX_WAKE, 2);
    loop {
        let ended = ENDED.load(Acquire);
        if u64::from(ended) == tasks {
            break;
        }
        futex(&ENDED, libc::FUTEX_WAIT, ended);
    }
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: it is written, and zeros are good as well.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ms = |time: libc::timeval| time.tv_sec as u64 * 1_000 + time.tv_usec as u64 / 1_000;
    let longest_ms = |of: usize| LONGEST_NS[of].load(Relaxed) as f64 / 1e6;
    let report = HerdReport {
        tasks: tasks as u32,
        longest_ms: longest_ms(0),
        longest_of_last_ms: longest_ms(1),
        turns: TURNS.load(Relaxed),
        turns_least: TURNS_LEAST.load(Relaxed),
        ran_ms: ms(usage.ru_utime) + ms(usage.ru_stime),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// How many tasks there are.
fn tasks_now() -> Result<u32> {
    let loads = fs::read_to_string("/proc/loadavg")?;
    let tasks =
        loads.split_whitespace().nth(3).and_then(|tasks| tasks.split('/').nth(1)).context("no number of tasks")?;
    Ok(tasks.parse()?)
}

/// How many tasks there have ever been.
fn forks() -> Result<i64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let forks = stat.lines().find_map(|line| line.strip_prefix("processes "));
    Ok(forks.context("no number of forks")?.parse()?)
}

/// Has the kernel allow this many more threads, of any user and in one process.
fn allow(tasks: u32) -> Result<()> {
    for (file, least) in [("kernel/threads-max", 2), ("kernel/pid_max", 4), ("vm/max_map_count", 4)] {
        let path = Path::new("/proc/sys").join(file);
        let now: u32 = fs::read_to_string(&path)?.trim().parse()?;
        let wanted = least * (tasks + 4_000);
        if now < wanted {
            fs::write(&path, wanted.to_string()).with_context(|| format!("cannot set {file}"))?;
        }
    }
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is only read, and outlives the call.
    match unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).context("cannot allow a user more tasks"),
    }
}

#[derive(Serialize)]
struct BeyondReport {
    /// Tasks that had room and always wanted a CPU, as many as there are CPUs; one that had room and slept most of the time; and twice as
    /// many as the first that had none.
    busy: HerdReport,
    sleeper: HerdReport,
    beyond: HerdReport,
    /// And one on CPU 0.
    pinned_ran_ms: u64,
    /// How many there was no room for: before the busy ones came, with them, and after there was.
    without_room_before: u64,
    without_room: u64,
    without_room_after: u64,
    /// How many tasks, of any kind, have ended between the first two.
    ended: i64,
    tasks_after: u64,
    contract_violations: u64,
    unexpected_transitions: u64,
    still_running: bool,
}

/// A user fills the table, and more tasks of theirs want CPUs, beside another user's.
pub(crate) fn beyond(modules: &Path, policy: &str) -> Result<()> {
    const SECONDS: u64 = 6;
    const WITHOUT_ROOM: u32 = 200;
    let cpus = nr_cpus() as u32;
    let room = tasks_now()? + 400;
    allow(room)?;
    let session = Session::start(&Config { max_tasks: room, ..config(modules, policy) })?;
    let mut busy = Herd::of(0, [cpus, 0], 1_000, 0, SECONDS)?;
    busy.spread()?;
    let mut sleeper = Herd::of(USER + 1, [1, 0], 100, 5_000, SECONDS)?;
    let crowd = Worker::crowd_of(USER, room - tasks_now()? + WITHOUT_ROOM)?;
    let without_room_now = || -> Result<u64> { Ok(Status::read()?.context("no status")?.beyond) };
    // Asked before, and after for the second time, so that no task that ends in between is missed.
    let (forks_before, tasks_before) = (forks()?, tasks_now()?);
    let without_room_before = without_room_now()?;
    let mut beyond = Herd::of(USER, [2 * cpus, 0], 1_000, 0, SECONDS)?;
    let pinned = Worker::of(USER, "spin")?;
    pinned.pin(0)?;
    for herd in [&mut busy, &mut sleeper, &mut beyond] {
        herd.begin()?;
    }
    pause(1_000 * SECONDS / 2);
    let without_room = without_room_now()?;
    let (tasks, forks) = (tasks_now()?, forks()?);
    let ended = i64::from(tasks_before) - i64::from(tasks) + forks - forks_before;
    let (busy, sleeper, beyond) = (busy.end()?, sleeper.end()?, beyond.end()?);
    let pinned_ran_ms = pinned.ran_ns() / 1_000_000;
    // Whom a CPU has on its own queue has to get away.
    let bound = [Worker::of(USER, "spin")?, Worker::of(USER, "spin")?];
    for _ in 0..3 {
        hotplug(1)?;
        bound.iter().chain([&pinned]).try_for_each(Worker::must_run).context("after a CPU was away")?;
    }
    session.check()?;
    drop((crowd, bound));
    let start = Instant::now();
    let after = loop {
        let status = Status::read()?.context("no status")?;
        if status.beyond == 0 || start.elapsed() > Duration::from_secs(10) {
            break status;
        }
        pause(50);
    };
    pinned.must_run()?;
    let still_running = session.is_running();
    session.check()?;
    session.stop();
    let report = BeyondReport {
        busy,
        sleeper,
        beyond,
        pinned_ran_ms,
        without_room_before,
        without_room,
        without_room_after: after.beyond,
        ended,
        tasks_after: after.counts.tasks,
        contract_violations: after.counts.contract_violations,
        unexpected_transitions: after.counts.unexpected_transitions,
        still_running,
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

#[derive(Serialize)]
struct CrowdedReport {
    herd: HerdReport,
    without_room: u64,
    memory_mib: u64,
    still_running: bool,
}

/// Memory that is in use.
fn memory_mib() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let of = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let (all, free) = of("MemTotal:").zip(of("MemAvailable:")).context("no memory in /proc/meminfo")?;
    Ok((all - free) / 1024)
}

/// Very many tasks, each of which works for 50 µs and sleeps for 50 ms, again and again: the CPUs are never enough.
pub(crate) fn herd(modules: &Path, policy: Option<&str>, tasks: u32, beyond: u32, seconds: u64) -> Result<()> {
    allow(tasks)?;
    let room = tasks_now()? + tasks - beyond;
    let start = |policy| Session::start(&Config { max_tasks: room, ..config(modules, policy) });
    let session = policy.map(start).transpose()?;
    let mut herd = Herd::of(USER, [tasks, beyond], 50, 50_000, seconds)?;
    let memory_mib = memory_mib()?;
    herd.begin()?;
    pause(seconds * 500);
    let without_room = Status::read()?.map_or(0, |status| status.beyond);
    let herd = herd.end()?;
    let mut still_running = true;
    if let Some(session) = session {
        session.check()?;
        still_running = session.is_running();
        session.stop();
    }
    println!("{}", serde_json::to_string(&CrowdedReport { herd, without_room, memory_mib, still_running })?);
    Ok(())
}
