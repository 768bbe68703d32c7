//! What other users get beside a hostile neighbour: what the programs of one of them come to under each policy, and under the kernel's
//! own scheduler.

use std::{
    collections::BTreeMap,
    env, fs,
    hint::{black_box, spin_loop},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ekiden_loader::{Session, Status};
use serde::Serialize;
use serde_json::json;

use crate::{
    board::Board,
    guest_tests::config,
    intruder::be_user,
    load::{be_anywhere, pause},
    neighbour::Neighbour,
    processes::{fork, reap},
    storm::be_real_time,
    upgrades::pipe,
};

const USER: u32 = 1001;
/// Kinds of work that are counted, by their place on the board.
const WORK: [&str; 3] = ["computing", "wakeups", "round_trips"];
/// How long each has before it counts.
const WARM_UP: Duration = Duration::from_millis(200);

/// A user with a few programs, in a control group for each: one for each CPU that computes, one that sleeps for a millisecond each time,
/// and a pair that has a byte go to and fro.
struct Victim {
    child: Child,
    group: PathBuf,
    board: Board,
}

impl Victim {
    fn start() -> Result<Self> {
        let group = PathBuf::from("/sys/fs/cgroup/victim");
        let make = |group: &Path| fs::create_dir(group).context("cannot make a group");
        make(&group)?;
        fs::write(group.join("cgroup.subtree_control"), "+cpu").context("cannot make groups in a group")?;
        WORK.iter().try_for_each(|what| make(&group.join(what)))?;
        let (board, file) = Board::new().context("cannot make shared memory")?;
        let child = Command::new(env::current_exe()?)
            .args(["victim-works", "--group"])
            .arg(&group)
            .stdin(Stdio::from(file))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start programs")?;
        Ok(Self { child, group, board })
    }

    /// What each kind of program does in some of that time while the others are frozen: what one takes, another would not get.
    fn does(&self, time: Duration) -> Result<BTreeMap<&'static str, Work>> {
        let freeze = |what: &str, value: &str| {
            fs::write(self.group.join(what).join("cgroup.freeze"), value).context("cannot freeze a group")
        };
        WORK.iter().try_for_each(|what| freeze(what, "1"))?;
        let mut work = BTreeMap::new();
        for (place, what) in WORK.into_iter().enumerate() {
            freeze(what, "0")?;
            pause(WARM_UP.as_millis() as u64);
            let (before, start) = (self.board.get(place), Instant::now());
            thread::sleep(time);
            let (after, seconds) = (self.board.get(place), start.elapsed().as_secs_f64());
            freeze(what, "1")?;
            work.insert(what, Work { count: after - before, seconds });
        }
        Ok(work)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = fs::write(self.group.join("cgroup.kill"), "1");
        let _ = self.child.wait();
        let start = Instant::now();
        for group in WORK.iter().map(|what| self.group.join(what)).chain([self.group.clone()]) {
            while fs::remove_dir(&group).is_err() && start.elapsed() < Duration::from_secs(5) {
                pause(5);
            }
        }
    }
}

/// The process that [`Victim::start`] starts.
pub(crate) fn works(group: &Path) -> Result<()> {
    let board = Board::of(&io::stdin()).context("no shared memory")?;
    be_anywhere()?;
    let ((mut there, mut from_here), (mut back, mut from_there)) = (pipe()?, pipe()?);
    let cpus = thread::available_parallelism()?.get();
    let start = |place: usize, work: &mut dyn FnMut() -> io::Result<()>| {
        fork(|| {
            // Whatever fails is not counted.
            let _ = fs::write(group.join(WORK[place]).join("cgroup.procs"), "0");
            while be_user(USER).is_ok() && work().is_ok() {}
        })
    };
    for _ in 0..cpus {
        start(0, &mut || {
            loop {
                (0..1_000).for_each(|pass| _ = black_box(pass));
                board.add(0, 1);
                spin_loop();
            }
        })?;
    }
    start(1, &mut || {
        loop {
            thread::sleep(Duration::from_millis(1));
            board.add(1, 1);
        }
    })?;
    start(2, &mut || {
        loop {
            there.read_exact(&mut [0]).and_then(|()| from_there.write_all(&[0]))?;
        }
    })?;
    start(2, &mut || {
        loop {
            from_here.write_all(&[0]).and_then(|()| back.read_exact(&mut [0]))?;
            board.add(2, 1);
        }
    })?;
    while reap(true).is_some() {}
    Ok(())
}

/// What programs did, and in what time: the thread that measures may have been woken late.
#[derive(Serialize)]
struct Work {
    count: u64,
    seconds: f64,
}

/// The result of one turn of a scheduler.
#[derive(Serialize)]
struct Turn<'a> {
    /// `kernel` for the kernel's own.
    scheduler: &'a str,
    round: u32,
    work: BTreeMap<&'static str, Work>,
    /// What the neighbour did meanwhile.
    deeds: BTreeMap<&'static str, u64>,
    contract_violations: u64,
    unexpected_transitions: u64,
    still_running: bool,
}

/// Schedulers have their turns in each round, the kernel's own among them; in a round, the neighbour does the same under all.
pub(crate) fn beside(modules: &Path, policies: &[String], rounds: u32, seconds: f64, seed: u64) -> Result<()> {
    // The thread that measures has a CPU at once.
    be_real_time()?;
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu +memory +pids").context("the groups lack controllers")?;
    // Files that a policy makes are there without one, too: the neighbour reads them.
    drop(Session::start(&config(modules, "wfq"))?);
    for round in 0..rounds {
        let mut order: Vec<Option<&str>> = policies.iter().map(|policy| Some(policy.as_str())).collect();
        order.insert(round as usize % (policies.len() + 1), None);
        for policy in order {
            let session = policy.map(|policy| Session::start(&config(modules, policy))).transpose()?;
            let victim = Victim::start()?;
            let neighbour = Neighbour::start(seed + u64::from(round))?;
            let before = neighbour.deeds();
            let work = victim.does(Duration::from_secs_f64(seconds))?;
            let after = neighbour.end()?;
            drop(victim);
            let status = Status::read()?.unwrap_or_default();
            let still_running = session.as_ref().is_none_or(Session::is_running);
            if let (Some(policy), false) = (policy, still_running) {
                ensure!(status.fault.is_some(), "{policy} was taken out without a reason");
            }
            let turn = Turn {
                scheduler: policy.unwrap_or("kernel"),
                round,
                work,
                deeds: after.iter().map(|(name, count)| (*name, count - before[name])).collect(),
                contract_violations: status.counts.contract_violations,
                unexpected_transitions: status.counts.unexpected_transitions,
                still_running,
            };
            println!("{}", json!(turn));
        }
    }
    Ok(())
}
