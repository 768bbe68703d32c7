//! What a machine lacks for what one wants to do with it, and how to get it.

mod checks;
mod distribution;
mod machine;
pub(crate) mod rust_set;

pub use checks::LIBRARIES;
pub use distribution::Distribution;

use distribution::Need;
use machine::Machine;
use serde::Serialize;
use std::fmt;

/// What the finding about the sources of Rust's library is called.
pub(crate) const RUST_LIBRARY: &str = "Rust's library sources";

/// Where Rust comes from rustup, this brings what tests need.
pub(crate) const RUSTUP_COMPONENTS: &str = "rustup component add rustfmt clippy";

/// What one may want to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Write policies and run them in the simulator.
    Simulator,
    /// Make kernel modules and run them in a virtual machine.
    Vm,
    /// Run the tests of this project.
    Tests,
    /// Run policies in the kernel of this machine.
    Native,
}

impl Purpose {
    /// All of them, each with what it needs besides the ones before it.
    pub const ALL: [Self; 4] = [Self::Simulator, Self::Vm, Self::Tests, Self::Native];

    /// Whether what is needed for `part` is needed for this. The kernel of this machine can be used without virtual
    /// machines, but not without what makes modules.
    fn includes(self, part: Self) -> bool {
        part <= self && (part != Self::Tests || self == Self::Tests)
    }

    /// A description in words.
    pub fn title(self) -> &'static str {
        match self {
            Self::Simulator => "the simulator (ekiden sim, cargo test)",
            Self::Vm => "kernel modules in a virtual machine (ekiden build, ekiden vm)",
            Self::Tests => "the tests of this project (make test)",
            Self::Native => "the kernel of this machine (ekiden run)",
        }
    }
}

/// How it stands with something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is there.
    Ok,
    /// It is not there, and things work without, but not as well.
    Note,
    /// It is not there and has to be.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is needed for.
    pub purpose: Purpose,
    /// What it is.
    pub what: String,
    /// Why it is needed.
    pub why: String,
    /// How it stands.
    pub state: State,
    /// The version or path that was found, in words.
    pub seen: String,
    /// What to do, if it is not there.
    pub fix: Option<String>,
    /// Packages of this distribution that bring it; none if no package can, or none are known.
    pub packages: Vec<String>,
    /// Whether packages bring it somewhere: then it has to be there after an installation.
    #[serde(skip)]
    pub(crate) is_installable: bool,
}

/// All that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// What the machine's distribution calls itself.
    pub distribution: String,
    /// Which table of packages applies to it.
    pub family: Distribution,
    /// One by one.
    pub findings: Vec<Finding>,
}

/// Which of the packages that an installation would remove are needed, or are the Rust that is in use.
pub(crate) fn needed_among(family: Distribution, removed: &[String], installed: &[String]) -> Vec<String> {
    let of_rust = |package: &String| rust_set::is_in_table(package);
    let brings_rust = installed.iter().any(of_rust);
    let needs: Vec<String> = Need::ALL.iter().flat_map(|&need| family.packages(need, "")).collect();
    let is_needed = |package: &&String| {
        // The set that is being installed replaces another one.
        if of_rust(package) { !brings_rust } else { needs.contains(package) }
    };
    removed.iter().filter(is_needed).cloned().collect()
}

/// Looks at this machine. Changes nothing and asks no network.
pub fn examine() -> Diagnosis {
    examine_machine(&Machine::here())
}

fn examine_machine(machine: &Machine) -> Diagnosis {
    let (family, distribution) = Distribution::of(&machine.read("etc/os-release").unwrap_or_default());
    let mut findings = Vec::new();
    checks::simulator(machine, &mut findings);
    checks::vm(machine, &mut findings);
    checks::tests(machine, &mut findings);
    checks::native(machine, &mut findings);
    for finding in &mut findings {
        complete(finding, family);
    }
    Diagnosis { distribution, family, findings }
}

/// Says how to get the packages, where no better advice has been given.
fn complete(finding: &mut Finding, family: Distribution) {
    if finding.state == State::Ok {
        finding.fix = None;
        finding.packages.clear();
    } else if finding.fix.is_none() && !finding.packages.is_empty() {
        finding.fix = family.install_command(&finding.packages);
    }
}

impl Diagnosis {
    /// Whether nothing is missing for a purpose, and for those that it builds upon.
    pub fn is_ready_for(&self, purpose: Purpose) -> bool {
        self.missing(purpose).next().is_none()
    }

    /// Findings of things that a purpose lacks, or one that it builds upon.
    pub fn missing(&self, purpose: Purpose) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| purpose.includes(finding.purpose) && finding.state == State::Missing)
    }

    /// The packages that bring what is missing, each once.
    pub fn packages(&self, purpose: Purpose) -> Vec<String> {
        let mut packages: Vec<String> = self.missing(purpose).flat_map(|finding| finding.packages.clone()).collect();
        packages.sort();
        packages.dedup();
        packages
    }

    /// One command that installs them all.
    pub fn install_command(&self, purpose: Purpose) -> Option<String> {
        let packages = self.packages(purpose);
        if packages.is_empty() { None } else { self.family.install_command(&packages) }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.distribution)?;
        for purpose in Purpose::ALL {
            writeln!(f, "\nFor {}:", purpose.title())?;
            for finding in self.findings.iter().filter(|finding| finding.purpose == purpose) {
                let mark = match finding.state {
                    State::Ok => "ok     ",
                    State::Note => "note   ",
                    State::Missing => "MISSING",
                };
                wrapped(f, &format!("  {mark}  {:<26} {}", finding.what, finding.seen), 19)?;
                if finding.state != State::Ok {
                    wrapped(f, &format!("           needed: {}", finding.why), 19)?;
                }
                match &finding.fix {
                    // A command is copied from the terminal as one line.
                    Some(fix) if fix.starts_with("sudo ") => writeln!(f, "           do: {fix}")?,
                    Some(fix) => wrapped(f, &format!("           do: {fix}"), 15)?,
                    None => {}
                }
            }
        }
        writeln!(f)?;
        for purpose in Purpose::ALL {
            let missing = self.missing(purpose).count();
            let verdict = if missing == 0 { "ready".to_owned() } else { format!("{missing} missing") };
            writeln!(f, "{:<66} {verdict}", purpose.title())?;
        }
        if let Some(command) = self.install_command(Purpose::Vm) {
            writeln!(f, "\nAll that packages can bring, at once:\n  {command}")?;
        }
        Ok(())
    }
}

/// Columns of a usual terminal. Commands are longer: one that is copied has no line end in it.
const COLUMNS: usize = 80;

/// Writes a line, in several if it is longer than a terminal is wide; those after the first begin in column `indent`.
fn wrapped(f: &mut fmt::Formatter<'_>, line: &str, indent: usize) -> fmt::Result {
    let mut rest = line.to_owned();
    while rest.chars().count() > COLUMNS {
        let blanks = rest
            .char_indices()
            .enumerate()
            .filter(|(column, (_, letter))| *letter == ' ' && *column > indent && *column <= COLUMNS);
        let Some((_, (end, _))) = blanks.last() else { break };
        writeln!(f, "{}", rest[..end].trim_end())?;
        rest = format!("{:indent$}{}", "", rest[end..].trim_start());
    }
    writeln!(f, "{rest}")
}

#[cfg(test)]
mod lists;
#[cfg(test)]
mod tests;
