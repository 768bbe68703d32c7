//! Installs what a machine lacks, where that is apt's business, after saying what and why.

use crate::{
    Error, Progress, Result, Toolchain, command,
    doctor::{self, Diagnosis, Distribution, Purpose},
};
use std::{process::Command, time::Duration};

/// How long `rustup` may take to fetch components.
const RUSTUP_LIMIT: Duration = Duration::from_secs(300);

/// How long apt may take for one command: a gigabyte on a slow line, and the wait for another apt.
const APT_LIMIT: Duration = Duration::from_secs(3600);

/// How long apt waits for another one, in seconds.
const LOCK: &str = "DPkg::Lock::Timeout=300";

/// The steps that were taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The packages that were installed; none if nothing was missing.
    pub packages: Vec<String>,
}

/// Installs what is missing for a purpose, and for those that it builds upon. Needs root, or sudo without a password. Tells
/// `progress` what it installs and why before it does.
pub fn install_missing(purpose: Purpose, progress: Progress<'_>) -> Result<Installed> {
    let mut diagnosis = examine(progress);
    // Rustup can fetch the sources for the Rust that is in use; then no second Rust is needed.
    if diagnosis.missing(purpose).any(|finding| finding.what == doctor::RUST_LIBRARY) {
        // Where this fails, packages help; the diagnosis names them.
        let _ = Toolchain::find(progress);
        diagnosis = examine(progress);
    }
    if diagnosis.missing(purpose).any(|finding| finding.fix.as_deref() == Some(doctor::RUSTUP_COMPONENTS)) {
        progress(doctor::RUSTUP_COMPONENTS);
        let mut rustup = Command::new("sh");
        rustup.args(["-c", doctor::RUSTUP_COMPONENTS]);
        if let Err(error) = command::patient(&mut rustup, "fetching what tests need by rustup", RUSTUP_LIMIT, progress)
        {
            progress(&format!("rustup cannot fetch them: {error}"));
        }
        diagnosis = examine(progress);
    }
    let packages = diagnosis.packages(purpose);
    if packages.is_empty() {
        return complete(&diagnosis, purpose, Vec::new());
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
    apt.install(diagnosis.family, &packages, progress)?;
    complete(&examine(progress), purpose, packages)
}

fn examine(progress: Progress<'_>) -> Diagnosis {
    command::while_telling("looking for what is missing", progress, doctor::examine)
}

/// What packages bring has to be there now.
fn complete(after: &Diagnosis, purpose: Purpose, packages: Vec<String>) -> Result<Installed> {
    let left: Vec<String> = after
        .missing(purpose)
        .filter(|finding| finding.is_installable)
        .map(|finding| {
            let fix = finding.fix.as_deref().unwrap_or("see `ekiden doctor`");
            format!("{} ({}): {fix}", finding.what, finding.seen)
        })
        .collect();
    if left.is_empty() {
        return Ok(Installed { packages });
    }
    let done = if packages.is_empty() {
        "no package was installed".into()
    } else {
        format!("installed: {}", packages.join(" "))
    };
    Err(Error::Install(format!("{done}; still missing:\n{}", left.join("\n"))))
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
        if ekiden_vm::sudo_works() {
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

    fn install(&self, family: Distribution, packages: &[String], progress: Progress<'_>) -> Result<()> {
        if packages.iter().any(|package| !is_known(package)) {
            progress("fetching apt's package lists");
            self.update(progress)?;
        }
        may_be_installed(family, packages, progress)?;
        if self.try_install(packages, progress).is_ok() {
            return Ok(());
        }
        // Either an earlier run was interrupted, or the mirror has moved on since the lists were fetched.
        progress("once more, after finishing what was interrupted and fetching new package lists");
        let mut dpkg = self.command("dpkg");
        dpkg.args(["--configure", "-a", "--force-confold"]);
        command::patient(&mut dpkg, "finishing what was interrupted", APT_LIMIT, progress)?;
        self.update(progress)?;
        may_be_installed(family, packages, progress)?;
        self.try_install(packages, progress)
    }

    fn update(&self, progress: Progress<'_>) -> Result<()> {
        let mut apt = self.command("apt-get");
        apt.args(["-o", "Acquire::Retries=3", "-o", LOCK, "update"]);
        command::patient(&mut apt, "fetching apt's package lists", APT_LIMIT, progress).map(drop)
    }

    fn try_install(&self, packages: &[String], progress: Progress<'_>) -> Result<()> {
        let mut apt = self.command("apt-get");
        apt.args(["-y", "--no-install-recommends", "-o", "Acquire::Retries=3", "-o", LOCK]);
        // What has been configured by hand stays as it is.
        apt.args(["-o", "Dpkg::Options::=--force-confold", "install"]).args(packages);
        let output = command::watched(&mut apt, "installing packages", APT_LIMIT, progress, &|line| {
            // Another apt may be at work: it says which process holds the lock.
            let lines = ["Need to get", "Get:", "Setting up", "Waiting for cache lock"];
            lines.iter().any(|start| line.starts_with(start)).then(|| format!("  {line}"))
        })?;
        if output.status.success() { Ok(()) } else { Err(command::failed(&apt, &output)) }
    }
}

/// Asks apt what an installation would remove: nothing that is needed.
fn may_be_installed(family: Distribution, packages: &[String], progress: Progress<'_>) -> Result<()> {
    let mut apt = Command::new("apt-get");
    apt.args(["-s", "-y", "--no-install-recommends", "install"]).args(packages).env("LC_ALL", "C");
    let what = "asking apt what an installation would change";
    let plan = command::patient(&mut apt, what, Duration::from_secs(300), progress)?;
    let removed = removed_in(&String::from_utf8_lossy(&plan.stdout));
    let needed = doctor::needed_among(family, &removed, packages);
    if !needed.is_empty() {
        return Err(Error::Install(format!(
            "apt would remove {}, which is needed, to install {}; nothing was changed; look for held packages and foreign \
             sources with: apt-get -s install {}",
            needed.join(" "),
            packages.join(" "),
            packages.join(" ")
        )));
    }
    if !removed.is_empty() {
        progress(&format!("  apt removes for them: {}", removed.join(" ")));
    }
    Ok(())
}

/// The packages that a simulation of apt removes.
fn removed_in(plan: &str) -> Vec<String> {
    let names = plan.lines().filter_map(|line| line.strip_prefix("Remv ")?.split(' ').next());
    names.map(str::to_owned).collect()
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
    fn what_apt_would_remove_is_read_from_its_simulation() {
        let plan = "Inst clang (1:19.0-63 Debian:13/stable [amd64])\nRemv cargo-web [1.96.0]\nConf clang (1:19.0-63)\n";
        assert_eq!(removed_in(plan), ["cargo-web"]);
    }

    #[test]
    fn a_package_that_apt_could_install_is_told_from_one_that_it_only_heard_of() {
        assert!(has_candidate("lld-19:\n  Installed: (none)\n  Candidate: 1:19.1.7-3~deb12u1\n  Version table:\n"));
        assert!(!has_candidate("lld-19:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n"));
        assert!(!has_candidate(""));
    }
}
