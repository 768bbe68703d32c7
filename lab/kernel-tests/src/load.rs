//! Real processes that make every call of the trait come.

use std::{
    env,
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::{
        fs::{FileExt, symlink},
        process::CommandExt,
    },
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ekiden_loader::{ChooseOptions, Hint, Inherit, Session, Succession, Who, choose};
use ekiden_workload::real::spin::keep_busy;
use nix::{
    sched::{CpuSet, sched_setaffinity, sched_yield},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A child that is gone when this is.
pub(crate) struct Worker(Child);

impl Worker {
    /// On the first two CPUs.
    pub(crate) fn start(what: &str) -> Result<Self> {
        let worker = Self::anywhere(what)?;
        if what != "exit" {
            worker.unpin()?;
        }
        Ok(worker)
    }

    /// On any CPU, as many as there are.
    pub(crate) fn anywhere(what: &str) -> Result<Self> {
        let this = env::current_exe()?;
        let child = Command::new(this).args(["child", what]).stdin(Stdio::null()).spawn().context("cannot fork")?;
        Ok(Self(child))
    }

    /// On any CPU, a process of this name.
    pub(crate) fn called(name: &str, what: &str) -> Result<Self> {
        let program = env::temp_dir().join(name);
        if !program.exists() {
            symlink(env::current_exe()?, &program).with_context(|| format!("cannot make {}", program.display()))?;
        }
        let child = Command::new(program).args(["child", what]).stdin(Stdio::null()).spawn().context("cannot fork")?;
        Ok(Self(child))
    }

    /// A process of a user with this many threads that sleep until it is [released](Self::release), and then spin.
    pub(crate) fn crowd_of(user: u32, threads: u32) -> Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(["child", &format!("crowd {threads}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .uid(user)
            .spawn()
            .context("cannot fork")?;
        let mut byte = [0];
        child.stdout.take().context("no pipe")?.read_exact(&mut byte).context("there cannot be so many threads")?;
        Ok(Self(child))
    }

    /// Starts many threads of root, which wait until they are released.
    pub(crate) fn crowd(threads: u32) -> Result<Self> {
        Self::crowd_of(0, threads)
    }

    /// On the first two CPUs, a user's.
    pub(crate) fn of(user: u32, what: &str) -> Result<Self> {
        let this = env::current_exe()?;
        let mut child = Command::new(this);
        let child = child.args(["child", what]).stdin(Stdio::null()).uid(user).spawn().context("cannot fork")?;
        let worker = Self(child);
        worker.unpin()?;
        Ok(worker)
    }

    /// Has the threads of a crowd begin.
    pub(crate) fn release(&self) -> Result<()> {
        self.0.stdin.as_ref().context("no pipe")?.write_all(&[0]).context("the crowd is gone")
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id() as i32)
    }

    /// Restricts the child to one CPU.
    pub(crate) fn pin(&self, cpu: usize) -> Result<()> {
        let mut cpus = CpuSet::new();
        cpus.set(cpu)?;
        sched_setaffinity(self.pid(), &cpus).context("cannot set the affinity of a child")
    }

    /// Lets the child run on two CPUs.
    pub(crate) fn unpin(&self) -> Result<()> {
        let mut cpus = CpuSet::new();
        cpus.set(0)?;
        cpus.set(1)?;
        sched_setaffinity(self.pid(), &cpus).context("cannot set the affinity of a child")
    }

    pub(crate) fn nice(&self, nice: i32) {
        // SAFETY: plain system call on a child of ours.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, self.0.id(), nice) };
    }

    /// Moves the child to a class: `SCHED_FIFO` takes it away from the policy, `SCHED_OTHER` gives it back.
    pub(crate) fn class(&self, policy: i32) -> Result<()> {
        class_of(self.pid().as_raw(), policy)
    }

    /// Leaves the policy for the real-time class and comes back. On CPU 0, because a busy real-time task leaves others
    /// on its CPU a twentieth of the time, and we are on CPU 1: see [`stay_on_cpu_1`].
    pub(crate) fn visit_real_time(&self) -> Result<()> {
        self.pin(0)?;
        self.class(libc::SCHED_FIFO)?;
        self.class(libc::SCHED_OTHER)
    }

    /// CPU time used so far. Not from `stat`, whose clock ticks are long for a task that gives way all the time.
    pub(crate) fn ran_ns(&self) -> u64 {
        let path = format!("/proc/{}/schedstat", self.0.id());
        let schedstat = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        schedstat
            .split_whitespace()
            .next()
            .and_then(|ns| ns.parse().ok())
            .unwrap_or_else(|| panic!("{path}: {schedstat}"))
    }

    /// The CPU that it runs on, or ran on last.
    pub(crate) fn cpu(&self) -> Result<u32> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // After its name, which is in brackets, this is the 37th word.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_whitespace().nth(36).and_then(|cpu| cpu.parse().ok()).context("no CPU in /proc/PID/stat")
    }

    /// Waits until it makes progress.
    ///
    /// # Errors
    /// It does not within five seconds; with what the kernel says of it.
    pub(crate) fn must_run(&self) -> Result<()> {
        let (before, start) = (self.ran_ns(), Instant::now());
        while self.ran_ns() == before {
            if start.elapsed() > Duration::from_secs(5) {
                let of = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", self.0.id())).unwrap_or_default();
                bail!("a task does not run any more: {}\n{}{}", of("cmdline"), of("sched"), of("status"));
            }
            pause(10);
        }
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = kill(self.pid(), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// The CPU time that tasks of this control group have used, in microseconds.
pub(crate) fn used_us(group: &Path) -> Result<u64> {
    let stat = fs::read_to_string(group.join("cpu.stat")).context("cannot read cpu.stat")?;
    let usage = stat.lines().find_map(|line| line.strip_prefix("usage_usec ")).context("no usage")?;
    Ok(usage.parse()?)
}

/// Keeps this process away from the children that fill CPU 0. Children are not bound by it.
pub(crate) fn stay_on_cpu_1() -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(1)?;
    sched_setaffinity(Pid::from_raw(0), &cpus).context("cannot set our own affinity")
}

/// From here on this process, and what it starts, is on any CPU.
pub(crate) fn be_anywhere() -> Result<()> {
    let mut cpus = CpuSet::new();
    (0..CpuSet::count().min(64)).try_for_each(|cpu| cpus.set(cpu))?;
    sched_setaffinity(Pid::from_raw(0), &cpus).context("cannot set our own affinity")
}

/// Has many threads spin once something can be read.
fn crowd(threads: u32) -> Result<()> {
    static BEGUN: AtomicU32 = AtomicU32::new(0);
    let futex = |operation: i32, value: u32| {
        // SAFETY: plain system calls on a static.
        unsafe { libc::syscall(libc::SYS_futex, &raw const BEGUN, operation, value, 0) }
    };
    for _ in 0..threads {
        thread::Builder::new().stack_size(16 << 10).spawn(move || {
            while BEGUN.load(Relaxed) == 0 {
                futex(libc::FUTEX_WAIT, 0);
            }
            child("spin")
        })?;
    }
    io::stdout().write_all(&[0])?;
    io::stdout().flush()?;
    io::stdin().read_exact(&mut [0])?;
    BEGUN.store(1, Relaxed);
    futex(libc::FUTEX_WAKE, i32::MAX as u32);
    child("spin")
}

/// What a child does.
pub(crate) fn child(what: &str) -> Result<()> {
    if let Some(threads) = what.strip_prefix("crowd ") {
        return crowd(threads.parse()?);
    }
    if let Some(herd) = what.strip_prefix("herd ") {
        return crate::beyond::run_herd(herd);
    }
    match what {
        // With `spin_loop` now and then, as an emulator takes its instruction for a request to run another CPU, and several times
        // between two ticks: it lets a CPU run until the next timer, and if the tick of the other comes just behind its own, that
        // one has no turn but for its ticks.
        "spin" => loop {
            keep_busy(4_000);
            std::hint::spin_loop();
        },
        "yield" => loop {
            for _ in 0..16 {
                sched_yield()?;
            }
            std::hint::spin_loop();
        },
        // With the lock of the file for as long as it takes to copy this.
        "write" => {
            let (file, bytes) = (File::create("/tmp/locked")?, vec![0; 1 << 20]);
            loop {
                file.write_all_at(&bytes, 0)?;
                std::hint::spin_loop();
            }
        }
        "nap" => loop {
            thread::sleep(Duration::from_millis(1));
        },
        // Most of a CPU, in turns of less than a tick.
        "doze" => loop {
            for _ in 0..40 {
                keep_busy(4_000);
                std::hint::spin_loop();
            }
            thread::sleep(Duration::from_micros(200));
        },
        "forks" => loop {
            drop(Worker::anywhere("exit")?);
            pause(5);
        },
        "echo" => {
            let (mut input, mut output, mut byte) = (io::stdin(), io::stdout(), [0]);
            while input.read(&mut byte)? == 1 {
                output.write_all(&byte)?;
                output.flush()?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A round trip of a byte between this process and a child, each in the control group that is named, both on CPU 0.
pub(crate) fn pipe_round_trip_ns(groups: [&Path; 2]) -> Result<u64> {
    const ROUND_TRIPS: u32 = 3_000;
    let mut child = Command::new(env::current_exe()?)
        .args(["child", "echo"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (Some(mut there), Some(mut back)) = (child.stdin.take(), child.stdout.take()) else { bail!("no pipes") };
    let pids = [std::process::id(), child.id()];
    for (group, pid) in groups.iter().zip(pids) {
        fs::write(group.join("cgroup.procs"), pid.to_string()).context("cannot enter a control group")?;
    }
    let mut cpu_0 = CpuSet::new();
    cpu_0.set(0)?;
    pids.iter().try_for_each(|pid| sched_setaffinity(Pid::from_raw(*pid as i32), &cpu_0))?;
    let (mut start, mut byte) = (Instant::now(), [0]);
    for round in 0..ROUND_TRIPS + 500 {
        if round == 500 {
            start = Instant::now();
        }
        there.write_all(&byte)?;
        back.read_exact(&mut byte)?;
    }
    let took = start.elapsed() / ROUND_TRIPS;
    drop((there, back));
    child.wait()?;
    fs::write("/sys/fs/cgroup/cgroup.procs", std::process::id().to_string())?;
    stay_on_cpu_1()?;
    Ok(took.as_nanos() as u64)
}

pub(crate) fn pause(ms: u64) {
    thread::sleep(Duration::from_millis(ms));
}

/// Makes every call of the trait come. Stops early once the policy is gone.
pub(crate) fn everything(session: &Session) -> Result<()> {
    let gone = || !session.is_running();
    // New, woken, blocked and dead tasks, idle CPUs.
    drop(Worker::start("exit")?);
    pause(5);
    if gone() {
        return Ok(());
    }
    // Two that fill CPU 0, so that others wait there and CPU 1 can only look on: preemption, refused balancing.
    let hogs = [Worker::start("spin")?, Worker::start("spin")?];
    let yielder = Worker::start("yield")?;
    let napper = Worker::start("nap")?;
    for worker in hogs.iter().chain([&yielder, &napper]) {
        worker.pin(0)?;
    }
    pause(60);
    if gone() {
        return Ok(());
    }
    hogs[0].nice(5);
    // Waiting tasks move, by themselves and by order; a waiting one leaves for another class, and its token goes stale.
    for hog in &hogs {
        hog.unpin()?;
    }
    pause(10);
    hogs[1].pin(1)?;
    hogs[1].pin(0)?;
    for hog in &hogs {
        hog.visit_real_time()?;
    }
    pause(30);
    if gone() {
        return Ok(());
    }
    // A change from outside.
    let control = session.control();
    let params = ChooseOptions { inherit: Inherit::Yes, params: "rank=3" };
    // Most have nothing to set, and refuse it.
    let _ = choose(&Who::Process(hogs[0].pid().as_raw()), Some(session.slot()), params);
    if gone() {
        return Ok(());
    }
    let mut hints = 2_u64.to_ne_bytes().to_vec();
    hints.extend(3_u64.to_ne_bytes());
    for hint in [Hint::Open(7), Hint::Ready(7, &hints), Hint::Now(&hints[..8]), Hint::Close(7)] {
        if control.hint(Some(session.slot()), hint).is_err() {
            return Ok(());
        }
    }
    if control.upgrade(&Succession { slot: Some(session.slot()), ..Succession::default() }).is_err() {
        return Ok(());
    }
    drop(hogs);
    if gone() {
        return Ok(());
    }
    hotplug(1)?;
    pause(10);
    Ok(())
}

/// Takes a CPU away and gives it back.
pub(crate) fn hotplug(cpu: u32) -> Result<()> {
    set_online(cpu, false)?;
    set_online(cpu, true)?;
    stay_on_cpu_1()
}

pub(crate) fn set_online(cpu: u32, online: bool) -> Result<()> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    fs::write(path, if online { "1" } else { "0" }).with_context(|| format!("CPU {cpu}, online: {online}"))
}

/// Moves a thread to a class.
pub(crate) fn class_of(tid: i32, policy: i32) -> Result<()> {
    let param = libc::sched_param { sched_priority: i32::from(policy == libc::SCHED_FIFO) };
    // SAFETY: plain system call, with a parameter on the stack.
    match unsafe { libc::sched_setscheduler(tid, policy, &raw const param) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).context("cannot set the class of a task"),
    }
}

/// A line of `/proc/meminfo`.
pub(crate) fn memory_bytes(what: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    let kib: Option<u64> = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    Ok(kib.with_context(|| format!("/proc/meminfo says nothing of {what}"))? << 10)
}
