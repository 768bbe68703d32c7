//! A hostile neighbour: a user without privileges, in a control group with limits of memory and of processes, who does all at once
//! whatever such a user may do to have more of the CPUs than others, or to have a policy taken out.

mod hints;

use std::{
    collections::BTreeMap,
    env, fs,
    fs::{File, OpenOptions},
    hint::{black_box, spin_loop},
    io::{self, Read},
    mem,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, chown},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    ptr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ekiden_loader::Status;

use crate::{
    board::Board,
    device::request,
    intruder::be_user,
    load::{be_anywhere, pause},
    processes::{fork, reap},
    upgrades::pipe,
};

const ROOT: &str = "/sys/fs/cgroup";
/// Who it is.
const USER: u32 = 1000;
/// Processes and threads that it may have, and memory.
const PIDS_MAX: u32 = 40;
const MEMORY_MAX: usize = 32 << 20;
/// Groups that it makes in its own.
const GROUPS: u32 = 6;
/// Weights and nice values that it gives to its own: not all that there are, and not `SCHED_IDLE`, because they multiply. On a slow machine, a task of
/// such a class in a light group that was preempted while it died had no CPU for 21 s, and RCU stalled: under the kernel's own scheduler, without any policy.
const WEIGHTS: std::ops::Range<u32> = 50..500;
const NICE: std::ops::Range<i32> = 0..8;
/// What one of its processes does before it hints that others may run: see `crate::probe`.
const STEPS_PER_HINT: u32 = 8;
/// Where the board has the processes that it may signal, move and put onto CPUs.
const PIDS: usize = 64;
const PLACES: usize = 64;
/// How soon the kernel kills a process for want of memory (`oom_score_adj`): never the one that keeps the others, those only if nothing else is
/// left, and the one that fills memory first.
const OOM_NEVER: i32 = -1000;
const OOM_USUAL: i32 = 0;
const OOM_FIRST: i32 = 1000;
/// Where the board counts what it got that is root's.
const CONTROL_GAINED: usize = 60;

/// Who does what it does.
struct Hostile {
    rng: fastrand::Rng,
    board: Board,
    group: PathBuf,
    cpus: u32,
}

type Deed = fn(&mut Hostile) -> io::Result<()>;

/// What it does, and in how many processes at a time.
const DEEDS: &[(&str, usize, Deed)] = &[
    ("reads", 1, Hostile::reads),
    ("chooses", 1, Hostile::chooses),
    ("controls", 1, Hostile::controls),
    ("hints", 1, Hostile::hints),
    ("forks", 1, Hostile::forks),
    ("exits", 1, Hostile::exits),
    ("groups", 1, Hostile::groups),
    ("affinities", 1, Hostile::affinities),
    ("classes", 1, Hostile::classes),
    ("signals", 1, Hostile::signals),
    ("memory", 1, Hostile::memory),
    ("timers", 1, Hostile::timers),
    ("spins", 4, Hostile::spins),
    ("yields", 1, Hostile::yields),
    ("naps", 1, Hostile::naps),
];

/// One that was started.
pub(crate) struct Neighbour {
    child: Child,
    group: PathBuf,
    board: Board,
}

