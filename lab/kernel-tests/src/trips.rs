//! What a round trip through two pipes costs, as policies run by default: with the flight recorder on.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use ekiden_loader::Session;
use serde_json::{Value, json};

use crate::guest_tests::config;

/// Where the two processes are.
const PLACES: [(&str, &str); 2] = [("one CPU", "0,0"), ("across", "0,1")];

/// Under a policy, or the kernel's own scheduler. A nanosecond is an instruction where a guest's clock counts those.
pub(crate) fn trips(modules: &Path, policy: Option<&str>) -> Result<()> {
    let session = policy.map(|policy| Session::start(&config(modules, policy))).transpose()?;
    for (place, cpus) in PLACES {
        let arguments = ["pipe", "--round-trips=2000", "--repeat=5", "--json", "--cpus", cpus];
        let output = Command::new("ekiden-load").args(arguments).output().context("cannot run a load")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the load ends with {}: {said}", output.status);
        let timed: Value = serde_json::from_slice(&output.stdout)?;
        println!(
            "{}",
            json!({ "place": place, "ns": timed["median"], "all_ns": timed["values"], "scheduler": timed["scheduler"] })
        );
    }
    if let Some(session) = session {
        session.check()?;
        session.stop();
    }
    Ok(())
}
