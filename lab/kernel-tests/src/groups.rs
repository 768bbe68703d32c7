//! Control groups under a policy: shares, limits, cpusets, and tasks that move between them.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    ops::Range,
    os::unix::fs::{FileExt, chown},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use ekiden_loader::{Config, Drain, Session, Status};
use serde::Serialize;
use serde_json::json;

use crate::guest_tests::config;
use crate::load::{Worker, pause, pipe_round_trip_ns, used_us};
use crate::storm::{measure_off_times, off_times};

/// A control group that is gone when this is; workers in it must be gone before.
pub(crate) struct Group(PathBuf);

impl Group {
    /// One below the root, for CPUs and their time.
    pub(crate) fn top(name: &str) -> Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        write(&root.join("cgroup.subtree_control"), "+cpu +cpuset")?;
        Self::new(root, name)
    }

    pub(crate) fn new(parent: &Path, name: &str) -> Result<Self> {
        let path = parent.join(name);
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn set(&self, file: &str, value: &str) -> Result<()> {
        write(&self.0.join(file), value)
    }

    /// Starts a worker in it.
    pub(crate) fn start(&self, what: &str) -> Result<Worker> {
        let worker = Worker::start(what)?;
        self.take(&worker)?;
        Ok(worker)
    }

    /// What all in it use of a CPU for that time, in percent.
    pub(crate) fn percent_used(&self, time: Duration) -> Result<f64> {
        let (before_us, start) = (self.used_us()?, Instant::now());
        thread::sleep(time);
        Ok(percent((self.used_us()? - before_us) * 1_000, start.elapsed().as_nanos() as u64))
    }

    /// CPU time in percent for about `time`, of a group with a period of a second, between two moments in which it owes nothing.
    fn percent_used_and_paid(&self, time: Duration) -> Result<f64> {
        let (before_us, start) = self.runs_again(10 * time)?;
        thread::sleep(time);
        let (after_us, end) = self.runs_again(10 * time)?;
        Ok(percent((after_us - before_us) * 1_000, (end - start).as_nanos() as u64))
    }

    /// Waits until they run again after most of a period, and says what they had used by then, and when it was. What a CPU was away for counts
    /// as used; it is owed, and paid while they do not run. A shorter pause is one of a task that is being run; after a longer one they run
    /// although they still owe.
    fn runs_again(&self, within: Duration) -> Result<(u64, Instant)> {
        const PAYS: Range<Duration> = Duration::from_millis(500)..Duration::from_millis(4_500);
        let start = Instant::now();
        loop {
            let (used_us, since) = (self.used_us()?, Instant::now());
            while self.used_us()? == used_us {
                ensure!(start.elapsed() < within, "it does not run again");
                pause(1);
            }
            if PAYS.contains(&since.elapsed()) {
                return Ok((used_us, Instant::now()));
            }
        }
    }

    pub(crate) fn used_us(&self) -> Result<u64> {
        used_us(&self.0)
    }

    pub(crate) fn take(&self, worker: &Worker) -> Result<()> {
        self.set("cgroup.procs", &worker.pid().to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that was killed in it may take a moment to leave.
        let start = Instant::now();
        while fs::remove_dir(&self.0).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
            && start.elapsed() < Duration::from_secs(5)
        {
            pause(5);
        }
    }
}

fn write(path: &Path, value: &str) -> Result<()> {
    fs::write(path, value).with_context(|| format!("cannot write {value} to {}", path.display()))
}

/// The CPU time that each of the workers uses in `time`, in nanoseconds, and how long that took.
fn used(workers: &[&Worker], time: Duration) -> (Vec<u64>, u64) {
    let before: Vec<u64> = workers.iter().map(|worker| worker.ran_ns()).collect();
    let start = Instant::now();
    thread::sleep(time);
    let after = workers.iter().map(|worker| worker.ran_ns());
    let used = after.zip(before).map(|(after, before)| after - before).collect();
    (used, start.elapsed().as_nanos() as u64)
}

pub(crate) fn percent(part_ns: u64, whole_ns: u64) -> f64 {
    part_ns as f64 * 100.0 / whole_ns as f64
}

/// Long enough that a tick more or less is far below five percent.
const TIME: Duration = Duration::from_secs(4);

pub(crate) fn groups(modules: &Path, policy: Option<&str>) -> Result<()> {
    let root = Path::new("/sys/fs/cgroup");
    write(&root.join("cgroup.subtree_control"), "+cpu +cpuset")?;
    // One group is there before the policy, the others come later.
    let first = Group::new(root, "first")?;
    first.set("cpu.weight", "300")?;
    let early = first.start("spin")?;
    let session = policy.map(|policy| Session::start(&config(modules, policy))).transpose()?;
    let still_runs = || session.as_ref().map_or(Ok(()), |session| session.check().map_err(anyhow::Error::from));

    let second = Group::new(root, "second")?;
    let (late, late_too) = (second.start("spin")?, second.start("spin")?);
    for worker in [&early, &late, &late_too] {
        worker.pin(0)?;
    }
    pause(200);
    let (ran, _) = used(&[&early, &late, &late_too], TIME);
    println!("{}", json!({ "what": "300 to 100", "percent": percent(ran[0], ran.iter().sum()) }));

    second.set("cpu.idle", "1")?;
    pause(200);
    let (ran, _) = used(&[&early, &late, &late_too], TIME);
    println!("{}", json!({ "what": "idle", "percent": percent(ran[0], ran.iter().sum()) }));
    second.set("cpu.idle", "0")?;
    still_runs()?;

    // Two levels: the groups inside of the second share what it gets, which is half.
    first.set("cpu.weight", "100")?;
    drop((late, late_too));
    second.set("cgroup.subtree_control", "+cpu")?;
    {
        let inner = [Group::new(&second.0, "one")?, Group::new(&second.0, "three")?];
        inner[1].set("cpu.weight", "300")?;
        let workers = [inner[0].start("spin")?, inner[1].start("spin")?];
        workers.iter().try_for_each(|worker| worker.pin(0))?;
        pause(200);
        let (ran, _) = used(&[&early, &workers[0], &workers[1]], TIME);
        let whole: u64 = ran.iter().sum();
        println!("{}", json!({ "what": "half", "percent": percent(ran[0], whole) }));
        println!("{}", json!({ "what": "three quarters of half", "percent": percent(ran[2], whole) }));
        drop(workers);
    }
    drop(early);

    let limited = Group::new(root, "limited")?;
    let hogs = [limited.start("spin")?, limited.start("spin")?, limited.start("spin")?];
    for (quota, what) in [("50000", "half a CPU"), ("150000", "one and a half CPUs"), ("5000", "a twentieth of a CPU")]
    {
        limited.set("cpu.max", &format!("{quota} 100000"))?;
        pause(300);
        let (ran, whole_ns) = used(&[&hogs[0], &hogs[1], &hogs[2]], TIME);
        println!("{}", json!({ "what": what, "percent": percent(ran.iter().sum(), whole_ns) }));
        hogs.iter().try_for_each(Worker::must_run).with_context(|| format!("with {what}"))?;
        still_runs()?;
    }
    limited.set("cpu.max", "max")?;
    pause(300);
    let (ran, whole_ns) = used(&[&hogs[0], &hogs[1], &hogs[2]], Duration::from_secs(1));
    println!("{}", json!({ "what": "no limit", "percent": percent(ran.iter().sum(), whole_ns) }));

    limited.set("cpuset.cpus", "0")?;
    pause(100);
    let (ran, whole_ns) = used(&[&hogs[0], &hogs[1], &hogs[2]], Duration::from_secs(1));
    println!("{}", json!({ "what": "cpuset of one CPU", "percent": percent(ran.iter().sum(), whole_ns) }));
    still_runs()?;

    // Tasks move between groups with and without a limit, and out of them, while they run, wait or are throttled.
    limited.set("cpuset.cpus", "")?;
    limited.set("cpu.max", "10000 100000")?;
    let tight = Group::new(root, "tight")?;
    tight.set("cpu.max", "2000 50000")?;
    let napper = limited.start("nap")?;
    for round in 0..100 {
        for (index, worker) in hogs.iter().chain([&napper]).enumerate() {
            match (round + index) % 3 {
                0 => limited.take(worker)?,
                1 => tight.take(worker)?,
                _ => write(&root.join("cgroup.procs"), &worker.pid().to_string())?,
            }
        }
        if round % 10 == 0 {
            tight.set("cpu.max", if round % 20 == 0 { "max" } else { "2000 50000" })?;
        }
        pause(7);
        // The napping task must not keep all the time of its group from the spinning ones.
        if round % 25 == 24 {
            hogs.iter()
                .try_for_each(Worker::must_run)
                .with_context(|| format!("after {round} moves between groups"))?;
        }
    }
    hogs.iter().chain([&napper]).try_for_each(Worker::must_run).context("after moves between groups")?;
    still_runs()?;
    drop((hogs, napper));
    println!("{}", json!({ "what": "moves", "percent": 100.0 }));

    // A hundred groups, each with a limit, some with work, and they go again.
    {
        let crowd = (0..100).map(|number| Group::new(root, &format!("crowd{number}"))).collect::<Result<Vec<_>>>()?;
        for (number, group) in crowd.iter().enumerate() {
            group.set("cpu.weight", &(1 + number * 10).to_string())?;
            group.set("cpu.max", "20000 100000")?;
        }
        let workers = crowd.iter().step_by(20).map(|group| group.start("spin")).collect::<Result<Vec<_>>>()?;
        pause(1_000);
        workers.iter().try_for_each(Worker::must_run).context("in a hundred groups")?;
        still_runs()?;
        drop(workers);
    }
    println!("{}", json!({ "what": "a hundred groups", "percent": 100.0 }));
    if let Some(session) = session {
        let status = Status::read()?.unwrap_or_default();
        let still_running = session.is_running();
        session.stop();
        ensure!(still_running, "the policy is gone: {status:?}");
        println!(
            "{}",
            json!({ "what": "counts", "contract_violations": status.counts.contract_violations, "unexpected_transitions": status.counts.unexpected_transitions })
        );
    }
    Ok(())
}

/// Six seconds for each of many policies: a group may use a fifth of a CPU and has two tasks, each on a CPU of its own; then
/// a task of each of two groups is on CPU 0, for so long that a few turns of 40 ms more or less make no difference. Under `mlfq`, one that is
/// preempted in its turn has the rest of it after the other one's turn.
pub(crate) fn grouped(modules: &Path, policy: &str) -> Result<()> {
    let session = Session::start(&config(modules, policy))?;
    let limited = Group::top("limited")?;
    limited.set("cpu.max", "8000 40000")?;
    let hogs = [limited.start("spin")?, limited.start("spin")?];
    for (cpu, hog) in hogs.iter().enumerate() {
        hog.pin(cpu)?;
    }
    pause(100);
    let limited_percent = limited.percent_used(Duration::from_millis(1_200))?;
    hogs.iter().try_for_each(Worker::must_run)?;
    drop(hogs);
    let (more, less) = (Group::top("more")?, Group::top("less")?);
    more.set("cpu.weight", "300")?;
    less.set("cpu.weight", "100")?;
    let hogs = [more.start("spin")?, less.start("spin")?];
    hogs.iter().try_for_each(|hog| hog.pin(0))?;
    pause(100);
    let (ran, whole_ns) = used(&[&hogs[0], &hogs[1]], Duration::from_millis(4_800));
    hogs.iter().try_for_each(Worker::must_run)?;
    drop(hogs);
    let counts = Status::read()?.unwrap_or_default().counts;
    let whole = ran.iter().sum();
    println!(
        "{}",
        json!({
            "policy": policy,
            "limited_percent": limited_percent,
            "more_percent": percent(ran[0], whole),
            "used_percent": percent(whole, whole_ns),
            "contract_violations": counts.contract_violations,
            "unexpected_transitions": counts.unexpected_transitions,
            "still_running": session.is_running(),
        })
    );
    session.stop();
    Ok(())
}

/// Records tasks of groups with weights and limits, which are changed meanwhile.
pub(crate) fn recorded_groups(modules: &Path, to: &Path) -> Result<()> {
    let root = Path::new("/sys/fs/cgroup");
    write(&root.join("cgroup.subtree_control"), "+cpu")?;
    let mut config = config(modules, "wfq");
    config.call_log_records = 1 << 16;
    let session = Session::start(&config)?;
    let drain = Drain::start(File::create(to)?, None, false, "groups")?;
    let groups = [Group::new(root, "tight")?, Group::new(root, "heavy")?];
    let mut workers = Vec::new();
    for group in &groups {
        workers.extend([group.start("spin")?, group.start("spin")?, group.start("nap")?]);
    }
    for round in 0..20 {
        groups[0].set("cpu.max", if round % 10 == 9 { "max" } else { "8000 40000" })?;
        groups[1].set("cpu.weight", &(50 + 100 * round).to_string())?;
        groups[round % 2].take(&workers[0])?;
        pause(50);
    }
    workers.iter().try_for_each(Worker::must_run)?;
    drop((workers, groups));
    let kept = drain.stop()?;
    session.check()?;
    session.stop();
    println!("{}", json!({ "records": kept.records, "lost": kept.lost }));
    Ok(())
}

/// What a round trip through two pipes costs between two tasks in the root, in two of a hundred groups, and there with limits.
/// Guest nanoseconds are instructions. The kernel itself has more to do for tasks in groups, whatever the scheduler.
pub(crate) fn group_costs(modules: &Path, policy: Option<&str>) -> Result<()> {
    let root = Path::new("/sys/fs/cgroup");
    write(&root.join("cgroup.subtree_control"), "+cpu")?;
    let session = policy.map(|policy| Session::start(&config(modules, policy))).transpose()?;
    let mut best_ns = [u64::MAX; 3];
    for _ in 0..3 {
        best_ns[0] = best_ns[0].min(pipe_round_trip_ns([root, root])?);
        let groups = (0..100).map(|number| Group::new(root, &format!("crowd{number}"))).collect::<Result<Vec<_>>>()?;
        best_ns[1] = best_ns[1].min(pipe_round_trip_ns([&groups[20].0, &groups[80].0])?);
        groups.iter().try_for_each(|group| group.set("cpu.max", "190000 100000"))?;
        best_ns[2] = best_ns[2].min(pipe_round_trip_ns([&groups[20].0, &groups[80].0])?);
    }
    if let Some(session) = session {
        session.check()?;
        session.stop();
    }
    let [root_ns, groups_ns, limits_ns] = best_ns;
    println!("{}", json!({ "root_ns": root_ns, "groups_ns": groups_ns, "limits_ns": limits_ns }));
    Ok(())
}

/// What [`many_tasks_and_groups`] found.
#[derive(Serialize)]
struct ManyTasksAndGroupsReport {
    /// How many of `tasks` were throttled at once.
    throttled: u64,
    /// The CPU time that all of them used, in percent of one CPU; they may use a tenth.
    tasks_percent: f64,
    /// How long interrupts were off at most, in nanoseconds of the guest, by the kind of event.
    off_ns_max: BTreeMap<String, u64>,
    /// A user has made so many groups below a limit of a tenth of a CPU. In the last of them, a task used so much.
    groups_percent: f64,
    /// And in the last of many inside of that one.
    nested_percent: f64,
    /// And a task in a group of root's that came after those, with the same limit.
    other_percent: f64,
    groups: u64,
    groups_without_room: u64,
    still_running: bool,
}

/// The owner of files that this thread makes.
fn act_as(uid: u32) {
    // SAFETY: it takes a number, and gets at no memory of ours.
    unsafe { libc::syscall(libc::SYS_setfsuid, uid) };
}

/// More tasks than a limit can have in mind, and more groups than there is room for.
pub(crate) fn many_tasks_and_groups(modules: &Path, tasks: u32, groups: u32) -> Result<()> {
    const USER: u32 = 1000;
    let root = Path::new("/sys/fs/cgroup");
    write(&root.join("cgroup.subtree_control"), "+cpu")?;
    let session = Session::start(&Config { max_tasks: 32_768, ..config(modules, "wfq") })?;
    measure_off_times()?;

    let limited = Group::new(root, "limited")?;
    let hogs = Worker::crowd(tasks)?;
    limited.take(&hogs)?;
    limited.set("cpu.max", "1000 10000")?;
    hogs.release()?;
    // Each comes to user mode first, and owes that; and then they are all overdue at once.
    let tasks_percent = limited.percent_used(4 * TIME)?;
    let throttled = Status::read()?.context("no status")?.throttled;
    let off_ns_max = off_times(&Status::read()?.context("no status")?);
    session.check()?;
    drop((hogs, limited));

    let delegated = Group::new(root, "delegated")?;
    delegated.set("cpu.max", "10000 100000")?;
    for path in [&delegated.0, &delegated.0.join("cgroup.subtree_control"), &delegated.0.join("cgroup.procs")] {
        chown(path, Some(USER), None).context("cannot give a group away")?;
    }
    act_as(USER);
    delegated.set("cgroup.subtree_control", "+cpu")?;
    let many = (0..groups).map(|number| Group::new(&delegated.0, &number.to_string())).collect::<Result<Vec<_>>>();
    let many = many?;
    // And more inside of each other than are looked at one by one.
    let mut nested: Vec<Group> = Vec::new();
    for _ in 0..150 {
        let inside_of = nested.last().or(many.last()).context("no group")?;
        inside_of.set("cgroup.subtree_control", "+cpu")?;
        let group = Group::new(&inside_of.0, "inside")?;
        nested.push(group);
    }
    act_as(0);
    let of_percent = |group: &Group| -> Result<f64> {
        let _hog = group.start("spin")?;
        pause(300);
        group.percent_used(TIME)
    };
    let nested_percent = of_percent(nested.last().context("no group")?)?;
    nested.into_iter().rev().for_each(drop);
    many.last().context("no group")?.set("cgroup.subtree_control", "-cpu")?;
    let groups_percent = of_percent(many.last().context("no group")?)?;
    let other = Group::new(root, "other")?;
    other.set("cpu.max", "10000 100000")?;
    let other_percent = of_percent(&other)?;
    let status = Status::read()?.context("no status")?;
    let still_running = session.is_running();
    session.stop();
    let (groups, groups_without_room) = (status.groups, status.groups_without_room);
    drop((many, delegated, other));
    until_all_are_gone()?;
    println!(
        "{}",
        serde_json::to_string(&ManyTasksAndGroupsReport {
            throttled,
            tasks_percent,
            off_ns_max,
            groups_percent,
            nested_percent,
            other_percent,
            groups,
            groups_without_room,
            still_running,
        })?
    );
    Ok(())
}

/// Waits until the kernel has taken down all groups that have ended: what follows in this guest would wait for its workers.
fn until_all_are_gone() -> Result<()> {
    let start = Instant::now();
    let is_dying = |line: &str| line.starts_with("nr_dying") && !line.ends_with(" 0");
    while fs::read_to_string("/sys/fs/cgroup/cgroup.stat")?.lines().any(is_dying) {
        ensure!(start.elapsed() < Duration::from_secs(120), "groups that have ended are still there");
        pause(50);
    }
    Ok(())
}

/// What [`holder`] found.
#[derive(Serialize)]
struct HolderReport {
    /// How long a task without a limit waited for a lock of the kernel's at most, in milliseconds of the guest.
    wait_ms_max: u64,
    waits: u64,
    /// And what its neighbour with a limit of a fiftieth of a CPU used, in percent.
    percent: f64,
    still_running: bool,
}

/// A task whose group hardly has any CPU time is in a system call nearly always, with a lock that another one wants.
pub(crate) fn holder(modules: &Path) -> Result<()> {
    let root = Path::new("/sys/fs/cgroup");
    write(&root.join("cgroup.subtree_control"), "+cpu")?;
    let session = Session::start(&config(modules, "wfq"))?;
    let limited = Group::new(root, "limited")?;
    limited.set("cpu.max", "20000 1000000")?;
    let file = File::create("/tmp/locked").context("cannot make a file")?;
    let _writer = limited.start("write")?;
    let begun = Instant::now();
    let (mut wait_ns_max, mut waits) = (0, 0);
    let other = thread::scope(|scope| -> Result<f64> {
        let used = scope.spawn(|| limited.percent_used_and_paid(2 * TIME));
        while begun.elapsed() < 2 * TIME {
            let start = Instant::now();
            // Both take the lock of the inode.
            file.write_at(&[0], 0).context("cannot write")?;
            wait_ns_max = start.elapsed().as_nanos().max(wait_ns_max);
            waits += 1;
            pause(1);
        }
        used.join().map_err(|_| anyhow!("cannot measure"))?
    });
    let percent = other?;
    let still_running = session.is_running();
    session.stop();
    let wait_ms_max = (wait_ns_max / 1_000_000) as u64;
    println!("{}", serde_json::to_string(&HolderReport { wait_ms_max, waits, percent, still_running })?);
    Ok(())
}
