//! Control groups under a policy: shares, limits, cpusets, and tasks that move between them.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ekiden_loader::{Drain, Session, Status};
use serde_json::json;

use crate::load::{Worker, pause, pipe_round_trip_ns};
use crate::trials::config;

/// A control group that is gone when this is; workers in it must be gone before.
pub(crate) struct Group(PathBuf);

impl Group {
    /// One below the root, for CPUs and their time.
    pub(crate) fn top(name: &str) -> Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        write(&root.join("cgroup.subtree_control"), "+cpu +cpuset")?;
        Self::new(root, name)
    }

    fn new(parent: &Path, name: &str) -> Result<Self> {
        let path = parent.join(name);
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
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

    fn take(&self, worker: &Worker) -> Result<()> {
        self.set("cgroup.procs", &worker.pid().to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Whoever was killed in it may take a moment to leave.
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

fn percent(part_ns: u64, whole_ns: u64) -> f64 {
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

    // Tasks move between groups with and without a limit, and out of them, while they run, wait or are parked.
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
            json!({ "what": "counts", "mistakes": status.counts.mistakes, "surprises": status.counts.surprises })
        );
    }
    Ok(())
}

/// Records tasks of groups with weights and limits, which are changed meanwhile.
pub(crate) fn recorded_groups(modules: &Path, to: &Path) -> Result<()> {
    let root = Path::new("/sys/fs/cgroup");
    write(&root.join("cgroup.subtree_control"), "+cpu")?;
    let mut config = config(modules, "wfq");
    config.tape_records = 1 << 16;
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
