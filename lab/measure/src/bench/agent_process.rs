//! A policy in an agent that has the tasks of this machine, as a process of its own.

use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::failure::Exit;

/// `ekiden agent` with a command that waits until nothing is left to read.
pub(crate) struct AgentProcess {
    child: Child,
    printed: BufReader<ChildStdout>,
    policy: String,
}

impl AgentProcess {
    /// Returns when the policy has the tasks.
    pub(crate) fn start(policy: &str) -> Result<Self> {
        let ekiden = std::env::current_exe().context("cannot find this program")?;
        let waits = ["--", "sh", "-c", "echo; exec cat"];
        let mut child = Command::new(ekiden)
            .args(["agent", policy])
            .args(waits)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run `ekiden agent`")?;
        let mut printed = BufReader::new(child.stdout.take().context("`ekiden agent` has no output")?);
        let begun = printed.read_line(&mut String::new()).context("cannot read what `ekiden agent` prints")?;
        let agent = Self { child, printed, policy: policy.to_owned() };
        if begun == 0 {
            agent.end()?;
            bail!("`ekiden agent {policy}` ended at once");
        }
        Ok(agent)
    }

    /// Gives all tasks back. Whether the policy had them to the end.
    pub(crate) fn end(mut self) -> Result<bool> {
        drop(self.child.stdin.take());
        std::io::copy(&mut self.printed, &mut std::io::sink()).context("cannot read what `ekiden agent` prints")?;
        let output = self.child.wait_with_output().context("cannot wait for `ekiden agent`")?;
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => Ok(true),
            Some(code) if code == Exit::TakenOut as i32 => {
                eprintln!("{}", said.trim());
                Ok(false)
            }
            _ => bail!("`ekiden agent {}` failed: {}", self.policy, said.trim()),
        }
    }
}
