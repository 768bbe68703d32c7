//! Policies that take over from each other while the machine is busy.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read, Write},
    mem::offset_of,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ekiden::Call;
use ekiden_host::abi::{ABI_VERSION, NAME_LEN};
use ekiden_loader::{
    Config, Control, Hint, LoadError, Moved, Session, Status, Stops, Succession, load_beside, loaded, sysfs, unload,
    unload_all,
};
use serde::Serialize;

use crate::{
    guest_tests::{config, module_name, module_of},
    interrupted::{Interrupted, interrupted},
    load::{Worker, pause},
    saves::saves,
    storm::{measure_off_times, off_times},
    watches::{Watched, watched},
};

/// Memory enough for the tasks of a test, and quickly zeroed.
fn small(modules: &Path, policy: &str) -> Config {
    Config { max_tasks: 2048, arena_bytes: 1 << 20, ..config(modules, policy) }
}

/// Enough memory for each of these policies. How much a policy needs that is not ours is not known.
fn small_of(modules: &Path, policy: &str, policies: &[String]) -> Config {
    let are_ours = policies.iter().all(|name| ekiden_policies::NAMES.contains(&name.as_str()));
    let small = small(modules, policy);
    if are_ours { small } else { Config { arena_bytes: 8 << 20, ..small } }
}

/// Two threads that pass a byte to and fro, and count.
pub(crate) struct PingPong {
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    threads: [JoinHandle<Result<()>>; 2],
}

impl PingPong {
    pub(crate) fn start(stop: &Arc<AtomicBool>) -> Result<Self> {
        let ((mut there, mut from_here), (mut back, mut from_there)) = (pipe()?, pipe()?);
        let (sent, received) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let ping = {
            let (sent, stop) = (sent.clone(), stop.clone());
            thread::spawn(move || {
                while !stop.load(Relaxed) {
                    from_here.write_all(&sent.fetch_add(1, Relaxed).to_ne_bytes())?;
                    ensure!(number(&mut back)? == sent.load(Relaxed), "an answer to another question");
                }
                Ok(())
            })
        };
        let pong = {
            let received = received.clone();
            thread::spawn(move || {
                // Until the other end is closed.
                while let Ok(question) = number(&mut there) {
                    ensure!(question == received.fetch_add(1, Relaxed), "a question was lost or came twice");
                    answer(&mut from_there, question + 1)?;
                }
                Ok(())
            })
        };
        Ok(Self { sent, received, threads: [ping, pong] })
    }

