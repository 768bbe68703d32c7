//! Generated policies in the simulator: whatever they do, the simulation has an end and a reason, and the same one each time.

use ekiden_build::{Checkout, Runner};
use ekiden_hostile::{Host, write};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const BODIES: usize = 40;

#[test]
fn generated_policies_end_with_a_reason_or_do_no_harm_in_the_simulator() {
    let temporary = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let project =
        write(&temporary.join("simulated"), &checkout, 1, 0..BODIES as u64, &BTreeSet::new(), Host::Simulator).unwrap();
    let profiles = temporary.join("profiles-of-simulated.toml");
    fs::write(&profiles, Runner::profiles(&Checkout::at(&checkout).unwrap()).unwrap()).unwrap();
    let run = || {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.arg("run").arg("--config").arg(&profiles).args(["--quiet", "--example", "sim"]).current_dir(&project);
        // Where other projects, with these profiles, and the checkout have compiled most of it.
        cargo.env("CARGO_TARGET_DIR", temporary.parent().unwrap());
        let output = cargo.output().expect("cargo can be started");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = run();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), BODIES, "{text}");
    for (number, line) in lines.iter().enumerate() {
        let said = line.strip_prefix(&format!("{number} ")).unwrap_or_else(|| panic!("{line}"));
        let reason =
            said.strip_prefix("ended: ").or(said.strip_prefix("harmless: ")).unwrap_or_else(|| panic!("{line}"));
        assert!(!reason.is_empty(), "{line}");
    }
    for outcome in ["ended: ", "harmless: "] {
        assert!(text.contains(outcome), "{text}");
    }
    assert_eq!(run(), text);
}
