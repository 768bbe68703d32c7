//! Writes policies that go wrong at random: bodies of a grammar of loops, recursions, copies, allocations, kicks, timers, slices, locks,
//! panics and tokens, in every call of the trait. A seed and a number give the same body each time, whatever else is written.
//!
//! The bodies are source: what runs is compiled as every policy is, with fuel in it. One module has many of them, of which a parameter chooses
//! one.
#![forbid(unsafe_code)]

mod grammar;

use std::{
    collections::BTreeSet,
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
};

/// What the policy is called.
pub const POLICY: &str = "hostile";

/// How many bodies a module has at most: the compiler takes half a minute for so many.
pub const BODIES_MAX: u64 = 100;

/// What a host can stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// The kernel, where everything is limited.
    Kernel,
    /// The simulator, which has neither fuel nor an arena: nothing without end, neither turns nor depth nor memory, and no lock is kept.
    Simulator,
}

/// The source of some bodies of a seed. Bodies in `without` do nothing.
pub fn source(seed: u64, bodies: Range<u64>, without: &BTreeSet<u64>, host: Host) -> String {
    let mut text = String::from(
        "//! Bodies, by a generator.\nuse crate::{Again, At, Bomb, Endless, Hostile, Pointer, Scene};\nuse alloc::{boxed::Box, collections::BTreeMap, \
         format, string::String, vec, vec::Vec};\nuse core::{cell::RefCell, hint::{black_box, spin_loop}, mem::forget};\nuse ekiden::{Call, TaskId};\n",
    );
    let count = bodies.end - bodies.start;
    for number in bodies.clone() {
        if without.contains(&number) {
            text += &format!("\npub fn b{number}(_: &mut Scene<'_>) {{\n}}\n");
        } else {
            text += &grammar::body(seed, number, host);
        }
    }
    let names: Vec<String> = bodies.map(|number| format!("b{number}")).collect();
    text += &format!("\npub const BODIES: [crate::Body; {count}] = [{}];\n", names.join(", "));
    text
}

/// The body that a line of such a source belongs to, with what only it calls; lines are counted from 1. None outside of all.
pub fn body_at(source: &str, line: usize) -> Option<u64> {
    let (mut body, mut begins) = (None, 0);
    for (text, number) in source.lines().zip(1..) {
        if text.starts_with("use ") {
            begins = number + 1;
        }
        if let Some((name, _)) = text.strip_prefix("pub fn b").and_then(|rest| rest.split_once('(')) {
            body = name.parse().ok();
        }
        // What a body calls stands before it, and begins where the body before it has ended.
        if text == "}" && body.is_some() {
            if (begins..=number).contains(&line) {
                return body;
            }
            (body, begins) = (None, number + 1);
        }
    }
    None
}

