//! A new project is what it claims to be: it builds, passes its own tests, and nothing has anything to say against it.

use ekiden_build::{Checkout, Runner, new_project};
use std::{fs, path::Path, process::Command};

/// Runs cargo in a project, as `ekiden` does to link its policies in: crates of others are there already, and other tests find ours there.
fn cargo(project: &Path, args: &[&str]) -> String {
    let profiles = project.with_file_name("profiles.toml");
    fs::write(&profiles, Runner::profiles(&Checkout::find().unwrap()).unwrap()).unwrap();
    let (command, more) = args.split_first().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    // Behind the command: one that is a program of its own is not told what stands before it. One of these needs none.
    cargo.arg(command);
    if *command != "fmt" {
        cargo.arg("--config").arg(profiles);
    }
    cargo.args(more).current_dir(project).env("RUSTDOCFLAGS", "-Dwarnings");
    cargo.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap());
    let output = cargo.output().expect("cargo can be started");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "cargo {args:?}: {text}");
    text
}

#[test]
fn a_new_project_passes_its_tests_and_has_no_warnings() {
    let parent = tempfile::tempdir().unwrap();
    let project = new_project(parent.path(), "shortest-job").unwrap();
    let tests = cargo(&project, &["test"]);
    assert!(tests.contains("test tasks_on_one_cpu_have_equal_shares ... ok"), "{tests}");
    cargo(&project, &["clippy", "--all-targets", "--", "-Dwarnings"]);
    cargo(&project, &["fmt", "--check"]);
    cargo(&project, &["doc", "--no-deps"]);
}

#[test]
fn a_new_project_has_the_versions_that_were_tested() {
    let parent = tempfile::tempdir().unwrap();
    let project = new_project(parent.path(), "locked").unwrap();
    let versions = |path: &Path, name: &str| -> Vec<String> {
        let lock = fs::read_to_string(path.join("Cargo.lock")).unwrap();
        let entries = lock.split("[[package]]").filter(|entry| entry.contains(&format!("name = \"{name}\"\n")));
        entries.map(|entry| entry.lines().find(|line| line.starts_with("version")).unwrap().to_owned()).collect()
    };
    cargo(&project, &["metadata", "--format-version=1"]);
    // Half a minute of the first build is such parsers; two versions of one are twice that.
    for name in ["syn", "serde_derive", "zerocopy-derive"] {
        assert_eq!(versions(&project, name).len(), 1, "a new project compiles {name} once");
    }
    let checkout = Checkout::find().unwrap();
    for name in ["zerocopy", "smallvec", "serde"] {
        assert_eq!(versions(&project, name), versions(checkout.root(), name), "{name}");
    }
}
