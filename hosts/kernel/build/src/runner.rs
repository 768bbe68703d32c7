//! Ekiden's command line with the policies of a project linked in: what simulates, replays and explores them has to have them in its
//! own process.
//!
//! It is a crate of a page, in the project's `target/ekiden`, which cargo builds in the checkout's `target`: there the crates of others
//! are built already.

use crate::{
    Checkout, Error, Policy, Progress, Project, Result, Trust, command,
    error::Context,
    files,
    modules::{is_root, lock},
    review::Review,
};
use cargo_metadata::{Message, MetadataCommand, diagnostic::DiagnosticLevel};
use nix::unistd::{AccessFlags, access};
use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io::{Cursor, IsTerminal},
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

/// How long cargo may take, with the time to fetch crates.
const LIMIT: Duration = Duration::from_secs(3600);

/// Programs of Ekiden's that the command line looks for beside itself.
const BESIDE: [&str; 3] = ["ekiden-guest", "ekiden-load", "ekiden-test"];

/// What cargo says that it does, at the beginning of a line.
const STEPS: [&str; 7] = ["Compiling ", "Downloading ", "Downloaded ", "Updating ", "Locking ", "Adding ", "Blocking "];

/// How the command line is built.
#[derive(Clone, Debug, Default)]
pub struct Runner {
    /// The features of `ekiden-cli`.
    pub features: Vec<&'static str>,
    /// Optimised, as `./ekiden` is.
    pub release: bool,
    /// Code of the policies' author may run as root while they are built.
    pub as_root: bool,
}

/// The modules that were built.
#[derive(Clone, Debug)]
pub struct Built {
    /// The program, which is called `ekiden`.
    pub program: PathBuf,
    /// What the compiler has to say about the project.
    pub warnings: String,
}