    /// How many bytes went there and back.
    pub(crate) fn end(self) -> Result<u64> {
        for thread in self.threads {
            thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        let (sent, received) = (self.sent.load(Relaxed), self.received.load(Relaxed));
        ensure!(sent == received, "{sent} questions and {received} answers");
        Ok(sent)
    }
}

/// A pipe: where one reads, and where one writes.
pub(crate) fn pipe() -> nix::Result<(File, File)> {
    let (read, write) = nix::unistd::pipe()?;
    Ok((read.into(), write.into()))
}

fn number(from: &mut File) -> Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn answer(to: &mut File, number: u64) -> Result<()> {
    Ok(to.write_all(&number.to_ne_bytes())?)
}

#[derive(Serialize)]
struct UpgradesReport {
    upgrades: u64,
    /// How many took over the state as it is in memory.
    by_pointer: u64,
    round_trips: u64,
    forks: u64,
    tasks_before: u64,
    tasks_after: u64,
    unexpected_transitions: u64,
    contract_violations: u64,
    /// How long a CPU waited at most: the median, and the longest ones.
    wait_ns_median: u64,
    wait_ns_longest: Vec<u64>,
    /// What a live checker saw meanwhile.
    watched: Watched,
    /// What became of the further ones, where CPUs do not wait for each other.
    #[serde(flatten)]
    interrupted: Interrupted,
    still_running: bool,
    /// How CPUs were brought to stand still.
    stops: Stops,
    ms: u128,
}

/// For how long CPUs wait for the last one at first, in microseconds.
const PATIENCE: &str = "/sys/module/ekiden/parameters/meet_patience_us";

/// Policies take over from each other, and from themselves, while tasks talk, nap, spin, yield, fork, change their
/// nice value and move. CPUs wait for the last one for so long at first.
pub(crate) fn upgrades(modules: &Path, rounds: u64, patience_us: Option<u32>, policies: &[String]) -> Result<()> {
    let (first, others) = policies.split_first().filter(|(_, others)| !others.is_empty()).context("two at least")?;
    let start = Instant::now();
    if patience_us.is_some() {
        // An earlier guest test may have had CPUs stand still for longer.
        unload_all(Duration::from_secs(10))?;
    }
    let session = Session::start(&small_of(modules, first, policies))?;
    let usual_patience = fs::read_to_string(PATIENCE)?;
    if let Some(patience_us) = patience_us {
        fs::write(PATIENCE, patience_us.to_string())?;
    }
    let stops_before = Status::read()?.unwrap_or_default().stops;
    for policy in others {
        load_beside(&module_of(modules, policy))?;
    }
    let tasks_before = Status::read()?.unwrap_or_default().counts.tasks;
    let stop = Arc::new(AtomicBool::new(false));
    let pairs = (0..2).map(|_| PingPong::start(&stop)).collect::<Result<Vec<_>>>()?;
    let workers = ["yield", "nap", "nap", "nap"].into_iter().map(Worker::start).collect::<Result<Vec<_>>>()?;
    let (mut by_pointer, mut forks, mut hog) = (0, 0, None);
    let mut waits = Vec::new();
    let ((), watched) = watched(|| {
        for round in 0..rounds {
            let to = module_name(&policies[(round as usize / 2 + 1) % policies.len()]);
            let succession = Succession { module: (round % 2 == 0).then_some(&to), ..Succession::default() };
            let done = session.control().upgrade(&succession).with_context(|| format!("upgrade {round}"))?;
            waits.push(done.wait_ns);
            by_pointer += u64::from(done.moved == Moved::ByPointer);
            let worker = &workers[round as usize % workers.len()];
            match round % 7 {
                0 => worker.pin(round as usize / 7 % 2)?,
                1 => worker.unpin()?,
                2 => worker.nice((round % 10) as i32),
                3 => thread::spawn(|| ()).join().map_err(|_| anyhow::anyhow!("a thread panicked"))?,
                4 if round % 5 == 0 => worker.visit_real_time()?,
                _ => {}
            }
            // A hog now and then makes tasks give way. If it ran all the time, each round would wait for a slice.
            match round % 50 {
                0 => hog = Some(Worker::start("spin")?),
                4 => hog = None,
                _ => {}
            }
            if round % 20 == 0 {
                drop(Worker::start("exit")?);
            }
            forks += u64::from(round % 7 == 3) + u64::from(round % 20 == 0);
            session.check().with_context(|| format!("upgrade {round}"))?;
        }
        Ok(())
    })?;
    for worker in workers.iter().chain(&hog) {
        worker.unpin()?;
        worker.must_run()?;
    }
    drop((workers, hog));
    stop.store(true, Relaxed);
    let round_trips = pairs.into_iter().map(PingPong::end).sum::<Result<u64>>()?;
    pause(50);
    waits.sort_unstable();
    let status = Status::read()?.unwrap_or_default();
    let interrupted = if patience_us.is_some() { interrupted(&session)? } else { Interrupted::default() };
    fs::write(PATIENCE, usual_patience.trim())?;
    // The module counts since it was loaded, perhaps for an earlier guest test.
    let stops = Stops {
        quick: status.stops.quick - stops_before.quick,
        slow: status.stops.slow - stops_before.slow,
        ..status.stops
    };
    let report = UpgradesReport {
        upgrades: status.find(None)?.upgrades,
        by_pointer,
        round_trips,
        forks,
        tasks_before,
        tasks_after: status.counts.tasks,
        unexpected_transitions: status.counts.unexpected_transitions,
        contract_violations: status.counts.contract_violations,
        wait_ns_median: waits[waits.len() / 2],
        wait_ns_longest: waits.iter().rev().take(20).copied().collect(),
        watched,
        interrupted,
        still_running: session.is_running(),
        stops,
        ms: start.elapsed().as_millis(),
    };
    println!("{}", serde_json::to_string(&report)?);
    session.stop();
    Ok(())
}

/// Upgrades that cannot be: each is refused with its reason, and the old policy keeps running. Then one that goes wrong on the way, and
/// the machine keeps running.
pub(crate) fn refused_upgrades(modules: &Path) -> Result<()> {
    let say =
        |what: &str, error: &LoadError| println!("{}", serde_json::json!({ "what": what, "error": error.to_string() }));
    let wfq = modules.join("ekiden_wfq.ko");
    let bystander = Worker::start("nap")?;
    let session = Session::start(&small(modules, "fifo"))?;
    let name = load_beside(&wfq)?;
    let plain = Succession { module: Some(&name), ..Succession::default() };
    let refuse = |what: &str, succession: &Succession<'_>| -> Result<()> {
        let Err(error) = session.control().upgrade(succession) else { bail!("{what}: this should not have worked") };
        say(what, &error);
        session.check().context(what.to_owned())?;
        let policy = Status::read()?.and_then(|status| Some(status.main()?.policy.clone()));
        ensure!(policy.as_deref() == Some("fifo"), "{what}: {policy:?} runs");
        bystander.must_run()
    };
    refuse("unknown module", &Succession { module: Some("nosuch"), ..plain })?;
    refuse("parameter out of range", &Succession { params: "period_us=0", ..plain })?;
    refuse("parameter of a policy without any", &Succession { module: None, params: "period_us=5000", ..plain })?;
    refuse("a module of another policy", &Succession { policy: Some("cfs"), ..plain })?;
    refuse("arena too small", &Succession { arena_bytes: 64 << 10, ..plain })?;
    refuse("a second instance in one module", &Succession { module: None, start_over: true, ..plain })?;
    let load = |what: &str, file: PathBuf| match load_beside(&file) {
        Ok(name) => bail!("{what}: {name} was loaded"),
        Err(error) => {
            say(what, &error);
            Ok(())
        }
    };
    load("module of another kernel", altered(&wfq, b"vermagic=", b"vermagic=0")?)?;
    load("module for another interface", altered(&wfq, b"ekiden_abi=", b"ekiden_abi=9")?)?;
    fs::write("/tmp/text.ko", "no module at all")?;
    load("file that is no module", "/tmp/text.ko".into())?;
    two_at_once(&name)?;
    session.stop();
    let Err(error) = Control::open()?.upgrade(&plain) else { bail!("nobody was there to take over from") };
    say("nothing runs", &error);
    Ok(())
}