impl Neighbour {
    /// Starts it. A seed repeats what it tries and in which order, in each of its processes.
    pub(crate) fn start(seed: u64) -> Result<Self> {
        let (root, group) = (Path::new(ROOT), Path::new(ROOT).join("neighbour"));
        fs::write(root.join("cgroup.subtree_control"), "+cpu +memory +pids").context("the groups lack controllers")?;
        // A report for each of its processes that is killed for its memory would be most of what the console says.
        fs::write("/proc/sys/vm/oom_dump_tasks", "0").context("cannot keep reports short")?;
        fs::create_dir(&group).with_context(|| format!("cannot make {}", group.display()))?;
        fs::write(group.join("pids.max"), PIDS_MAX.to_string()).context("cannot limit processes")?;
        fs::write(group.join("memory.max"), MEMORY_MAX.to_string()).context("cannot limit memory")?;
        for name in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            chown(group.join(name), Some(USER), Some(USER)).context("cannot give a group away")?;
        }
        let (board, file) = Board::new().context("cannot make shared memory")?;
        let child = Command::new(env::current_exe()?)
            .args(["neighbour-lives", "--seed", &seed.to_string(), "--group"])
            .arg(&group)
            .stdin(Stdio::from(file))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start a neighbour")?;
        let neighbour = Self { child, group, board };
        let start = Instant::now();
        while neighbour.deeds().values().sum::<u64>() == 0 {
            ensure!(start.elapsed() < Duration::from_secs(20), "the neighbour does nothing");
            pause(20);
        }
        Ok(neighbour)
    }

    /// How often it has done what.
    pub(crate) fn deeds(&self) -> BTreeMap<&'static str, u64> {
        DEEDS.iter().enumerate().map(|(place, (name, ..))| (*name, self.board.get(place))).collect()
    }

    /// Ends it, and returns how often it has done what.
    ///
    /// # Errors
    /// If it has ended by itself, or processes of it do not die.
    pub(crate) fn end(mut self) -> Result<BTreeMap<&'static str, u64>> {
        ensure!(self.child.try_wait()?.is_none(), "the neighbour has ended by itself");
        self.clear()?;
        ensure!(self.board.get(CONTROL_GAINED) == 0, "an ordinary user has control of policies");
        Ok(self.deeds())
    }

    /// Kills all of it, and removes its groups.
    fn clear(&mut self) -> Result<()> {
        if !self.group.exists() {
            return Ok(());
        }
        fs::write(self.group.join("cgroup.kill"), "1").context("cannot kill the neighbour")?;
        // It may be stopped before it has come into the group.
        let _ = self.child.kill();
        self.child.wait()?;
        let start = Instant::now();
        while !fs::read_to_string(self.group.join("cgroup.events"))?.contains("populated 0") {
            if start.elapsed() > Duration::from_secs(20) {
                bail!(
                    "processes of the neighbour do not die: {}\n{}",
                    Status::read()?.map_or_else(String::new, |status| format!("{status:?}")),
                    left()
                );
            }
            pause(5);
        }
        let below = fs::read_dir(&self.group)?.flatten().filter(|entry| entry.path().is_dir());
        below.map(|entry| entry.path()).chain([self.group.clone()]).try_for_each(|path| {
            // A process is in its group for a moment after it has died.
            let start = Instant::now();
            loop {
                match fs::remove_dir(&path) {
                    Err(_) if start.elapsed() < Duration::from_secs(5) => pause(5),
                    result => break result.with_context(|| format!("cannot remove {}", path.display())),
                }
            }
        })
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // Where that matters, `end` has said so.
        let _ = self.clear();
    }
}

/// What the kernel says of the neighbour's tasks. Dying tasks are in no group's list any more.
fn left() -> String {
    let tasks = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let of = |path: &Path, file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
    let is_ours = |path: &PathBuf| of(path, "status").contains(&format!("Uid:\t{USER}\t"));
    let told =
        tasks.filter(is_ours).map(|path| ["cgroup", "status", "sched", "stack"].map(|file| of(&path, file)).concat());
    told.collect::<Vec<_>>().join("\n")
}

extern "C" fn nothing(_: libc::c_int) {}

