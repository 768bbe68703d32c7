//! The parts of a run: each is a command with a name.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// One part.
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) command: Vec<String>,
    pub(crate) directory: PathBuf,
    pub(crate) environment: Vec<(String, String)>,
    /// Nothing else runs meanwhile: it keeps all processors busy by itself, or judges times.
    pub(crate) is_alone: bool,
    /// It sleeps nearly all the time, so it takes no processor from two others.
    pub(crate) waits: bool,
    /// It boots kernels.
    pub(crate) boots: bool,
    /// The directory whose lock keeps out every other part that needs it: beside one of these it would only wait.
    pub(crate) locks: Option<&'static str>,
}

/// Where cargo builds all that runs on this machine.
const TARGET: &str = "target";

/// Where modules are made, one project's at a time.
const KERNEL: &str = "target/kernel";

/// All tests in guests.
const GUESTS: &str = "kernel-tests guests";

/// What builds the modules that they load.
const MODULES: &str = "modules for guests";

/// Test programs that boot kernels.
const BOOT: [&str; 5] = [GUESTS, "vm machine", "build modules", "cli reproduce", "cli soak"];

/// Test programs that keep two processors busy by themselves, and those that judge how long real processes take.
const ALONE: [&str; 2] = [GUESTS, "workload kernel"];

/// Test programs that wait for others to be ended, and for times to pass.
const WAITS: [&str; 1] = ["cli machines"];

/// Parts that need a directory for themselves, and which one.
const LOCKS: [(&str, &str); 8] = [
    ("build new_project", TARGET),
    ("cli own_policy", TARGET),
    ("cli silence", TARGET),
    ("hostile simulated", TARGET),
    // Before its guest is there it makes the modules of all policies.
    ("cli soak", KERNEL),
    ("build modules", KERNEL),
    ("build refusals", KERNEL),
    (MODULES, KERNEL),
];

/// These take minutes for what other tests show in parts: a run does one line of them, which is some tests of a program or all of it, and the next
/// line has the next turn. Tests in guests have as many turns, and the longest of them are not at those of the longest lines here.
const IN_TURNS: [(&str, &[&str]); 6] = [
    ("build new_project", &[]),
    ("cli own_policy", &[]),
    (
        "cli reproduce",
        &[
            "a_pipe_wake_ups_and_lines_of_code_are_measured_beside_the_papers",
            "threads_stay_on_one_of_eight_nodes_with_the_bug_and_nowhere_else_is_waste_found",
        ],
    ),
    ("cli soak", &[]),
    (
        "cli reproduce",
        &[
            "decisions_and_a_worker_are_timed_in_an_agent_and_in_the_kernel",
            "requests_to_rocksdb_are_answered_right_in_an_agent_in_the_kernel_and_without",
        ],
    ),
    (
        "cli reproduce",
        &[
            "waits_of_workers_are_measured_with_hints_and_without_and_under_the_kernels_own",
            "waits_of_wrk_are_counted_under_the_kernels_own_scheduler_and_under_wfq",
        ],
    ),
];

/// The longest of those that boot nothing, for a checkout in which nothing has been timed yet. They begin first.
pub(crate) const LONGEST: [&str; 12] = [
    "cli own_policy",
    "lints",
    "build refusals",
    "build lib",
    "build new_project",
    "documentation",
    "lints without features",
    "documentation tests",
    "measure lib",
    "cli silence",
    "unit tests of the kernel's Rust",
    "check loads",
];

