//! Processes of root and of ordinary users use `/dev/ekiden`: they ask it for anything in any order, while policies come,
//! go and take over.

use std::{
    collections::BTreeMap,
    env, fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ekiden::CpuMask;
use ekiden_engine::{Checks, Share};
use ekiden_loader::{Beside, Config, Session, Status, Succession, load_copy, unload_all};
use ekiden_policies::NAMES;
use serde::Serialize;
use serde_json::json;

use crate::{
    board::Board,
    guest_tests::{config, module_of},
    load::{Worker, pause},
    requests::{CONTROL_GAINED, done},
    storm::unload_unused,
};

/// Who asks: ordinary users and root.
const USERS: [u32; 5] = [0, 0, 0, 1000, 1001];
/// What the kernel has to keep of every small object: that it is what it was, with room around it that is not written to.
const SLAB_FLAGS: [&str; 4] = ["sanity_checks", "red_zone", "poison", "store_user"];

#[derive(Serialize)]
struct DeviceReport {
    seed: u64,
    /// Whether the kernel checks every object that it allocates.
    slab_debug: bool,
    /// How often what was asked.
    steps: BTreeMap<&'static str, u64>,
    /// Processes that were killed in the middle.
    deaths: u64,
    upgrades: u64,
    /// Policies that came beside the first one.
    came: u64,
    /// Policies of these that a hint of root's asked to panic.
    faulted: u64,
    /// What an ordinary user got that is root's.
    control_gained: u64,
    contract_violations: u64,
    unexpected_transitions: u64,
    last_unexpected_transition: Option<String>,
    still_running: bool,
    /// A policy was loaded afterwards, and tasks ran under it.
    loads_again: bool,
}

/// A process that asks, until this is dropped.
struct Asker(Child);

impl Asker {
    fn start(seed: u64, number: usize, board: &fs::File) -> Result<Self> {
        let seed = seed.to_string();
        let (number, user) = (number.to_string(), USERS[number].to_string());
        let child = Command::new(env::current_exe()?)
            .args(["device-asks", "--seed", &seed, "--number", &number, "--user", &user])
            .stdin(Stdio::from(board.try_clone()?))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start a process")?;
        Ok(Self(child))
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn small(modules: &Path, policy: &str, beside: Beside) -> Config {
    Config { beside, max_tasks: 4096, arena_bytes: 4 << 20, call_log_records: 1 << 10, ..config(modules, policy) }
}

/// Has the device asked for this many seconds, by the guest's clock.
pub(crate) fn device(modules: &Path, seconds: u64, seed: u64) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let is_checked = |flag: &&str| {
        fs::read_to_string(format!("/sys/kernel/slab/kmalloc-64/{flag}")).is_ok_and(|value| value.trim() == "1")
    };
    let slab_debug = SLAB_FLAGS.iter().all(is_checked);
    let first = Session::start(&small(modules, "wfq", Beside::Nobody))?;
    let (board, file) = Board::new().context("cannot make shared memory")?;
    let mut askers =
        (0..USERS.len()).map(|number| Asker::start(rng.u64(..), number, &file)).collect::<Result<Vec<_>>>()?;
    let napper = Worker::anywhere("nap")?;
    let mut beside: Option<Session> = None;
    let (mut deaths, mut upgrades, mut came, mut faulted) = (0, 0, 0, 0);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        pause(rng.u64(20..200));
        first.check().context("the policy that root holds")?;
        for asker in &mut askers {
            ensure!(asker.0.try_wait()?.is_none(), "a process that asks was killed by what it was answered");
        }
        match rng.u32(0..8) {
            0..3 => {
                let number = rng.usize(0..askers.len());
                askers[number] = Asker::start(rng.u64(..), number, &file)?;
                deaths += 1;
            }
            // Root may have said that it is asked never: that is undone before it starves.
            3 | 4 => undo_shares(&first)?,
            5 => {
                let policy = rng.choice(NAMES).copied().unwrap_or("wfq");
                let module = load_copy(&module_of(modules, policy))?;
                let succession =
                    Succession { slot: Some(first.slot()), module: Some(&module), ..Succession::default() };
                // Others may be at it, or have the module.
                upgrades += u64::from(first.control().upgrade(&succession).is_ok());
                let _ = unload_unused();
            }
            6 => {
                if beside.take().is_some_and(|session| !session.is_running()) {
                    faulted += 1;
                }
                beside = Session::start(&small(modules, "faulty", Beside::Others)).ok();
                came += u64::from(beside.is_some());
            }
            _ => {
                let _ = fs::read_to_string("/proc/ekiden");
                let _ = Status::read()?;
            }
        }
    }
    drop(askers);
    drop(beside);
    // What they had made goes with them.
    pause(500);
    undo_shares(&first)?;
    napper.must_run()?;
    let status = Status::read()?.unwrap_or_default();
    let still_running = first.is_running();
    first.check()?;
    first.stop();
    unload_all(Duration::from_secs(10))?;
    let again = Session::start(&config(modules, "fifo"))?;
    napper.must_run()?;
    let loads_again = again.is_running();
    again.stop();
    let report = DeviceReport {
        seed,
        slab_debug,
        steps: done(board),
        deaths,
        upgrades,
        came,
        faulted,
        control_gained: board.get(CONTROL_GAINED),
        contract_violations: status.counts.contract_violations,
        unexpected_transitions: status.counts.unexpected_transitions,
        last_unexpected_transition: status.policies.iter().find_map(|policy| policy.last_unexpected_transition.clone()),
        still_running,
        loads_again,
    };
    println!("{}", json!(report));
    Ok(())
}

/// No policy has CPUs of its own any more, and none is taken out for an unexpected transition.
fn undo_shares(session: &Session) -> Result<()> {
    for policy in Status::read()?.unwrap_or_default().policies {
        // It may have gone meanwhile.
        let _ = session.control().share(policy.slot, &CpuMask::default(), Share::default());
        let _ = session.control().check(policy.slot, Checks::Report);
    }
    Ok(())
}

/// The number of an ioctl of `/dev/ekiden`.
pub(crate) fn request(direction: u32, number: u32, size: usize) -> libc::c_ulong {
    (direction << 30 | (size as u32) << 16 | u32::from(b'E') << 8 | number).into()
}