#[derive(Serialize)]
struct VersionsReport {
    /// How a version took over whose state has the same layout.
    same: Moved,
    same_module: Option<String>,
    /// Why one was refused whose state has another layout.
    other_refused: String,
    other_starts_over: Moved,
    policy: Option<String>,
    contract_violations: u64,
    off_ns_max: BTreeMap<String, u64>,
}

/// Versions of WFQ take over from each other; the ones that do not run can be unloaded.
pub(crate) fn versions(modules: &Path) -> Result<()> {
    let wfq = modules.join("ekiden_wfq.ko");
    let workers = ["nap", "yield", "spin"].into_iter().map(Worker::start).collect::<Result<Vec<_>>>()?;
    let session = Session::start(&small(modules, "wfq"))?;
    measure_off_times()?;
    let upgrade = |name: &str, start_over| {
        let params = "slice_min_us=1000";
        let upgrade = Succession { module: Some(name), params, start_over, ..Succession::default() };
        session.control().upgrade(&upgrade)
    };
    let second = load_beside(&altered(&wfq, BUILD_ID, b"\x03\0\0\0GNU\0second")?)?;
    let same = upgrade(&second, false)?.moved;
    let same_module = Status::read()?.and_then(|status| Some(status.main()?.module.clone()));
    // The state that lives on is in memory that the first module never sees again.
    unload("ekiden_wfq", Duration::from_secs(5))?;
    for worker in &workers {
        worker.must_run()?;
    }
    let third = load_beside(&with_another_layout("wfq", &altered(&wfq, BUILD_ID, b"\x03\0\0\0GNU\0third")?)?)?;
    let Err(error) = upgrade(&third, false) else { bail!("a state of another layout was taken over") };
    let other_refused = error.to_string();
    let other_starts_over = upgrade(&third, true)?.moved;
    unload(&second, Duration::from_secs(5))?;
    for worker in &workers {
        worker.must_run()?;
    }
    session.check()?;
    let status = Status::read()?.unwrap_or_default();
    let report = VersionsReport {
        same,
        same_module,
        other_refused,
        other_starts_over,
        policy: status.main().map(|policy| policy.policy.clone()),
        contract_violations: status.counts.contract_violations,
        off_ns_max: off_times(&status),
    };
    println!("{}", serde_json::to_string(&report)?);
    session.stop();
    unload(&third, Duration::from_secs(5))?;
    Ok(())
}

#[derive(Serialize)]
struct ConvertsReport {
    moved: Moved,
    /// Hints that the successor took before it went wrong.
    hints: u32,
    fault: Option<String>,
    off_ns_max: BTreeMap<String, u64>,
}

/// A policy that goes wrong at the third hint gets the first; the second one is left to a version of another layout.
pub(crate) fn converts(modules: &Path) -> Result<()> {
    let faulty = modules.join("ekiden_faulty.ko");
    let config = |after: u32| format!("call={} fault=0 after={after}", Call::ParseHint as u32);
    let session = Session::start(&Config { params: config(3), ..small(modules, "faulty") })?;
    measure_off_times()?;
    let hint = || session.control().hint(None, Hint::Now(&1_u64.to_ne_bytes()));
    hint()?;
    let other = load_beside(&with_another_layout("faulty", &altered(&faulty, BUILD_ID, b"\x03\0\0\0GNU\0other")?)?)?;
    let params = &config(1000);
    let moved = session.control().upgrade(&Succession { module: Some(&other), params, ..Succession::default() })?.moved;
    session.check()?;
    let hints = (0..10).take_while(|_| hint().is_ok()).count() as u32;
    let status = Status::read()?.unwrap_or_default();
    let off_ns_max = off_times(&status);
    println!("{}", serde_json::to_string(&ConvertsReport { moved, hints, fault: status.fault, off_ns_max })?);
    session.stop();
    saves(modules)
}