impl Part {
    pub(crate) fn new(root: &Path, name: &str, command: &str) -> Self {
        Self {
            name: name.to_owned(),
            command: command.split_whitespace().map(str::to_owned).collect(),
            directory: root.to_owned(),
            environment: Vec::new(),
            is_alone: false,
            waits: false,
            boots: false,
            locks: None,
        }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    fn alone(self) -> Self {
        Self { is_alone: true, ..self }
    }

    fn cargo(self) -> Self {
        Self { locks: Some(TARGET), ..self }
    }
}

/// Where C is.
const C: [&str; 7] = [
    "framework/include",
    "hosts/kernel/bpf",
    "hosts/kernel/include",
    "hosts/kernel/module",
    "hosts/kernel/sparse",
    "lab/kernel-tests/bpf",
    "machines/emulator",
];

/// The files of a directory whose names end so, from the root on.
fn files_in(root: &Path, directory: &str, ends: &[&str]) -> Vec<String> {
    let files = std::fs::read_dir(root.join(directory)).into_iter().flatten().flatten();
    let files = files.filter_map(|file| Some(format!("{directory}/{}", file.file_name().to_str()?)));
    files.filter(|file| ends.iter().any(|end| file.ends_with(end))).collect()
}

/// Formatting. The kernel's Rust is a workspace of its own.
pub(crate) fn formats(root: &Path) -> Vec<Part> {
    let part = |name: &str, command: &str| Part::new(root, name, command);
    // Cargo does not see them: their modules are declared by a macro.
    let policies = files_in(root, "policies/src", &[".rs"]).join(" ");
    let c = C.iter().flat_map(|directory| files_in(root, directory, &[".c", ".h"])).collect::<Vec<_>>().join(" ");
    let is_versioned = Path::new("/usr/bin/clang-format-19").exists();
    let clang_format = if is_versioned { "clang-format-19" } else { "clang-format" };
    vec![
        part("format", "cargo fmt --all --check"),
        part("format of policies", &format!("rustfmt --check --edition 2024 {policies}")),
        part("format of the kernel's Rust", "cargo fmt --all --check --manifest-path hosts/kernel/Cargo.toml"),
        part("format of requests to RocksDB", "cargo fmt --check --manifest-path workload/rocksdb/Cargo.toml"),
        part("format of C", &format!("{clang_format} --dry-run -Werror {c}")),
    ]
}

/// Lints and documentation. They run beside tests, once everything is built: by itself, cargo leaves processors idle.
pub(crate) fn lints(root: &Path) -> Vec<Part> {
    let part = |name: &str, command: &str| Part::new(root, name, command);
    vec![
        part("lints", "cargo clippy --workspace --all-targets -- -D warnings").cargo(),
        part(
            "lints of the kernel's Rust",
            "cargo clippy --manifest-path hosts/kernel/Cargo.toml --target-dir target/kernel-check -- -D warnings",
        )
        .with("RUSTFLAGS", "-C panic=abort"),
        part("lints without features", "cargo clippy -p ekiden-cli --no-default-features -- -D warnings").cargo(),
        part("documentation", "cargo doc --workspace --no-deps").with("RUSTDOCFLAGS", "-D warnings").cargo(),
    ]
}

/// Everything is built once, with all test programs.
pub(crate) fn build(root: &Path) -> Part {
    Part::new(root, "build", "cargo build --workspace --all-targets").alone()
}

/// The test programs, and the tests in the documentation.
pub(crate) fn tests(root: &Path) -> Result<Vec<Part>> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--workspace", "--no-run", "--message-format=json", "--quiet"]).current_dir(root);
    let output = cargo.output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the tests do not build:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    // The tests of procedural macros are linked with the compiler's library, which cargo lets them find.
    let libraries = Command::new("rustc").args(["--print", "target-libdir"]).output().context("cannot start rustc")?;
    let libraries = String::from_utf8_lossy(&libraries.stdout).trim().to_owned();
    let mut parts: Vec<Part> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| program(root, line))
        .map(|part| part.with("LD_LIBRARY_PATH", &libraries))
        .collect();
    if parts.is_empty() {
        bail!("cargo names no test program");
    }
    let modules = parts.iter().find(|part| part.name == GUESTS).map(|guests| Part {
        name: MODULES.into(),
        command: [guests.command.clone(), vec!["--prepare".into()]].concat(),
        directory: guests.directory.clone(),
        environment: guests.environment.clone(),
        is_alone: false,
        waits: false,
        boots: true,
        locks: lock_of(MODULES),
    });
    parts.extend(modules);
    parts.push(kernel_rust(root));
    parts.push(Part::new(root, "documentation tests", "cargo test --workspace --doc --quiet").cargo());
    Ok(parts)
}

