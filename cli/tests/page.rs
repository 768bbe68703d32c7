//! The page in a real browser. `observe/page/browser/test/run.mjs` says what is tested; it needs Node.js, npm and Chromium, which
//! `scripts/prepare tests` installs. Where that Node.js is too old, `observe/page/browser/with-node` has npm fetch one.

use std::{
    env,
    path::Path,
    process::{Command, Output},
};

/// Runs something in the folder `observe/page/browser`, which must succeed.
fn run(what: &str, command: &mut Command) -> Output {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../observe/page/browser");
    let output = command.current_dir(folder).output().unwrap_or_else(|error| {
        panic!("{what} cannot be run: {error}; scripts/prepare tests installs what is missing")
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    println!("{}", text(&output.stdout));
    assert!(output.status.success(), "{what} failed:\n{}{}", text(&output.stdout), text(&output.stderr));
    output
}

#[test]
fn a_browser_shows_what_happened() {
    run("npm ci", Command::new("./with-node").args(["npm", "ci", "--no-fund", "--no-audit", "--prefer-offline"]));
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    let output = run(
        "the browser test",
        Command::new("./with-node").args(["node", "test/run.mjs", env!("CARGO_BIN_EXE_ekiden")]).arg(&pictures),
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.starts_with("ok: ")).count(), 6);
    assert!(pictures.join("group-imbalance-light.png").exists());
}
