//! Installs what a machine lacks, where that is apt's business, after saying what and why.

use crate::{
    Error, Progress, Result, Toolchain, command,
    doctor::{self, Purpose, State},
};
use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The packages that were installed; none if nothing was missing.
    pub packages: Vec<String>,
}

/// Installs what is missing for a purpose, and for those that it builds upon. Needs root, or sudo without a password. Tells
/// `progress` what it installs and why before it does.
pub fn install_missing(purpose: Purpose, progress: Progress<'_>) -> Result<Installed> {
    // Rustup can fetch the sources for the Rust that is in use; then no second Rust is needed.
    if doctor::examine().missing(purpose).any(|finding| finding.what == doctor::RUST_LIBRARY) {
        // Where this fails, packages help; the diagnosis below names them.
        let _ = Toolchain::find(progress);
    }
    if doctor::examine().missing(purpose).any(|finding| finding.fix.as_deref() == Some(doctor::RUSTUP_COMPONENTS)) {
        progress(doctor::RUSTUP_COMPONENTS);
        let _ = command::output(Command::new("sh").args(["-c", doctor::RUSTUP_COMPONENTS]));
    }
    let diagnosis = doctor::examine();
    let packages = diagnosis.packages(purpose);
    if packages.is_empty() {
        return Ok(Installed { packages });
    }
    let command = diagnosis.install_command(purpose).unwrap_or_else(|| packages.join(" "));
    if !diagnosis.family.has_apt() {
        let missing: Vec<&str> = diagnosis.missing(purpose).map(|finding| finding.what.as_str()).collect();
        return Err(Error::Install(format!(
            "on {} packages have to be installed by hand; missing: {}; run: {command}",
            diagnosis.distribution,
            missing.join(", ")
        )));
    }
    let apt = Apt::new(&command)?;
    progress("installing by apt-get:");
    for finding in diagnosis.missing(purpose).filter(|finding| !finding.packages.is_empty()) {
        progress(&format!("  {:<28} {} ({})", finding.packages.join(" "), finding.why, finding.seen));
    }
    apt.install(&packages, progress)?;
    let after = doctor::examine();
    let left: Vec<String> = after
        .missing(purpose)
        .filter(|finding| finding.state == State::Missing && !finding.packages.is_empty())
        .map(|finding| format!("{} ({})", finding.what, finding.seen))
        .collect();
    if left.is_empty() {
        return Ok(Installed { packages });
    }
    Err(Error::Install(format!(
        "{command} succeeded, but still missing: {}; this distribution's packages are too old: see `ekiden doctor`",
        left.join(", ")
    )))
}

/// Apt, as root.
struct Apt {
    sudo: bool,
}

impl Apt {
    /// `by_hand` is what the user has to run if this program may not.
    fn new(by_hand: &str) -> Result<Self> {
        if nix::unistd::geteuid().is_root() {
            return Ok(Self { sudo: false });
        }
        if command::find("sudo").is_some() && command::output(Command::new("sudo").args(["-n", "true"])).is_ok() {
            return Ok(Self { sudo: true });
        }
        Err(Error::Install(format!(
            "packages are missing, and neither are you root nor does sudo work without a password; run: {by_hand}"
        )))
    }

    fn command(&self, program: &str) -> Command {
        // Through env, as sudo does not pass settings on.
        let settings = ["env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", program];
        let (first, rest) = if self.sudo { ("sudo", &settings[..]) } else { ("env", &settings[1..]) };
        let mut command = Command::new(first);
        if self.sudo {
            command.arg("-n");
        }
        command.args(rest);
        command
    }

    fn install(&self, packages: &[String], progress: Progress<'_>) -> Result<()> {
        if packages.iter().any(|package| !is_known(package)) {
            progress("fetching apt's package lists");
            self.update()?;
        }
        if self.try_install(packages, progress).is_ok() {
            return Ok(());
        }
        // Either an earlier run was interrupted, or the mirror has moved on since the lists were fetched.
        progress("once more, after finishing what was interrupted and fetching new package lists");
        command::output(self.command("dpkg").args(["--configure", "-a", "--force-confold"]))?;
        self.update()?;
        self.try_install(packages, progress)
    }

    fn update(&self) -> Result<()> {
        command::output(self.command("apt-get").args(["-o", "Acquire::Retries=3", "update"])).map(drop)
    }

    fn try_install(&self, packages: &[String], progress: Progress<'_>) -> Result<()> {
        let mut apt = self.command("apt-get");
        apt.args(["-y", "--no-install-recommends", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300"]);
        // What has been configured by hand stays as it is.
        apt.args(["-o", "Dpkg::Options::=--force-confold", "install"]).args(packages);
        let log = tempfile::NamedTempFile::new().map_err(|error| command::cannot_start(&apt, &error))?;
        let stderr = log.reopen().map_err(|error| command::cannot_start(&apt, &error))?;
        let mut child = apt
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .map_err(|error| command::cannot_start(&apt, &error))?;
        let mut printed = String::new();
        for line in child
            .stdout
            .take()
            .into_iter()
            .flat_map(|stdout| BufReader::new(stdout).lines())
            .map_while(|line| line.ok())
        {
            if ["Need to get", "Get:", "Setting up"].iter().any(|start| line.starts_with(start)) {
                progress(&format!("  {line}"));
            }
            printed.push_str(&line);
            printed.push('\n');
        }
        let status = child.wait().map_err(|error| command::cannot_start(&apt, &error))?;
        if status.success() {
            return Ok(());
        }
        printed.push_str(&std::fs::read_to_string(log.path()).unwrap_or_default());
        Err(Error::Program {
            command: command::line(&apt),
            status: status.to_string(),
            output: command::last_lines(&printed, 20),
        })
    }
}

/// Whether apt's lists, as they are, have a package.
fn is_known(package: &str) -> bool {
    let mut apt = Command::new("apt-cache");
    apt.args(["policy", package]).env("LC_ALL", "C");
    has_candidate(&command::stdout(&mut apt).unwrap_or_default())
}

fn has_candidate(policy: &str) -> bool {
    policy.lines().any(|line| line.trim_start().strip_prefix("Candidate: ").is_some_and(|version| version != "(none)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_apt_could_install_is_told_from_one_that_it_only_heard_of() {
        assert!(has_candidate("lld-19:\n  Installed: (none)\n  Candidate: 1:19.1.7-3~deb12u1\n  Version table:\n"));
        assert!(!has_candidate("lld-19:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n"));
        assert!(!has_candidate(""));
    }
}
