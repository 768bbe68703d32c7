//! How long tasks stand still while nothing goes wrong.

use std::{path::Path, thread};

use anyhow::Result;
use ekiden_loader::Session;
use serde::Serialize;

use crate::{
    latency_probe::LatencyProbe,
    list::{HOST, config},
    load::pause,
};

#[derive(Serialize)]
struct StillReport {
    gap_ms: f64,
    who: &'static str,
    cpu_ms: f64,
    still_running: bool,
}

/// Prints the longest time in `seconds` for which a task or a CPU stood still.
pub(crate) fn still(modules: &Path, seconds: u64) -> Result<()> {
    let session = Session::start(&config(modules, HOST))?;
    let probe = LatencyProbe::start(thread::available_parallelism()?.get())?;
    probe.begin()?;
    pause(1000 * seconds);
    let (gap, cpu) = (probe.gap(), probe.cpu_gap());
    let report = StillReport { gap_ms: gap.ms, who: gap.who, cpu_ms: cpu.ms, still_running: session.is_running() };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