/// A note of type NT_GNU_BUILD_ID.
const BUILD_ID: &[u8] = b"\x03\0\0\0GNU\0";

/// A copy of a module whose table says that the state has another layout.
fn with_another_layout(policy: &str, module: &Path) -> Result<PathBuf> {
    with_another_table(policy, module, offset_of!(PolicyTable, layout))
}

/// A copy of a module, as of another build, whose table says that hints have another fingerprint: one whose lowest bit is not the
/// same.
pub(crate) fn with_other_hints(policy: &str, module: &Path) -> Result<PathBuf> {
    let module = altered(module, BUILD_ID, b"\x03\0\0\0GNU\0hints")?;
    with_another_table(policy, &module, offset_of!(PolicyTable, types))
}

/// A copy of a module in whose table the lowest bit of this word is another.
fn with_another_table(policy: &str, module: &Path, word: usize) -> Result<PathBuf> {
    let mut image = fs::read(module)?;
    let mut head = ABI_VERSION.to_ne_bytes().to_vec();
    head.extend((size_of::<PolicyTable>() as u32).to_ne_bytes());
    head.extend([policy.as_bytes(), b"\0"].concat());
    let at = image.windows(head.len()).position(|window| window == head).context("the module has no table")?;
    image[at + word] ^= 1;
    let path = PathBuf::from("/tmp/table.ko");
    fs::write(&path, image)?;
    Ok(path)
}

/// As hosts/kernel/rt/src/table.rs has it.
#[repr(C)]
#[allow(dead_code, reason = "only its layout counts")]
struct PolicyTable {
    versions: [u32; 2],
    name: [u8; NAME_LEN],
    calls: u64,
    functions: [u64; 9],
    layout: u64,
    params_declared: u64,
    types: [u64; 4],
}

/// A copy of a module in which the bytes at `key` are others.
fn altered(module: &Path, key: &[u8], value: &[u8]) -> Result<PathBuf> {
    let mut image = fs::read(module)?;
    let at =
        image.windows(key.len()).position(|window| window == key).context("the module lacks what is to be altered")?;
    image[at..at + value.len()].copy_from_slice(value);
    let path = PathBuf::from("/tmp/altered.ko");
    fs::write(&path, image)?;
    Ok(path)
}

/// Two that upgrade at the same time: one waits for the other, and each succeeds.
fn two_at_once(wfq: &str) -> Result<()> {
    let upgrade = |module: &'static str| {
        let control = Control::open()?;
        for _ in 0..20 {
            control.upgrade(&Succession { module: Some(module), ..Succession::default() })?;
        }
        Ok::<_, LoadError>(())
    };
    ensure!(wfq == "ekiden_wfq", "{wfq} was loaded");
    let [first, second] = ["ekiden_wfq", "ekiden_fifo"].map(|module| thread::spawn(move || upgrade(module)));
    for thread in [first, second] {
        thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    Ok(())
}

#[derive(Serialize)]
struct FaultyUpgradeReport {
    call: &'static str,
    fault: Option<String>,
    back_in_ms: u64,
}

/// A policy takes over and panics, when it hears of the tasks or later: it goes, the kernel's own scheduler has every task, and
/// all modules can be unloaded.
pub(crate) fn faulty_upgrades(modules: &Path) -> Result<()> {
    let bystander = Worker::start("spin")?;
    for call in [Call::TaskNew, Call::PickNextTask, Call::EnterIdle] {
        let session = Session::start(&small(modules, "wfq"))?;
        let name = load_beside(&modules.join("ekiden_faulty.ko"))?;
        let params = format!("call={} fault=0 after=1", call as u32);
        let start = Instant::now();
        match session.control().upgrade(&Succession { module: Some(&name), params: &params, ..Succession::default() }) {
            Ok(_) | Err(LoadError::TakenOut(_)) => {}
            Err(error) => return Err(error.into()),
        }
        while sysfs::state().as_deref() != Some("disabled") {
            ensure!(start.elapsed() < Duration::from_secs(10), "{}: the policy is still there", call.name());
            drop(Worker::start("exit")?);
            pause(1);
        }
        let back_in_ms = start.elapsed().as_millis() as u64;
        bystander.must_run().with_context(|| format!("after a fault in {}", call.name()))?;
        let fault = Status::read()?.and_then(|status| status.fault);
        println!("{}", serde_json::to_string(&FaultyUpgradeReport { call: call.name(), fault, back_in_ms })?);
        session.stop();
        for name in loaded().iter().filter(|name| *name != "ekiden") {
            unload(name, Duration::from_secs(10))?;
        }
    }
    Ok(())
}