/// Unit tests of the Rust that runs in the kernel, in a process. It is a workspace of its own, which `--workspace` above leaves out. In
/// the same directory, because crates of others that were built with the same settings are there already.
fn kernel_rust(root: &Path) -> Part {
    let command = "cargo test --manifest-path hosts/kernel/Cargo.toml --target-dir target --lib";
    Part::new(root, "unit tests of the kernel's Rust", command).cargo()
}

/// Tests in guests need not look at modules that are built in the same run, before any guest boots.
pub(crate) fn build_modules_once(parts: &mut [Part]) {
    if parts.iter().any(|part| part.name == MODULES) {
        let guests = parts.iter_mut().filter(|part| part.name == GUESTS);
        guests.for_each(|part| part.environment.push(("EKIDEN_PREPARED".into(), "1".into())));
    }
}

fn lock_of(part: &str) -> Option<&'static str> {
    LOCKS.iter().find(|(name, _)| *name == part).map(|(_, directory)| *directory)
}

/// Removes what runs on another day than `turn`, which is a number of days or `all`. Returns its names.
pub(crate) fn leave_for_other_days(parts: &mut Vec<Part>, turn: &str) -> Result<Vec<String>> {
    if turn == "all" {
        return Ok(Vec::new());
    }
    let day: usize = turn.parse().with_context(|| format!("EKIDEN_TURN={turn} is neither a number of days nor all"))?;
    let (todays, tests) = IN_TURNS[day % IN_TURNS.len()];
    parts.retain(|part| part.name == todays || IN_TURNS.iter().all(|(name, _)| *name != part.name));
    parts.iter_mut().filter(|part| part.name == todays).for_each(|part| {
        part.command.extend(tests.iter().map(|test| (*test).to_owned()));
    });
    let left = IN_TURNS.iter().filter(|line| **line != (todays, tests));
    Ok(left.map(|(name, tests)| [&[*name], *tests].concat().join(" ")).collect())
}

