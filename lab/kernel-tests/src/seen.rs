//! What scripts and tracers see: `/dev/ekiden`, `/proc/ekiden` and the tracepoints.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{Read, Seek},
    path::Path,
};

use anyhow::{Context, Result};
use ekiden::Call;
use ekiden_loader::{Beside, Session, Status};
use serde::Serialize;

use crate::{
    guest_tests::config,
    load::{Worker, pause},
    several::beside,
};

const TRACING: &str = "/sys/kernel/tracing";

#[derive(Serialize)]
struct SeenReport {
    header: String,
    /// The names and CPUs of `/proc/ekiden`.
    lines: BTreeSet<(String, String)>,
    /// Whether the tasks picked there are as many as the status says at about the same time.
    counts_fit: bool,
    /// Whether what `/dev/ekiden` said was of the moment at which a program began to read it, though it read most of it later; and whether it was of a
    /// later one when it was read anew.
    said: [bool; 2],
    /// The kinds of events that were traced, and whether one says that a worker is to run.
    kinds: BTreeSet<String>,
    worker_ran: bool,
    /// How an event is printed, for programs that do it themselves.
    format: String,
    /// The policies and how each ended.
    policies: Vec<String>,
    still_running: bool,
}

fn trace(file: &str, text: &str) -> Result<()> {
    fs::write(format!("{TRACING}/{file}"), text).with_context(|| format!("cannot write {text} to {file}"))
}

/// What stands behind `key=` in a line of the trace.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// How many tasks WFQ has picked, by the text of `/dev/ekiden` that begins with `text`.
fn picks(text: &mut Vec<u8>, device: &mut File) -> Result<u64> {
    device.read_to_end(text)?;
    let status: Status = serde_json::from_slice(text)?;
    Ok(status.find(Some("wfq"))?.counts.picks)
}

/// WFQ runs, and a policy comes beside it and panics.
pub(crate) fn seen(modules: &Path) -> Result<()> {
    let session = Session::start(&config(modules, "wfq"))?;
    let worker = Worker::start("nap")?;
    trace("events/ekiden/enable", "1")?;
    drop(Worker::start("nap")?);
    let mut faulty = beside(modules, "faulty", Beside::OthersAsDefault);
    faulty.params = format!("call={}", Call::TaskWakeup as u32);
    let mut device = File::open("/dev/ekiden")?;
    let mut text = vec![0; 16];
    device.read_exact(&mut text)?;
    let begun = Status::read()?.unwrap_or_default().find(Some("wfq"))?.counts.picks;
    let faulted = Session::start(&faulty);
    pause(300);
    let late = picks(&mut text, &mut device)?;
    device.rewind()?;
    let said = [late <= begun, picks(&mut Vec::new(), &mut device)? > begun];
    drop(faulted);
    pause(100);
    trace("events/ekiden/enable", "0")?;
    let trace = fs::read_to_string(format!("{TRACING}/trace"))?;
    let format = fs::read_to_string(format!("{TRACING}/events/ekiden/ekiden_event/format"))?;
    let events = || trace.lines().filter(|line| line.contains(" ekiden_event: "));
    let pid = worker.pid().to_string();
    let picked = |proc: &str| -> u64 {
        proc.lines().skip(1).filter_map(|line| line.split(' ').nth(3)?.parse::<u64>().ok()).sum()
    };
    let before = picked(&fs::read_to_string("/proc/ekiden")?);
    let counted = Status::read()?.unwrap_or_default().find(None)?.counts.picks;
    let proc = fs::read_to_string("/proc/ekiden")?;
    let words = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        Some((words.next()?, words.nth(1)?))
    };
    let report = SeenReport {
        header: proc.lines().next().unwrap_or_default().into(),
        lines: proc.lines().skip(1).filter_map(words).collect(),
        counts_fit: (before..=picked(&proc)).contains(&counted),
        said,
        kinds: events().filter_map(|line| value(line, "kind")).map(str::to_owned).collect(),
        worker_ran: events().any(|line| value(line, "next_pid") == Some(&pid)),
        format,
        policies: trace.lines().filter_map(|line| Some(line.split_once(" ekiden_policy: ")?.1.to_owned())).collect(),
        still_running: session.is_running(),
    };
    println!("{}", serde_json::to_string(&report)?);
    session.stop();
    Ok(())
}
