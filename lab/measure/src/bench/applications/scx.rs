//! Schedulers that are programs: they load themselves, and take themselves out when they are interrupted.

use std::{
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ekiden_loader::sysfs;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// How long one may take to come or to go.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

/// As reports call it.
pub(super) fn name(program: &Path) -> String {
    program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()
}

/// Does something under it.
pub(super) fn run(program: &Path, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let name = name(program);
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
    let came = until(|| sysfs::scheduler().is_some() || !matches!(child.try_wait(), Ok(None)));
    let result = match came && sysfs::scheduler().is_some() {
        true => work(),
        false => Err(anyhow::anyhow!("{name} did not become the scheduler; run it by hand to see why")),
    };
    // One that was taken out has ended.
    let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGINT);
    let went = until(|| !matches!(child.try_wait(), Ok(None)));
    if !went {
        let _ = child.kill();
    }
    child.wait().with_context(|| format!("cannot wait for {name}"))?;
    if !until(|| sysfs::scheduler().is_none()) {
        bail!("{name} has ended and is still the scheduler");
    }
    result
}

/// Whether something came true in time.
fn until(mut is_so: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while !is_so() {
        if begin.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(LOOK);
    }
    true
}