impl Runner {
    /// Builds the command line with all policies of a project, as far as it is not up to date.
    pub fn build(&self, checkout: &Checkout, project: &Project, progress: Progress<'_>) -> Result<Built> {
        let name = name(checkout, project);
        let place = place(project, &name);
        let _lock = lock(&place, progress)?;
        self.write(checkout, project, &name, &place)?;
        if is_root() && !self.as_root {
            self.may_run(checkout, project, &name, &place)?;
        }
        let target = target(checkout, project);
        let output = self.cargo(checkout, project, &place, &target, progress)?;
        let (mut program, mut errors, mut warnings) = (None, String::new(), String::new());
        for message in Message::parse_stream(Cursor::new(&output.stdout)).flatten() {
            match message {
                Message::CompilerArtifact(made) if made.target.name == name => program = made.executable,
                Message::CompilerMessage(message) => {
                    let rendered = message.message.rendered.unwrap_or(message.message.message);
                    match message.message.level {
                        DiagnosticLevel::Error | DiagnosticLevel::Ice => errors += &rendered,
                        _ if message.target.src_path.starts_with(project.root()) => warnings += &rendered,
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        match program {
            Some(program) if output.status.success() => {
                let kind = if self.release { "release" } else { "debug" };
                let program = called_ekiden(program.as_std_path(), &place.join(kind))?;
                Ok(Built { program, warnings })
            }
            _ => {
                if errors.is_empty() {
                    errors = command::last_lines(&String::from_utf8_lossy(&output.stderr), 40);
                }
                Err(Error::CompileProject { root: project.root().to_owned(), output: errors })
            }
        }
    }

    /// How Ekiden's crates and those of others are compiled in a project, as tables for cargo. What else compiles them so, in the same
    /// directory, finds them there.
    pub fn profiles(checkout: &Checkout) -> Result<String> {
        let lock = fs::read_to_string(checkout.root().join("Cargo.lock")).unwrap_or_default();
        Ok(for_simulations(checkout.profiles()?, &lock))
    }

    /// Writes the crate. Files that are as they should be keep their times, so that nothing is built again.
    fn write(&self, checkout: &Checkout, project: &Project, name: &str, place: &Path) -> Result<()> {
        let lock = fs::read_to_string(checkout.root().join("Cargo.lock")).unwrap_or_default();
        let profiles = Self::profiles(checkout)? + &own_profiles(name, project.policies());
        let manifest = manifest(name, checkout.root(), project.policies(), &self.features, &profiles);
        files::write(&place.join("Cargo.toml"), manifest.as_bytes())?;
        files::write(&place.join("src/main.rs"), source(project.policies()).as_bytes())?;
        // Cargo adds and leaves out what it likes, so this is compared with what was written, not with what became of it.
        let locked = locked(&lock, &fs::read_to_string(project.root().join("Cargo.lock")).unwrap_or_default());
        if files::write(&place.join("Cargo.lock.as-written"), locked.as_bytes())? || !place.join("Cargo.lock").exists()
        {
            files::write(&place.join("Cargo.lock"), locked.as_bytes())?;
        }
        Ok(())
    }

    /// Refuses to run code of the policies' author as root.
    fn may_run(&self, checkout: &Checkout, project: &Project, name: &str, place: &Path) -> Result<()> {
        let about = command::stdout(Command::new("rustc").arg("-vV").current_dir(checkout.root()))?;
        let host = about.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default().to_owned();
        let ask = |offline: bool| {
            let mut options = vec!["--filter-platform".to_owned(), host.clone()];
            options.extend(offline.then(|| "--offline".to_owned()));
            let mut ask = MetadataCommand::new();
            ask.current_dir(checkout.root()).manifest_path(place.join("Cargo.toml")).other_options(options).exec()
        };
        let failed = |error: cargo_metadata::Error| Error::CompileProject {
            root: project.root().to_owned(),
            output: error.to_string(),
        };
        let metadata = ask(true).or_else(|_| ask(false)).map_err(failed)?;
        let trust = Trust { as_root: self.as_root, ..Trust::default() };
        let review = Review::of(&metadata, name, project.policies());
        // They are built together.
        let names: Vec<&str> = project.policies().iter().map(|policy| policy.name.as_str()).collect();
        let all = project.policies().first().map(|policy| Policy { name: names.join("`, `"), ..policy.clone() });
        all.map_or(Ok(()), |all| review.may_run(&all, &trust, is_root()))
    }

    fn cargo(
        &self,
        checkout: &Checkout,
        project: &Project,
        place: &Path,
        target: &Path,
        progress: Progress<'_>,
    ) -> Result<Output> {
        let names: Vec<&str> = project.policies().iter().map(|policy| policy.name.as_str()).collect();
        let what = format!("building ekiden with {}", names.join(", "));
        built_with(&what, progress, || {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            let colour = if std::io::stderr().is_terminal() { "json-diagnostic-rendered-ansi" } else { "json" };
            // As root, not where settings of another user may name programs.
            cargo.current_dir(if is_root() { checkout.root() } else { place });
            cargo.args(["build", "--message-format", colour]).args(self.release.then_some("--release"));
            cargo.arg("--manifest-path").arg(place.join("Cargo.toml")).arg("--target-dir").arg(target);
            cargo
        })
    }
}

/// Runs cargo without the network and, if something is not here yet, once more with it; tells which crate it is at.
pub(crate) fn built_with(what: &str, progress: Progress<'_>, cargo: impl Fn() -> Command) -> Result<Output> {
    let mut run = |offline: bool| {
        let mut cargo = cargo();
        cargo.args(offline.then_some("--offline"));
        command::watched(&mut cargo, what, LIMIT, progress, &|line| {
            let line = line.trim_start();
            let is_step = STEPS.iter().any(|step| line.starts_with(step));
            // Without the version and the place.
            is_step.then(|| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
        })
    };
    let output = run(true)?;
    if !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("--offline") {
        return run(false);
    }
    Ok(output)
}

/// The name of the crate: another one for each project, as all are built in one directory, where one name is one file.
fn name(checkout: &Checkout, project: &Project) -> String {
    let mut hasher = DefaultHasher::new();
    (project.root(), checkout.root()).hash(&mut hasher);
    format!("ekiden-runner-{:016x}", hasher.finish())
}

/// Where the crate is. A directory that several projects share has one for each.
fn place(project: &Project, name: &str) -> PathBuf {
    let shared = project.target_dir().join("ekiden");
    shared.join(if project.target_dir().starts_with(project.root()) { "runner" } else { name })
}

/// Where cargo puts what it makes: the checkout's directory, unless that is another user's.
fn target(checkout: &Checkout, project: &Project) -> PathBuf {
    let target = checkout.target_dir();
    let there = target.ancestors().find(|directory| directory.exists());
    match there.is_some_and(|directory| access(directory, AccessFlags::W_OK).is_ok()) {
        true => target,
        false => project.target_dir().join("ekiden/target"),
    }
}

/// The program under its usual name, with the others beside it that it looks for there.
fn called_ekiden(program: &Path, directory: &Path) -> Result<PathBuf> {
    fs::create_dir_all(directory).context("create", directory)?;
    let (own, made) = (directory.join("ekiden"), fs::metadata(program).context("examine", program)?);
    let is_same = |old: fs::Metadata| {
        (old.dev(), old.ino()) == (made.dev(), made.ino())
            || old.len() == made.len() && (old.mtime(), old.mtime_nsec()) >= (made.mtime(), made.mtime_nsec())
    };
    if !fs::metadata(&own).is_ok_and(is_same) {
        // One that runs is not overwritten but replaced.
        let new = directory.join(".ekiden.new");
        let _ = fs::remove_file(&new);
        fs::hard_link(program, &new).or_else(|_| fs::copy(program, &new).map(drop)).context("write", &new)?;
        fs::rename(&new, &own).context("write", &own)?;
    }
    let this = std::env::current_exe().context("find", "this program")?;
    for name in BESIDE {
        let (there, here) = (this.with_file_name(name), directory.join(name));
        if there.exists() && fs::read_link(&here).ok().as_ref() != Some(&there) {
            let _ = fs::remove_file(&here);
            symlink(&there, &here).context("write", &here)?;
        }
    }
    Ok(own)
}

fn manifest(name: &str, checkout: &Path, policies: &[Policy], features: &[&str], profiles: &str) -> String {
    let checkout = checkout.display();
    let crates: BTreeMap<&str, &Path> =
        policies.iter().map(|policy| (policy.package.as_str(), policy.directory.as_path())).collect();
    let mut text = format!(
        r#"# Written by `ekiden`: its command line with the policies of this project.
[package]
name = "{name}"
version = "0.1.0"
edition = "2024"
publish = false

[workspace]
resolver = "3"

[dependencies]
ekiden-cli = {{ path = "{checkout}/cli", default-features = false, features = {features:?} }}
ekiden-linked = {{ path = "{checkout}/lab/linked" }}
"#
    );
    for (package, directory) in crates {
        // Writing to a text never fails.
        let _ = writeln!(text, "{package} = {{ path = {:?} }}", directory.display().to_string());
    }
    text + "\n" + profiles
}

fn source(policies: &[Policy]) -> String {
    let paths: String = policies.iter().map(|policy| format!("        {},\n", policy.path)).collect();
    format!(
        "//! Ekiden's command line with the policies of this project.\n\n\
         fn main() -> std::process::ExitCode {{\n    ekiden_cli::main(ekiden_linked::policies![\n{paths}    ])\n}}\n"
    )
}

/// Policies are as fast as those that come with Ekiden, and a debugger shows their lines.
fn own_profiles(name: &str, policies: &[Policy]) -> String {
    let mut packages: Vec<&str> = policies.iter().map(|policy| policy.package.as_str()).collect();
    packages.sort_unstable();
    packages.dedup();
    let optimised =
        packages.iter().chain([&name]).map(|package| format!("[profile.release.package.{package}]\nopt-level = 3\n"));
    let debugged = packages.iter().map(|package| format!("[profile.dev.package.{package}]\ndebug = true\n"));
    optimised.chain(debugged).collect()
}

/// Crates of Ekiden's that time passes in when something is simulated or explored.
const SIMULATE: [&str; 4] = ["ekiden", "ekiden-engine", "ekiden-explore", "ekiden-sim"];

/// Cargo tells crates apart by where they are in a workspace, so Ekiden's own are compiled anew in that of a project, whatever their profile. The ones
/// that the checkout's tests need fast for something else are not optimised then.
fn for_simulations(profiles: String, lock: &str) -> String {
    let ours = lock.split(ENTRY).skip(1).filter(|entry| !entry.contains("\nsource = "));
    let names = ours.filter_map(|entry| entry.lines().next()?.strip_prefix("name = \"")?.strip_suffix('"'));
    names.filter(|name| !SIMULATE.contains(name)).fold(profiles, |profiles, name| {
        let without = |profiles: String, level| {
            profiles.replace(&format!("[profile.dev.package.{name}]\nopt-level = {level}\n"), "")
        };
        (1..=3).fold(profiles, without)
    })
}

/// What begins a crate in a `Cargo.lock`.
const ENTRY: &str = "[[package]]\n";

/// The versions that Ekiden is built with, so that they are built once, and those that the project has besides.
fn locked(checkout: &str, project: &str) -> String {
    let name = |entry: &str| entry.lines().next().unwrap_or_default().to_owned();
    let ours: Vec<String> = checkout.split(ENTRY).skip(1).map(name).collect();
    let theirs = project.split(ENTRY).skip(1).filter(|entry| !ours.contains(&name(entry)));
    theirs.fold(checkout.to_owned(), |text, entry| format!("{}\n\n{ENTRY}{}\n", text.trim_end(), entry.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn policy(package: &str, path: &str) -> Policy {
        Policy {
            name: "a".into(),
            path: path.into(),
            package: package.into(),
            directory: Path::new("/projects").join(package),
        }
    }

    #[test]
    fn the_program_has_all_policies_of_a_project() {
        let policies =
            [policy("shortest-job", "shortest_job::ShortestJob"), policy("b", "b::One"), policy("b", "b::Two")];
        let profiles = own_profiles("ekiden-runner-1", &policies);
        expect![[r#"
            # Written by `ekiden`: its command line with the policies of this project.
            [package]
            name = "ekiden-runner-1"
            version = "0.1.0"
            edition = "2024"
            publish = false

            [workspace]
            resolver = "3"

            [dependencies]
            ekiden-cli = { path = "/ekiden/cli", default-features = false, features = ["bpf"] }
            ekiden-linked = { path = "/ekiden/lab/linked" }
            b = { path = "/projects/b" }
            shortest-job = { path = "/projects/shortest-job" }

            [profile.release.package.b]
            opt-level = 3
            [profile.release.package.shortest-job]
            opt-level = 3
            [profile.release.package.ekiden-runner-1]
            opt-level = 3
            [profile.dev.package.b]
            debug = true
            [profile.dev.package.shortest-job]
            debug = true
        "#]]
        .assert_eq(&manifest("ekiden-runner-1", Path::new("/ekiden"), &policies, &["bpf"], &profiles));
        expect![[r#"
            //! Ekiden's command line with the policies of this project.

            fn main() -> std::process::ExitCode {
                ekiden_cli::main(ekiden_linked::policies![
                    shortest_job::ShortestJob,
                    b::One,
                    b::Two,
                ])
            }
        "#]]
        .assert_eq(&source(&policies));
    }

    #[test]
    fn of_our_crates_those_that_simulate_are_optimised_in_a_project() {
        let checkout = Checkout::find().unwrap();
        let lock = fs::read_to_string(checkout.root().join("Cargo.lock")).unwrap();
        let all = checkout.profiles().unwrap();
        let profiles = for_simulations(all.clone(), &lock);
        let heading = |name: &str| format!("[profile.dev.package.{name}]\nopt-level = ");
        assert!(SIMULATE.iter().all(|name| profiles.contains(&heading(name))), "{profiles}");
        assert!(profiles.matches("[profile.dev.package.ekiden").count() == SIMULATE.len(), "{profiles}");
        // Crates of others are as they are there, where they are compiled already, and so is what is released.
        let others = |profiles: &str| {
            let tables = profiles.split('[').filter(|table| !table.starts_with("profile.dev.package.ekiden"));
            tables.collect::<String>()
        };
        assert_eq!(others(&profiles), others(&all));
    }

    #[test]
    fn versions_are_those_of_ekiden_and_what_a_project_has_besides() {
        let ours = "version = 4\n\n[[package]]\nname = \"serde\"\nversion = \"1.0.1\"\n";
        let theirs = "version = 4\n\n[[package]]\nname = \"bitvec\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"serde\"\nversion = \"1.0.9\"\n";
        expect![[r#"
            version = 4

            [[package]]
            name = "serde"
            version = "1.0.1"

            [[package]]
            name = "bitvec"
            version = "1.0.0"
        "#]]
        .assert_eq(&locked(ours, theirs));
    }

    #[test]
    fn a_program_that_is_the_same_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let (made, directory) = (place.path().join("made"), place.path().join("there"));
        fs::write(&made, "one").unwrap();
        let own = called_ekiden(&made, &directory).unwrap();
        let before = files::identity(&own);
        called_ekiden(&made, &directory).unwrap();
        assert_eq!((files::identity(&own), own.file_name().unwrap().to_str()), (before, Some("ekiden")));
        fs::remove_file(&made).unwrap();
        fs::write(&made, "two of them").unwrap();
        called_ekiden(&made, &directory).unwrap();
        assert_eq!(fs::read_to_string(own).unwrap(), "two of them");
    }
}
