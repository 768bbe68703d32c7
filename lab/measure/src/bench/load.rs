//! Runs `ekiden-load`, which is what is measured.

use std::{
    fs,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::candidates::Candidate;
use crate::machine::load_program;

/// A guest's figures settle this long after it was started.
const SETTLED_UPTIME_S: f64 = 10.0;

/// What `ekiden-load` says of a load that it has timed.
#[derive(Deserialize)]
struct Timed {
    scheduler: Option<String>,
    median: f64,
}

/// Its standard output.
pub(crate) fn output(args: &[&str]) -> Result<String> {
    let program = load_program();
    let output =
        Command::new(&program).args(args).stderr(Stdio::piped()).output().with_context(|| {
            format!("cannot run {}; build it with: cargo build -p ekiden-workload", program.display())
        })?;
    if !output.status.success() {
        bail!("`ekiden-load {}` failed: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Times a load once under a scheduler that is in charge.
pub(crate) fn time(candidate: &Candidate, args: &[&str]) -> Result<f64> {
    let timed: Timed = serde_json::from_str(&output(args)?).context("ekiden-load says something strange")?;
    expect(candidate, timed.scheduler.as_deref())?;
    Ok(timed.median)
}

/// How fast the work loop is, as an argument: the fastest of some measurements, as something may have come between.
pub(crate) fn calibrate() -> Result<String> {
    #[derive(Deserialize)]
    struct Speed {
        loops_per_ms: u64,
    }
    let measure = |_| -> Result<u64> {
        let speed: Speed = serde_json::from_str(&output(&["calibrate", "--json"])?)?;
        Ok(speed.loops_per_ms)
    };
    let measured = (0..3).map(measure).collect::<Result<Vec<u64>>>().context("cannot measure the work loop")?;
    let fastest = measured.into_iter().max().filter(|loops_per_ms| *loops_per_ms > 0);
    Ok(fastest.context("the work loop does nothing in a millisecond")?.to_string())
}

/// An error unless it was this one who scheduled.
pub(crate) fn expect(candidate: &Candidate, scheduler: Option<&str>) -> Result<()> {
    let expected = candidate.kernel_name();
    if scheduler != expected.as_deref() {
        let name = |name: Option<&str>| name.unwrap_or("the kernel's own").to_owned();
        bail!("measured {} instead of {}", name(scheduler), name(expected.as_deref()));
    }
    Ok(())
}

/// Waits until a machine that has just started is like one that runs.
pub(crate) fn wait_until_quiet() {
    let uptime = || fs::read_to_string("/proc/uptime").ok()?.split(' ').next()?.parse::<f64>().ok();
    let left = SETTLED_UPTIME_S - uptime().unwrap_or(SETTLED_UPTIME_S);
    if left > 0.0 {
        thread::sleep(Duration::from_secs_f64(left));
    }
}

/// What `uname -r` says.
pub(crate) fn kernel_release() -> Result<String> {
    let path = "/proc/sys/kernel/osrelease";
    fs::read_to_string(path).map(|text| text.trim().to_owned()).with_context(|| format!("cannot read {path}"))
}