/// The process that [`Neighbour::start`] starts: it keeps processes that do each thing, until it is killed.
pub(crate) fn lives(seed: u64, group: &Path) -> Result<()> {
    let board = Board::of(&io::stdin()).context("no shared memory")?;
    let home = group.join("home");
    // While it is root: an ordinary user can only become one to be killed sooner.
    set_oom(OOM_NEVER).context("cannot be spared when memory runs out")?;
    fs::write(group.join("cgroup.procs"), "0").context("cannot enter a group")?;
    be_anywhere()?;
    be_user(USER)?;
    fs::create_dir(&home).context("cannot make a group")?;
    fs::write(home.join("cgroup.procs"), "0").context("cannot enter a group of the own")?;
    fs::write(group.join("cgroup.subtree_control"), "+cpu +pids").context("cannot limit groups of the own")?;
    // SAFETY: plain system calls, and the handler does nothing.
    unsafe {
        // Where a process ends while others of its session are stopped, all of them hear of it.
        libc::setsid();
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
        // Timers that are ignored would not go off.
        libc::signal(libc::SIGUSR1, nothing as *const () as libc::sighandler_t);
    }
    // SAFETY: it takes a number, and gets at no memory of ours.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) } as u32;
    let wanted = DEEDS.iter().enumerate().flat_map(|(place, (_, count, _))| vec![place; *count]);
    let mut who: Vec<(usize, Option<i32>)> = wanted.map(|place| (place, None)).collect();
    for generation in 0_u64.. {
        while let Some(dead) = reap(false) {
            who.iter_mut().filter(|(_, pid)| *pid == Some(dead)).for_each(|(_, pid)| *pid = None);
        }
        for (number, (place, pid)) in who.iter_mut().enumerate().filter(|(_, (_, pid))| pid.is_none()) {
            let rng = fastrand::Rng::with_seed(seed ^ (number as u64) << 32 ^ generation << 40);
            let hostile = Hostile { rng, board, group: group.to_owned(), cpus };
            // If there are too many processes, there is room later.
            *pid = fork(|| hostile.act(*place)).ok();
            // Whatever it does to the others, these want all the CPU time that there is.
            if DEEDS[*place].0 != "spins" {
                board.set(PIDS + number, pid.unwrap_or_default() as u64);
            }
        }
        pause(5);
    }
    Ok(())
}

impl Hostile {
    /// Does one thing again and again.
    fn act(mut self, place: usize) {
        // What it was forked from is spared, and it must not be.
        if set_oom(oom_of(DEEDS[place].0)).is_err() {
            return;
        }
        for step in 1_u32.. {
            // What an ordinary user may not, is refused: that is well.
            if DEEDS[place].2(&mut self).is_ok() {
                self.board.add(place, 1);
            }
            if step % STEPS_PER_HINT == 0 {
                spin_loop();
            }
        }
    }

    /// Some process of its own, which may have gone.
    fn one(&mut self) -> i32 {
        (0..PLACES).map(|_| self.board.get(PIDS + self.rng.usize(0..PLACES)) as i32).find(|pid| *pid > 0).unwrap_or(-1)
    }

    fn nap(&mut self, us: std::ops::Range<u64>) {
        std::thread::sleep(Duration::from_micros(self.rng.u64(us)));
    }

    fn reads(&mut self) -> io::Result<()> {
        let mut bytes = [0; 16 << 10];
        let len = if self.rng.bool() { 1 } else { bytes.len() };
        if self.rng.bool() {
            fs::read("/proc/ekiden")?;
        }
        File::open("/dev/ekiden")?.read_at(&mut bytes[..len], self.rng.u64(0..32)).map(drop)
    }

    fn chooses(&mut self) -> io::Result<()> {
        let device = File::open("/dev/ekiden")?;
        let texts = ["", "rank=3", "rank=-1", "rank=99999999999999999999", "=", "nosuch=1", "\0\x7f\n\"", "a=1 a=1"];
        let text = self.rng.choice(texts).unwrap_or_default();
        let reason = [0_u8; 64];
        // The thread, the policy slot, the flags, and the length of the text; the text; where the reason goes, and its length.
        let tid = if self.rng.bool() { self.one() } else { self.rng.i32(-1..400) };
        let words = [
            u64::from(self.rng.u32(0..9)) << 32 | u64::from(tid as u32),
            (text.len() as u64) << 32 | self.rng.u64(0..2),
            text.as_ptr() as u64,
            reason.as_ptr() as u64,
            reason.len() as u64,
        ];
        // SAFETY: the kernel reads a request of that size, and writes at most where it names room.
        unsafe { libc::ioctl(device.as_raw_fd(), request(1, 7, mem::size_of_val(&words)), words.as_ptr()) };
        Ok(())
    }

