//! Guest tests of recording: what policies did is in files afterwards, which the other side replays.

use std::{
    fs::File,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, Output},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ekiden_loader::{CallLog, Config, Drain, Kept, LoadError, Session, Status, Succession, dump, header, load_beside};
use serde::Serialize;

use crate::{
    guest_tests::{config, module_name, module_of},
    load,
};

#[derive(Serialize)]
struct Recorded {
    took_ms: u64,
    records: u64,
    lost: u64,
    still_running: bool,
    contract_violations: u64,
    last_contract_violation: Option<String>,
}

/// Records a policy from its first call on while all kinds of things happen, an upgrade among them: once, or again and again for this many seconds.
pub(crate) fn recorded(modules: &Path, policy: &str, to: &Path, seconds: u64) -> Result<()> {
    let mut config = config(modules, policy);
    config.call_log_records = 1 << 16;
    let session = Session::start(&config)?;
    let drain = Drain::start(File::create(to)?, None, false, "everything")?;
    let start = Instant::now();
    loop {
        for _ in 0..3 {
            load::everything(&session)?;
        }
        for load in ["churn", "messaging"] {
            let Output { status, stderr, .. } =
                Command::new("ekiden-load").args(["run", load]).output().context("cannot run a load")?;
            let said = String::from_utf8_lossy(&stderr);
            ensure!(status.success(), "{load} failed under {policy}: {status}: {said}");
        }
        session.check()?;
        ensure!(!drain.has_ended(), "the recording has ended by itself");
        if start.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
    }
    let took_ms = start.elapsed().as_millis() as u64;
    let kept = drain.stop()?;
    let counts = Status::read()?.unwrap_or_default().counts;
    let still_running = session.is_running();
    let report = Recorded {
        took_ms,
        records: kept.records,
        lost: kept.lost,
        still_running,
        contract_violations: counts.contract_violations,
        last_contract_violation: counts.last_contract_violation,
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

#[derive(Serialize)]
struct Flown {
    fault: Option<String>,
    records: u64,
}

/// A policy panics; its last calls are saved when the kernel has let go of it.
pub(crate) fn flown(modules: &Path, to: &Path) -> Result<()> {
    let mut config = config(modules, "faulty");
    config.params = format!("call={} after=200", ekiden::Call::TaskWakeup as u32);
    let session = Session::start(&config)?;
    let mut call_log = CallLog::open(Status::read()?.unwrap_or_default().find(None)?)?;
    let start = Instant::now();
    while session.is_running() && start.elapsed() < Duration::from_secs(20) {
        load::everything(&session)?;
    }
    let fault = Status::read()?.unwrap_or_default().fault;
    // The load has it take over from itself.
    let (header, instances) = header(None, "flight recorder")?;
    drop(session);
    let kept = dump(&mut call_log, &header, &instances, File::create(to)?, true)?;
    println!("{}", serde_json::to_string(&Flown { fault, records: kept.records })?);
    Ok(())
}

#[derive(Serialize)]
struct TakenOver {
    /// What the flight recorder had, and what a reader has kept.
    dumped: u64,
    kept: u64,
    lost: u64,
}

/// Policies take over from each other, two of them in one moment. All that is recorded goes to one file, beside it the flight recorder to another.
pub(crate) fn taken_over(modules: &Path, to: &Path) -> Result<()> {
    let mut config = config(modules, "fifo");
    config.call_log_records = 1 << 16;
    let session = Session::start(&config)?;
    load_beside(&module_of(modules, "wfq"))?;
    let drain = Drain::start(File::create(to.with_extension("kept"))?, None, false, "policies that take over")?;
    let load = || -> Result<()> {
        let output = Command::new("ekiden-load").args(["pipe", "--round-trips", "300"]).output();
        let Output { status, stderr, .. } = output.context("cannot run a load")?;
        ensure!(status.success(), "the load failed: {status}: {}", String::from_utf8_lossy(&stderr));
        Ok(session.check()?)
    };
    let next = |module, params| Succession { module, params, ..Succession::default() };
    let (fifo, wfq) = (module_name("fifo"), module_name("wfq"));
    load()?;
    session.control().upgrade(&next(Some(&wfq), "slice_min_us=1500"))?;
    session.control().upgrade(&next(None, "slice_min_us=2500 wakeup_us=100"))?;
    load()?;
    session.control().upgrade(&next(Some(&fifo), ""))?;
    session.control().upgrade(&next(Some(&wfq), "slice_min_us=700"))?;
    session.control().upgrade(&next(Some(&fifo), ""))?;
    load()?;
    let Kept { records: kept, lost, .. } = drain.stop()?;
    let mut call_log = CallLog::open(Status::read()?.unwrap_or_default().find(None)?)?;
    let (header, instances) = header(None, "flight recorder")?;
    let dumped = dump(&mut call_log, &header, &instances, File::create(to)?, false)?.records;
    drop(session);
    println!("{}", serde_json::to_string(&TakenOver { dumped, kept, lost })?);
    Ok(())
}

#[derive(Serialize)]
struct Switched {
    runs_at_first: bool,
    runs_when_off: bool,
    grows_when_off: u64,
    grows_when_on: u64,
    refused: String,
}

/// Recording is switched off and on while a policy runs, and what was recorded meanwhile goes to a file.
pub(crate) fn switched(modules: &Path, to: &Path) -> Result<()> {
    let session = Session::start(&config(modules, "wfq"))?;
    let control = session.control();
    let runs = || Ok::<_, LoadError>(Status::read()?.unwrap_or_default().find(None)?.call_log_runs);
    let open = || CallLog::open(Status::read()?.unwrap_or_default().find(None)?);
    let runs_at_first = runs()?;
    let drain = Drain::start(File::create(to)?, None, true, "switched")?;
    let napper = load::Worker::start("nap")?;
    load::pause(200);
    let grown = |call_log: &mut CallLog| -> Result<u64> {
        call_log.skip();
        load::pause(200);
        let mut records = 0;
        call_log.drain(|_, _, new| {
            records += new.len() as u64;
            Ok::<_, LoadError>(())
        })?;
        Ok(records)
    };
    let mut call_log = open()?;
    control.run_call_log(session.slot(), false)?;
    let (runs_when_off, grows_when_off) = (runs()?, grown(&mut call_log)?);
    control.run_call_log(session.slot(), true)?;
    let grows_when_on = grown(&mut call_log)?;
    drain.stop()?;
    drop((napper, session, call_log));
    let mut without = config(modules, "wfq");
    without.call_log_records = 0;
    let _session = Session::start(&without)?;
    let refused = open().map_or_else(|error| error.to_string(), |_| String::new());
    let report = Switched { runs_at_first, runs_when_off, grows_when_off, grows_when_on, refused };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

#[derive(Serialize)]
struct Woken {
    waker: i32,
    sleeper: i32,
}

/// One thread wakes up another again and again, on one CPU, so that no other CPU does it in its place.
pub(crate) fn woken(modules: &Path, to: &Path) -> Result<()> {
    // Without preemption each waits for the other, and has to be woken up.
    let config = Config { params: "wakeup_us=1000000".into(), ..config(modules, "wfq") };
    let session = Session::start(&config)?;
    let drain = Drain::start(File::create(to)?, None, true, "woken")?;
    load::stay_on_cpu_1()?;
    let (mut ours, mut theirs) = UnixStream::pair()?;
    let (tell, told) = mpsc::channel();
    let sleeper = thread::spawn(move || -> Result<()> {
        tell.send(nix::unistd::gettid().as_raw())?;
        let mut byte = [0];
        while theirs.read(&mut byte)? == 1 {
            theirs.write_all(&byte)?;
        }
        Ok(())
    });
    let report = Woken { waker: nix::unistd::gettid().as_raw(), sleeper: told.recv()? };
    for _ in 0..30 {
        let mut byte = [1];
        ours.write_all(&byte)?;
        ours.read_exact(&mut byte)?;
    }
    drop(ours);
    sleeper.join().expect("it does not panic")?;
    drain.stop()?;
    drop(session);
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