/// A test program, from a line that cargo prints.
fn program(root: &Path, line: &str) -> Option<Part> {
    let message: Value = serde_json::from_str(line).ok()?;
    let executable = message["executable"].as_str()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let package = manifest.parent()?;
    let target = &message["target"];
    // As cargo calls it: a library's own tests have no name but that of the package.
    let kind = target["kind"][0].as_str()?;
    let of = match kind {
        "lib" | "proc-macro" => "lib",
        _ => target["name"].as_str()?,
    };
    let name = format!("{} {of}", package.file_name()?.to_str()?);
    let mut part = Part::new(root, &name, "")
        // By itself, cargo builds a package with the features that it asks for, and all that is under it once more. Everything has been built
        // when this runs, and only what costs are counted of is built by itself.
        .with("EKIDEN_BUILT", "1")
        .with("CARGO_MANIFEST_DIR", package.to_str()?)
        .with("CARGO", &std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    part.command = vec![executable.to_owned()];
    part.directory = package.to_owned();
    part.is_alone = ALONE.contains(&name.as_str());
    part.waits = WAITS.contains(&name.as_str());
    part.boots = BOOT.contains(&name.as_str());
    part.locks = lock_of(&name);
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_is_called_after_its_package_and_target() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/p/lab/kernel-tests/Cargo.toml","executable":"/t/guests-1",
            "target":{"kind":["test"],"name":"guests"},"profile":{"test":true}}"#
            .replace('\n', " ");
        let part = program(Path::new("/p"), &line).unwrap();
        assert_eq!((part.name.as_str(), part.is_alone, part.boots), ("kernel-tests guests", true, true));
        assert_eq!((part.command, part.directory), (vec!["/t/guests-1".to_owned()], "/p/lab/kernel-tests".into()));
        assert!(program(Path::new("/p"), &line.replace("\"test\":true", "\"test\":false")).is_none());
    }

    #[test]
    fn modules_are_looked_at_by_guests_unless_the_same_run_builds_them() {
        let of = |names: &[&str]| {
            let mut parts: Vec<Part> = names.iter().map(|name| Part::new(Path::new("/"), name, "")).collect();
            build_modules_once(&mut parts);
            parts.iter().map(|part| part.environment.len()).collect::<Vec<_>>()
        };
        assert_eq!(of(&[GUESTS, MODULES]), [1, 0]);
        assert_eq!(of(&[GUESTS, "cli page"]), [0, 0]);
    }

    #[test]
    fn each_day_has_another_turn_and_all_have_one() {
        let of_turns: std::collections::BTreeSet<&str> = IN_TURNS.iter().map(|(name, _)| *name).collect();
        let of = |turn: &str| {
            let mut parts: Vec<Part> =
                [GUESTS].iter().chain(&of_turns).map(|name| Part::new(Path::new("/"), name, "a")).collect();
            let left = leave_for_other_days(&mut parts, turn).unwrap();
            let run = parts.into_iter().map(|part| (part.name, part.command[1..].to_vec()));
            (run.collect::<Vec<_>>(), left)
        };
        let guests = || (GUESTS.to_owned(), Vec::new());
        for (day, (name, tests)) in IN_TURNS.iter().enumerate() {
            let (run, left) = of(&(30_000 + day).to_string());
            let tests: Vec<String> = tests.iter().map(|test| (*test).to_owned()).collect();
            assert_eq!(run, [guests(), ((*name).to_owned(), tests.clone())]);
            assert_eq!(left.len(), IN_TURNS.len() - 1);
            assert!(left.iter().all(|left| *left != [vec![(*name).to_owned()], tests.clone()].concat().join(" ")));
        }
        let (run, left) = of("all");
        assert_eq!((run.len(), left), (1 + of_turns.len(), vec![]));
        assert!(run.iter().all(|(_, tests)| tests.is_empty()));
        assert!(leave_for_other_days(&mut Vec::new(), "some").is_err());
    }

    #[test]
    fn each_test_of_a_program_in_turns_has_one() {
        let root = super::super::root().unwrap();
        for (name, _) in IN_TURNS.iter().filter(|(_, tests)| !tests.is_empty()) {
            let source = std::fs::read_to_string(root.join(name.replace(' ', "/tests/") + ".rs")).unwrap();
            let tests = source.split("#[test]\nfn ").skip(1).map(|test| test.split('(').next().unwrap());
            let mut of_source: Vec<&str> = tests.collect();
            let lines = IN_TURNS.iter().filter(|(other, _)| other == name);
            let mut in_turns: Vec<&str> = lines.flat_map(|(_, tests)| tests.iter().copied()).collect();
            of_source.sort_unstable();
            in_turns.sort_unstable();
            assert_eq!(of_source, in_turns, "{name}");
        }
    }

    #[test]
    fn each_program_with_a_rule_of_its_own_exists() {
        let root = super::super::root().unwrap();
        let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
        let members: Vec<&Path> = manifest.split('"').skip(1).step_by(2).map(Path::new).collect();
        let in_turns = IN_TURNS.iter().map(|(name, _)| name);
        let locking = LOCKS.iter().map(|(name, _)| name).filter(|name| **name != MODULES);
        for name in BOOT.iter().chain(&ALONE).chain(in_turns).chain(locking) {
            let (package, target) = name.split_once(' ').unwrap();
            let member = members.iter().find(|member| member.ends_with(package)).unwrap_or_else(|| panic!("{package}"));
            let tests = root.join(member).join("tests");
            let exists = tests.join(target).join("main.rs").is_file() || tests.join(format!("{target}.rs")).is_file();
            assert!(exists, "there is no test program {name}");
        }
    }

    #[test]
    fn every_directory_with_c_is_looked_at() {
        let root = super::super::root().unwrap();
        for directory in C {
            assert!(!files_in(&root, directory, &[".c", ".h"]).is_empty(), "{directory} has no C");
        }
    }
}