/// Writes a project with these bodies into a directory, for a checkout of Ekiden. Files of an earlier one are replaced.
/// Bodies in `without` do nothing.
///
/// # Errors
/// If it cannot be written.
pub fn write(
    directory: &Path,
    checkout: &Path,
    seed: u64,
    bodies: Range<u64>,
    without: &BTreeSet<u64>,
    host: Host,
) -> io::Result<PathBuf> {
    let ekiden = checkout.join("framework/ekiden");
    let manifest = format!(
        "[package]\nname = \"{POLICY}\"\nversion = \"0.1.0\"\nedition = \"2024\"\npublish = false\n\n[workspace]\n\n[package.metadata.ekiden]\n\
         policies = [\"Hostile\"]\n\n[dependencies]\nekiden = {{ path = {ekiden:?} }}\n\n[dev-dependencies]\nekiden-sim = {{ path = {:?} }}\n\
         ekiden-workload = {{ path = {:?}, default-features = false }}\n",
        checkout.join("hosts/sim"),
        checkout.join("workload"),
    );
    fs::create_dir_all(directory.join("src"))?;
    fs::create_dir_all(directory.join("examples"))?;
    let files = [
        ("Cargo.toml", manifest.as_str()),
        ("src/lib.rs", include_str!("../frame/lib.rs")),
        ("src/bodies.rs", &source(seed, bodies, without, host)),
        ("examples/sim.rs", include_str!("../frame/sim.rs")),
    ];
    for (name, text) in files {
        let file = directory.join(name);
        // Cargo looks at times.
        if fs::read_to_string(&file).ok().as_deref() != Some(text) {
            fs::write(file, text)?;
        }
    }
    let lock = checkout.join("Cargo.lock");
    if lock.is_file() && !directory.join("Cargo.lock").exists() {
        fs::copy(lock, directory.join("Cargo.lock"))?;
    }
    Ok(directory.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_number_give_the_same_body_whatever_else_is_written() {
        let body = |text: &str, number: u64| {
            let from = text.find(&format!("\npub fn b{number}(")).unwrap();
            text[from..].split("\n}\n").next().unwrap().to_owned()
        };
        let (many, few) =
            (source(7, 0..20, &BTreeSet::new(), Host::Kernel), source(7, 9..11, &BTreeSet::new(), Host::Kernel));
        assert_eq!(body(&many, 10), body(&few, 10));
        assert_ne!(body(&many, 10), body(&source(8, 9..11, &BTreeSet::new(), Host::Kernel), 10));
    }

    #[test]
    fn a_body_that_is_left_out_does_nothing_and_the_others_are_the_same() {
        let all = source(7, 0..20, &BTreeSet::new(), Host::Kernel);
        let some = source(7, 0..20, &BTreeSet::from([3, 19]), Host::Kernel);
        let bodies = |text: &str| -> Vec<String> { text.split("\npub fn b").skip(1).map(str::to_owned).collect() };
        let differ: Vec<_> = bodies(&all).iter().zip(&bodies(&some)).map(|(one, other)| one != other).collect();
        assert!(bodies(&some)[3].starts_with("3(_: &mut Scene<'_>) {\n}\n"));
        assert!(differ[3] && differ[19] && !differ[4]);
        assert!(all.contains("; 20] = [") && some.contains("; 20] = ["));
    }

    #[test]
    fn lines_of_a_source_belong_to_bodies_and_what_they_call() {
        let text = source(7, 5..25, &BTreeSet::from([6]), Host::Kernel);
        let line_of = |what: &str| text.lines().position(|line| line.starts_with(what)).unwrap() + 1;
        for body in 5..25 {
            assert_eq!(body_at(&text, line_of(&format!("pub fn b{body}("))), Some(body));
            assert_eq!(body_at(&text, line_of(&format!("pub fn b{body}(")) + 1), Some(body));
        }
        let helper = text.lines().position(|line| line.starts_with("fn ")).unwrap();
        let owner = text.lines().skip(helper).find_map(|line| line.strip_prefix("pub fn b")).unwrap();
        assert_eq!(body_at(&text, helper + 1), owner.split_once('(').unwrap().0.parse().ok());
        for line in [0, 1, line_of("use crate"), line_of("pub const BODIES"), text.lines().count() + 1] {
            assert_eq!(body_at(&text, line), None, "line {line}");
        }
    }

    #[test]
    fn every_kind_and_every_call_is_there() {
        let text = source(1, 0..500, &BTreeSet::new(), Host::Kernel);
        for word in [
            "loop {",
            "while black_box(true)",
            "spin_loop()",
            "copy_within",
            ".clone()",
            ".fill(",
            "Box::leak",
            ".push(",
            "resched(",
            "arm_timer(",
            "set_slice_ns(",
            ".a.lock()",
            "forget(me.a.lock())",
            "panic!(",
            "Bomb",
            "Endless",
            "forget(s.token.take())",
            "hidden",
            "At::New",
            "At::Save",
            "impl Again for",
            "Pointer(",
            "BTreeMap",
            "RefCell",
            "idle_cpus",
            "u64::MAX) +",
        ] {
            assert!(text.contains(word), "{word}");
        }
        let calls = grammar::PLACES.iter().filter(|place| !text.contains(*place));
        assert_eq!(calls.collect::<Vec<_>>(), [""; 0].iter().collect::<Vec<_>>());
    }

    #[test]
    fn what_a_simulator_cannot_end_is_left_out_for_it() {
        let text = source(1, 0..500, &BTreeSet::new(), Host::Simulator);
        for word in ["loop {", "while black_box(true)", "Endless;", "Box::leak", "forget(me.a.lock())", "u64::MAX { "] {
            assert!(!text.contains(word), "{word}");
        }
    }
}
