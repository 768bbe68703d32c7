//! What the compiler refuses, where, and for which reason.
//!
//! The line that is wrong in a file of `ui/fail` ends with `//~ ` and how the compiler's message begins. Nothing else
//! of the message is compared, because its wording changes from one compiler to the next. All cases are programs of
//! one project, so that one run of cargo checks them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const MARK: &str = "//~ ";

/// The cases in `folder`: name and text.
fn cases(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui").join(folder);
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let case =
        |path: PathBuf| (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(path).unwrap());
    paths.map(case).collect()
}

/// What the compiler says of these programs, one line each: `src/bin/NAME.rs:LINE:COLUMN: MESSAGE`.
fn check<'a>(cases: impl Iterator<Item = &'a (String, String)>) -> String {
    // Kept from run to run, so that only the first one compiles what the cases depend on.
    let project = Path::new(env!("CARGO_TARGET_TMPDIR")).join("refusals");
    let programs = project.join("src/bin");
    if programs.exists() {
        fs::remove_dir_all(&programs).unwrap();
    }
    fs::create_dir_all(&programs).unwrap();
    for (name, text) in cases {
        fs::write(programs.join(name).with_extension("rs"), text).unwrap();
    }
    let ekiden = env!("CARGO_MANIFEST_DIR");
    // A policy may name any crate of the framework.
    let manifest = format!(
        "[package]\nname = \"refusals\"\nedition = \"2024\"\n[workspace]\n[dependencies]\nekiden.path = \"{ekiden}\"\n\
         ekiden-lock.path = \"{ekiden}/../lock\"\n"
    );
    fs::write(project.join("Cargo.toml"), manifest).unwrap();
    // The versions that are here already.
    fs::copy(Path::new(ekiden).join("../../Cargo.lock"), project.join("Cargo.lock")).unwrap();
    let output = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["check", "--bins", "--keep-going", "--offline", "--message-format", "short"])
        .env("CARGO_TARGET_DIR", project.join("target"))
        .env("CARGO_TERM_COLOR", "never")
        .current_dir(&project)
        .output()
        .unwrap();
    String::from_utf8(output.stderr).unwrap()
}

/// The line that is marked in `text`, counted from 1, and what the mark says.
fn mark(text: &str) -> Option<(usize, &str)> {
    text.lines().zip(1..).find_map(|(line, number)| Some((number, line.split_once(MARK)?.1)))
}

#[test]
fn the_compiler_refuses_what_it_must_for_the_right_reason_and_nothing_else() {
    let (fail, pass) = (cases("fail"), cases("pass"));
    assert!(!fail.is_empty() && !pass.is_empty());
    let said = check(fail.iter().chain(&pass));
    let messages_about = |name: &str| {
        let place = format!("src/bin/{name}.rs:");
        said.lines().filter_map(move |line| line.strip_prefix(&place)).collect::<Vec<_>>()
    };
    for (name, _) in pass {
        assert!(said.contains("refusals"), "the cases were not checked:\n{said}");
        assert_eq!(messages_about(&name), Vec::<&str>::new(), "{name} is fine");
    }
    for (name, text) in fail {
        let (line, reason) = mark(&text).unwrap_or_else(|| panic!("{name} has no line that is marked with {MARK:?}"));
        let messages = messages_about(&name);
        let errors: Vec<_> = messages.iter().filter(|message| message.contains(" error")).collect();
        assert!(!errors.is_empty(), "{name} was not refused:\n{said}");
        for error in errors {
            let place_and_error = error.split_once(": ");
            let (place, error) = place_and_error.unwrap();
            assert!(place.starts_with(&format!("{line}:")), "{name} is refused at {place}, not line {line}: {error}");
            assert!(error.starts_with(reason), "{name} is refused for another reason: {error}");
        }
    }
}
