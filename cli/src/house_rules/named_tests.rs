//! The tests that documents name are there.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{WORKSPACES, assert_none, files, packages, root, within};

#[test]
fn the_tests_that_hold_what_a_review_found_are_there() {
    let text = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let findings = (1..=6).map(|number| format!("H{number}"));
    let findings = findings.chain((1..=9).map(|number| format!("M{number}")));
    let tests = Tests::of_tree();
    let mut broken = Vec::new();
    for finding in findings.chain((1..=10).map(|number| format!("L{number}"))) {
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with(&format!("| {finding} |"))).collect();
        let [row] = rows[..] else { panic!("{finding} has {} rows in SECURITY.md", rows.len()) };
        let named = tests_in(row);
        if named.is_empty() {
            broken.push(format!("{finding} names no test"));
        }
        broken.extend(tests.missing(&named).map(|test| format!("{finding}: {test}")));
    }
    assert_none(&broken, "SECURITY.md names tests that there are");
}

#[test]
fn every_test_that_the_evidence_names_is_there() {
    let text = fs::read_to_string(root().join("docs/evidence.md")).unwrap();
    let named = tests_in(&text);
    assert!(named.len() > 20, "only {} tests were found", named.len());
    let missing: Vec<String> = Tests::of_tree().missing(&named).collect();
    assert_none(&missing, "docs/evidence.md names tests that there are, behind the folder of their crate, or `guests`");
}

/// The most letters that the name of a test has. What else there is to say is for a comment.
const LETTERS_MOST: usize = 79;

#[test]
fn names_of_tests_have_fewer_than_80_letters() {
    let (mut broken, mut seen) = (Vec::new(), 0);
    for (file, text) in files("rs") {
        // Whatever a test is made by: an attribute, proptest, or a list of those that run in a guest.
        for name in text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next()) {
            seen += 1;
            if name.len() > LETTERS_MOST && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                broken.push(format!("{file}: {name} has {}", name.len()));
            }
        }
    }
    assert!(seen > 5_000, "only {seen} functions were found");
    assert_none(&broken, &format!("the name of a test has {LETTERS_MOST} letters at most"));
}

/// All source files, and the folders of crates.
struct Tests {
    sources: Vec<(String, String)>,
    crates: Vec<PathBuf>,
}

impl Tests {
    fn of_tree() -> Self {
        let packages = WORKSPACES.iter().flat_map(|manifest| packages(manifest, &["--no-deps"]));
        let crates = packages.map(|package| within(&package["manifest_path"]).parent().unwrap().to_owned()).collect();
        Self { sources: files("rs"), crates }
    }

    fn missing<'a>(&'a self, named: &'a [(Option<&str>, &str)]) -> impl Iterator<Item = String> {
        named.iter().filter_map(|(place, test)| match place {
            None => Some(format!("{test}: in which crate?")),
            Some(place) => (!self.has(place, test)).then(|| format!("{place}, {test}")),
        })
    }

    fn has(&self, place: &str, test: &str) -> bool {
        if place != "guests" {
            let directory =
                self.crates.iter().find(|directory| directory.file_name().is_some_and(|name| name == place));
            return directory.is_some_and(|directory| {
                let within = |name: &str| Path::new(name).starts_with(directory);
                self.sources.iter().any(|(name, text)| within(name) && has_test(text, test))
            });
        }
        let (function, lines) =
            (format!("fn {test}(guest: &TestGuest)"), [format!(" {test},"), format!("\"{test}\",")]);
        self.sources.iter().any(|(name, text)| {
            let is_listed = lines.iter().any(|line| text.contains(line));
            name.starts_with("lab/kernel-tests/tests/guests/") && text.contains(&function) && is_listed
        })
    }
}

/// The tests that a text names, and where they are said to be: what looks like a function in `code`, behind the name of a crate and a comma, or
/// behind another one of the same crate and a comma.
fn tests_in(text: &str) -> Vec<(Option<&str>, &str)> {
    let mut tests = Vec::new();
    let mut place = None;
    let mut pieces = text.split('`');
    while let (Some(before), Some(code)) = (pieces.next(), pieces.next()) {
        if before != ", " {
            let word = before.strip_suffix(", ").and_then(|before| before.rsplit([' ', '\n', '|', '(']).next());
            place = word.filter(|word| !word.is_empty());
        }
        let is_function = code.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if is_function && code.matches('_').count() >= 3 {
            tests.push((place, code));
        }
    }
    tests
}

/// Whether a source file has a test of this name.
fn has_test(text: &str, name: &str) -> bool {
    let head = format!("fn {name}(");
    text.match_indices(&head).any(|(at, _)| {
        let above = text[..at].lines().rev().map(str::trim);
        above.take_while(|line| !line.contains('}')).take(5).any(|line| line == "#[test]")
    })
}

#[test]
fn named_tests_are_told_from_other_words() {
    let text = "by hand | cli, `a_b_c_d`, `e_f_g_h`; guests, `x.rs` and `i_j_k_l`; sim, `some_word`";
    assert_eq!(tests_in(text), [(Some("cli"), "a_b_c_d"), (Some("cli"), "e_f_g_h"), (None, "i_j_k_l")]);
    let text = "#[test]\n#[ignore]\nfn a_test() {\n}\n\nfn a_function() {\n}\n";
    assert!(has_test(text, "a_test") && !has_test(text, "a_function") && !has_test(text, "other"));
}
