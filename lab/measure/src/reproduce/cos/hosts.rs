//! Who schedules: the kernel's own scheduler, a policy in the kernel, and the same policy in an agent.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::failure::Exit;

/// Where decisions are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Host {
    Agent,
    Kernel,
    Own,
}

impl Host {
    pub(crate) const ALL: [Self; 3] = [Self::Agent, Self::Kernel, Self::Own];

    /// As tables call it.
    pub(crate) fn name(self, policy: &str) -> String {
        match self {
            Self::Agent => format!("agent, {policy}"),
            Self::Kernel => format!("kernel host, {policy}"),
            Self::Own => "the kernel's own".to_owned(),
        }
    }

    /// Runs a program under it, and returns what that prints, which is one JSON object; `None` if the policy was taken out. All calls
    /// are recorded to `recording`, if it is given, and each task that wakes up is one of them.
    pub(super) fn run(
        self,
        policy: &str,
        recording: Option<&Path>,
        program: &Path,
        options: &[String],
    ) -> Result<Option<String>> {
        let mut command = match self {
            Self::Own => Command::new(program),
            Self::Agent | Self::Kernel => {
                let ekiden = std::env::current_exe().context("cannot find this program")?;
                let mut command = Command::new(ekiden);
                command.args([if self == Self::Agent { "agent" } else { "run" }, policy]);
                if let Some(recording) = recording {
                    command.arg("--record").arg(recording);
                    if self == Self::Agent {
                        command.arg("--every-wakeup");
                    }
                }
                command.arg("--").arg(program);
                command
            }
        };
        command.args(options).stdin(Stdio::null()).stderr(Stdio::piped());
        let output = command.output().context("cannot run `ekiden`")?;
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned())),
            Some(code) if self != Self::Own && code == Exit::TakenOut as i32 => {
                eprintln!("{}", said.trim());
                Ok(None)
            }
            _ => {
                let name = program.file_name().map_or(program, Path::new).display();
                bail!("`{name} {}` failed under {}: {}", options.join(" "), self.name(policy), said.trim())
            }
        }
    }
}