    /// What only root may.
    fn controls(&mut self) -> io::Result<()> {
        let device =
            OpenOptions::new().read(true).write(true).open("/dev/ekiden").or_else(|_| File::open("/dev/ekiden"));
        let device = device?;
        let mut words = [0_u64; 64];
        words.iter_mut().for_each(|word| *word = self.rng.u64(0..1 << 12));
        let (number, size) = (self.rng.u32(0..12), self.rng.usize(0..mem::size_of_val(&words) / 8) * 8);
        let number = request(self.rng.u32(0..4), number, size);
        // SAFETY: the request is at least as large as its number says.
        let done = unsafe { libc::ioctl(device.as_raw_fd(), number, words.as_mut_ptr()) };
        // SAFETY: a new map, which is never read.
        let map =
            unsafe { libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, device.as_raw_fd(), 0) };
        // A choice for itself is all that may be. A queue of hints, which may be opened, has a number of its own.
        if map != libc::MAP_FAILED || (done == 0 && number & 0xff != 7) {
            self.board.add(CONTROL_GAINED, 1);
        }
        Ok(())
    }

    /// Some processes, each for a moment.
    fn forks(&mut self) -> io::Result<()> {
        for _ in 0..self.rng.u32(1..8) {
            fork(|| (0..self.rng.u32(1..1 << 14)).for_each(|pass| _ = black_box(pass)))?;
        }
        while reap(true).is_some() {}
        self.nap(1..20_000);
        Ok(())
    }

    /// The most processes that are allowed wait for one pipe, and end at once.
    fn exits(&mut self) -> io::Result<()> {
        let (mut wait, go) = pipe()?;
        while fork(|| {
            // SAFETY: nothing in this process uses it any more.
            unsafe { libc::close(go.as_raw_fd()) };
            // The end of the pipe.
            let _ = wait.read(&mut [0]);
        })
        .is_ok()
        {}
        self.nap(1..5_000);
        drop(go);
        while reap(true).is_some() {}
        self.nap(1..20_000);
        Ok(())
    }

    /// Makes groups in its own, limits and freezes them, and moves its processes among them.
    fn groups(&mut self) -> io::Result<()> {
        let group = self.group.join(format!("own{}", self.rng.u32(0..GROUPS)));
        let set = |file: &str, value: String| fs::write(group.join(file), value);
        match self.rng.u32(0..8) {
            0 => fs::create_dir(&group),
            1 => fs::remove_dir(&group),
            2 => {
                let period_us = self.rng.u32(1_000..=100_000);
                set("cpu.max", format!("{} {period_us}", self.rng.u32(period_us.div_ceil(4).max(1_000)..=period_us)))
            }
            3 => set("cpu.max", "max".into()),
            4 => set("cpu.weight", self.rng.u32(WEIGHTS).to_string()),
            5 => {
                set("cgroup.freeze", "1".into())?;
                self.nap(1..5_000);
                set("cgroup.freeze", "0".into())
            }
            6 => set("cgroup.procs", self.one().to_string()),
            _ => fs::write(self.group.join("home/cgroup.procs"), self.one().to_string()),
        }
    }

    fn affinities(&mut self) -> io::Result<()> {
        let (pid, cpus) = (self.one(), self.rng.u64(1..1 << self.cpus.min(63)));
        // SAFETY: a set of 64 CPUs.
        unsafe { libc::sched_setaffinity(pid, mem::size_of_val(&cpus), (&raw const cpus).cast()) };
        self.nap(1..2_000);
        Ok(())
    }

    /// Nice values and classes, those that it may have and others, with slices of all lengths.
    fn classes(&mut self) -> io::Result<()> {
        let pid = self.one();
        // Its size and class; flags; nice value and priority; runtime, deadline and period.
        let class = self.rng.choice([0, 0, 1, 2, 3, 6, 7]).unwrap_or_default();
        let nice = self.rng.i32(-20..NICE.end) as u32;
        let runtime_ns = self.rng.u64(0..200_000_000);
        let words = [
            class << 32 | 48,
            0,
            u64::from(self.rng.u32(0..2)) << 32 | u64::from(nice),
            runtime_ns,
            runtime_ns * 2,
            runtime_ns * 2,
        ];
        // SAFETY: plain system calls; the words are as large as the first one says.
        unsafe {
            libc::setpriority(libc::PRIO_PROCESS, pid as u32, self.rng.i32(NICE));
            libc::syscall(libc::SYS_sched_setattr, pid, words.as_ptr(), 0);
        }
        self.nap(1..2_000);
        Ok(())
    }

    fn signals(&mut self) -> io::Result<()> {
        let pid = self.one();
        // SAFETY: plain system calls, for a process of its own.
        let send = |signal| unsafe { libc::kill(pid, signal) };
        if pid > 0 && pid as u32 != std::process::id() {
            send(libc::SIGSTOP);
            self.nap(1..5_000);
            send(libc::SIGCONT);
            if self.rng.u32(0..8) == 0 {
                send(libc::SIGKILL);
            }
        }
        Ok(())
    }

    /// Fills memory up to its limit, and now and then beyond: then this process is killed.
    fn memory(&mut self) -> io::Result<()> {
        let len = if self.rng.u32(0..32) == 0 { 2 * MEMORY_MAX } else { MEMORY_MAX / 2 };
        let mut bytes = vec![0_u8; len];
        for (number, page) in bytes.chunks_mut(4096).enumerate() {
            page[0] = 1;
            if number % 64 == 0 {
                spin_loop();
            }
        }
        black_box(&bytes);
        drop(bytes);
        self.nap(1_000..20_000);
        Ok(())
    }

    fn timers(&mut self) -> io::Result<()> {
        let mut timers = Vec::new();
        for _ in 0..32 {
            let mut timer = ptr::null_mut();
            // SAFETY: all zeros are a good event, and good times.
            let (mut event, mut times): (libc::sigevent, libc::itimerspec) = unsafe { (mem::zeroed(), mem::zeroed()) };
            event.sigev_notify = libc::SIGEV_SIGNAL;
            event.sigev_signo = libc::SIGUSR1;
            times.it_value.tv_nsec = self.rng.i64(1..2_000_000);
            times.it_interval.tv_nsec = self.rng.i64(100_000..5_000_000);
            let clock = self.rng.choice([libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME, libc::CLOCK_PROCESS_CPUTIME_ID]);
            // SAFETY: everything that is pointed to lives here.
            unsafe {
                if libc::timer_create(clock.unwrap_or_default(), &mut event, &mut timer) == 0 {
                    libc::timer_settime(timer, 0, &times, ptr::null_mut());
                    timers.push(timer);
                }
            }
        }
        for _ in 0..16 {
            self.nap(1..3_000);
        }
        // SAFETY: each was made above, and is deleted only here.
        timers.into_iter().for_each(|timer| unsafe {
            libc::timer_delete(timer);
        });
        Ok(())
    }

    fn spins(&mut self) -> io::Result<()> {
        ekiden_workload::real::spin::keep_busy(4_000);
        spin_loop();
        Ok(())
    }

    fn yields(&mut self) -> io::Result<()> {
        // SAFETY: it takes nothing, and gets at no memory of ours.
        unsafe { libc::sched_yield() };
        Ok(())
    }

    fn naps(&mut self) -> io::Result<()> {
        self.nap(1..500);
        Ok(())
    }
}

/// How soon a process that does this is killed for want of memory.
fn oom_of(deed: &str) -> i32 {
    if deed == "memory" { OOM_FIRST } else { OOM_USUAL }
}

/// How soon this process is, and those that it forks from now on.
fn set_oom(score: i32) -> io::Result<()> {
    fs::write("/proc/self/oom_score_adj", score.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fills_memory_is_killed_first_and_what_keeps_the_others_never() {
        let first: Vec<_> =
            DEEDS.iter().filter(|(deed, ..)| oom_of(deed) == OOM_FIRST).map(|(deed, ..)| *deed).collect();
        assert_eq!(first, ["memory"]);
        assert!(DEEDS.iter().all(|(deed, ..)| oom_of(deed) > OOM_NEVER));
    }

    #[test]
    fn a_process_that_was_forked_sets_for_itself_how_soon_it_is_killed() {
        let read = || -> i32 { fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse().unwrap() };
        let before = read();
        let (mut told, mut tell) = pipe().unwrap();
        fork(|| {
            let done = set_oom(OOM_FIRST).is_ok() && read() == OOM_FIRST;
            let _ = io::Write::write_all(&mut tell, &[done.into()]);
        })
        .unwrap();
        let mut done = [0];
        told.read_exact(&mut done).unwrap();
        assert_eq!((done, read()), ([1], before));
        reap(true);
    }
}
